"""The report of a server about itself and its machine, for `loom doctor`."""

from __future__ import annotations

import resource
import time
from importlib.metadata import PackageNotFoundError, version

from loomlog.net.credentials import Credentials
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb


def software_version() -> str:
    """Return the version of loomlog that runs."""
    try:
        return version("loomlog")
    except PackageNotFoundError:
        return "unknown"  # it was not installed, but copied


def open_files_max() -> int:
    """Return how many files and connections this process may have open; 0: any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 if soft == resource.RLIM_INFINITY else soft


def server_check(
    cluster_id: str, node_id: NodeId = 0, credentials: Credentials | None = None
) -> pb.ServerCheck:
    return pb.ServerCheck(
        software=software_version(),
        cluster_id=cluster_id,
        storage_node_id=node_id,
        clock_us=time.time_ns() // 1000,
        open_files_max=open_files_max(),
        certificate_ends_s=0 if credentials is None else credentials.ends_s,
    )


def volume_check(path: str, sync_s: float, space: tuple[int, int], error: str) -> pb.VolumeCheck:
    """`space`: free and total bytes."""
    free, total = space
    return pb.VolumeCheck(path=path, sync_s=sync_s, free_bytes=free, total_bytes=total, error=error)

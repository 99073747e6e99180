"""The clusters that benches measure: one that runs, or a private one that is removed afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

from loomlog import limits
from loomlog.cli.console.command import connected
from loomlog.cli.processes.local_processes import ClusterPlan, LocalProcesses, running
from loomlog.types import SyncMode

if TYPE_CHECKING:
    from loomlog import Cluster

Progress: TypeAlias = Callable[[str, float], None]
"""Called with what begins, and about how many seconds it takes."""


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster to measure: one that runs at `address`, or a private one of `up` nodes."""

    address: str
    up: int | None
    sync: SyncMode
    data: Path | None  # parent of the private cluster's directory; None: the system's choice
    secure: bool = False  # the private cluster uses TLS


@dataclass(frozen=True, slots=True)
class PrivateCluster:
    """A cluster in processes of its own, and a client of it."""

    processes: LocalProcesses
    client: Cluster

    @property
    def directory(self) -> Path:
        return self.processes.plan.directory


@asynccontextmanager
async def private_cluster(
    target: Target, nodes: int, metadata: int = 1, timeout_s: float = limits.REQUEST_TIMEOUT_S
) -> AsyncIterator[PrivateCluster]:
    """Start a cluster and connect to it; all of it is gone at the end of the block."""
    with TemporaryDirectory(prefix="loom-bench-", dir=target.data) as scratch:
        plan = ClusterPlan(
            directory=Path(scratch),
            nodes=nodes,
            metadata=metadata,
            sync=target.sync,
            secure=target.secure,
        )
        async with (
            running(plan) as processes,
            connected(processes.address, timeout_s, processes.tls) as client,
        ):
            yield PrivateCluster(processes, client)

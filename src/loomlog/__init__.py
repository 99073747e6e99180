"""loomlog: a distributed shared log. Many writers, many nodes, one total order.

The public API. Names are loaded when they are first used: a server does not load the client, and
`loom status` does not load Arrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loomlog import errors as errors
    from loomlog.client.blocking import BlockingCluster as BlockingCluster
    from loomlog.client.blocking import BlockingLog as BlockingLog
    from loomlog.client.blocking import connect_sync as connect_sync
    from loomlog.client.blocking_landmarks import BlockingCheckpoint as BlockingCheckpoint
    from loomlog.client.blocking_registers import BlockingLease as BlockingLease
    from loomlog.client.blocking_registers import BlockingRegister as BlockingRegister
    from loomlog.client.blocking_writer import BlockingWriter as BlockingWriter
    from loomlog.client.checkpoints import Checkpoint as Checkpoint
    from loomlog.client.checkpoints import CheckpointInfo as CheckpointInfo
    from loomlog.client.cluster import Cluster as Cluster
    from loomlog.client.cluster import connect as connect
    from loomlog.client.info import ClusterStatus as ClusterStatus
    from loomlog.client.info import LogInfo as LogInfo
    from loomlog.client.leases import Lease as Lease
    from loomlog.client.leases import LeaseInfo as LeaseInfo
    from loomlog.client.log import Log as Log
    from loomlog.client.operator import Change as Change
    from loomlog.client.publishing import Published as Published
    from loomlog.client.publishing import Writer as Writer
    from loomlog.client.registers import Register as Register
    from loomlog.client.registers import Versioned as Versioned
    from loomlog.client.staging import Staged as Staged
    from loomlog.types import Entry as Entry
    from loomlog.types import Gap as Gap
    from loomlog.types import Position as Position

_HOMES = {
    "BlockingCheckpoint": "loomlog.client.blocking_landmarks",
    "BlockingCluster": "loomlog.client.blocking",
    "BlockingLease": "loomlog.client.blocking_registers",
    "BlockingLog": "loomlog.client.blocking",
    "BlockingRegister": "loomlog.client.blocking_registers",
    "BlockingWriter": "loomlog.client.blocking_writer",
    "Change": "loomlog.client.operator",
    "Checkpoint": "loomlog.client.checkpoints",
    "CheckpointInfo": "loomlog.client.checkpoints",
    "Cluster": "loomlog.client.cluster",
    "ClusterStatus": "loomlog.client.info",
    "Entry": "loomlog.types",
    "Gap": "loomlog.types",
    "Lease": "loomlog.client.leases",
    "LeaseInfo": "loomlog.client.leases",
    "Log": "loomlog.client.log",
    "LogInfo": "loomlog.client.info",
    "Position": "loomlog.types",
    "Published": "loomlog.client.publishing",
    "Register": "loomlog.client.registers",
    "Staged": "loomlog.client.staging",
    "Versioned": "loomlog.client.registers",
    "Writer": "loomlog.client.publishing",
    "connect": "loomlog.client.cluster",
    "connect_sync": "loomlog.client.blocking",
}
_MODULES = ("columns", "errors", "testing")

__all__ = [
    "BlockingCheckpoint",
    "BlockingCluster",
    "BlockingLease",
    "BlockingLog",
    "BlockingRegister",
    "BlockingWriter",
    "Change",
    "Checkpoint",
    "CheckpointInfo",
    "Cluster",
    "ClusterStatus",
    "Entry",
    "Gap",
    "Lease",
    "LeaseInfo",
    "Log",
    "LogInfo",
    "Position",
    "Published",
    "Register",
    "Staged",
    "Versioned",
    "Writer",
    "connect",
    "connect_sync",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"loomlog.{name}")
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("loomlog")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'loomlog' has no attribute {name!r}")
    found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})

"""loomlog: a distributed shared log. Many writers, many nodes, one total order.

`connect` (or, without asyncio, `connect_sync`) returns a `Cluster`, whose `create_log` and `log`
return a `Log` to append to and read from. All errors are in `loomlog.errors`.

Names are imported on first use, so that a server does not load the client, and `loom status` does
not load Arrow.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loomlog import errors as errors
    from loomlog.client.append.pipeline import Pipeline as Pipeline
    from loomlog.client.blocking import BlockingCluster as BlockingCluster
    from loomlog.client.blocking import BlockingLog as BlockingLog
    from loomlog.client.blocking import BlockingWriter as BlockingWriter
    from loomlog.client.blocking import connect_sync as connect_sync
    from loomlog.client.blocking.contexts import BlockingGroup as BlockingGroup
    from loomlog.client.blocking.kv import BlockingCheckpoint as BlockingCheckpoint
    from loomlog.client.blocking.kv import BlockingLease as BlockingLease
    from loomlog.client.blocking.kv import BlockingRegister as BlockingRegister
    from loomlog.client.cluster import Cluster as Cluster
    from loomlog.client.cluster import connect as connect
    from loomlog.client.groups.group import Group as Group
    from loomlog.client.groups.group import GroupInfo as GroupInfo
    from loomlog.client.kv.checkpoints import Checkpoint as Checkpoint
    from loomlog.client.kv.checkpoints import CheckpointInfo as CheckpointInfo
    from loomlog.client.kv.leases import Lease as Lease
    from loomlog.client.kv.leases import LeaseInfo as LeaseInfo
    from loomlog.client.kv.registers import Register as Register
    from loomlog.client.kv.registers import Versioned as Versioned
    from loomlog.client.log import Log as Log
    from loomlog.client.operator_results import Change as Change
    from loomlog.client.publish.stager import Staged as Staged
    from loomlog.client.publish.writer import Published as Published
    from loomlog.client.publish.writer import Writer as Writer
    from loomlog.client.queues.queue import Job as Job
    from loomlog.client.queues.queue import Queue as Queue
    from loomlog.client.transactions.transaction import Transaction as Transaction
    from loomlog.types import Entry as Entry
    from loomlog.types import Gap as Gap
    from loomlog.types import Position as Position
    from loomlog.wire.events import EventInfo as EventInfo
    from loomlog.wire.info import ClusterStatus as ClusterStatus
    from loomlog.wire.info import LogInfo as LogInfo

logging.getLogger(__name__).addHandler(logging.NullHandler())  # programs decide what is shown

_MODULE_OF = {
    "BlockingCheckpoint": "loomlog.client.blocking.kv",
    "BlockingCluster": "loomlog.client.blocking",
    "BlockingGroup": "loomlog.client.blocking.contexts",
    "BlockingLease": "loomlog.client.blocking.kv",
    "BlockingLog": "loomlog.client.blocking",
    "BlockingRegister": "loomlog.client.blocking.kv",
    "BlockingWriter": "loomlog.client.blocking",
    "Change": "loomlog.client.operator_results",
    "Checkpoint": "loomlog.client.kv.checkpoints",
    "CheckpointInfo": "loomlog.client.kv.checkpoints",
    "Cluster": "loomlog.client.cluster",
    "ClusterStatus": "loomlog.wire.info",
    "Entry": "loomlog.types",
    "EventInfo": "loomlog.wire.events",
    "Gap": "loomlog.types",
    "Group": "loomlog.client.groups.group",
    "GroupInfo": "loomlog.client.groups.group",
    "Job": "loomlog.client.queues.queue",
    "Lease": "loomlog.client.kv.leases",
    "LeaseInfo": "loomlog.client.kv.leases",
    "Log": "loomlog.client.log",
    "LogInfo": "loomlog.wire.info",
    "Pipeline": "loomlog.client.append.pipeline",
    "Position": "loomlog.types",
    "Published": "loomlog.client.publish.writer",
    "Queue": "loomlog.client.queues.queue",
    "Register": "loomlog.client.kv.registers",
    "Staged": "loomlog.client.publish.stager",
    "Transaction": "loomlog.client.transactions.transaction",
    "Versioned": "loomlog.client.kv.registers",
    "Writer": "loomlog.client.publish.writer",
    "connect": "loomlog.client.cluster",
    "connect_sync": "loomlog.client.blocking",
}
_SUBMODULES = ("codecs", "columns", "errors", "testing")

__all__ = [
    "BlockingCheckpoint",
    "BlockingCluster",
    "BlockingGroup",
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
    "EventInfo",
    "Gap",
    "Group",
    "GroupInfo",
    "Job",
    "Lease",
    "LeaseInfo",
    "Log",
    "LogInfo",
    "Pipeline",
    "Position",
    "Published",
    "Queue",
    "Register",
    "Staged",
    "Transaction",
    "Versioned",
    "Writer",
    "connect",
    "connect_sync",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"loomlog.{name}")
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("loomlog")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'loomlog' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})

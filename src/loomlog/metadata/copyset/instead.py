"""Name the alternatives to unsupported changes of a stream, for operators of `copyset` logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from loomlog.wire import loomlog_pb2 as pb

_REPLICAS: Final = "`loom log switch LOG --replicas N` gives the log another number of copies"
_SEAL: Final = "it is not sealed by hand: `loom acl revoke` takes the permission to append away"

INSTEAD: Final[Mapping[int, str]] = {
    pb.ChangeStream.SEAL: _SEAL,
    pb.ChangeStream.UNSEAL: _SEAL,
    pb.ChangeStream.ADD: "`loom log switch LOG --nodeset N` puts it on more nodes",
    pb.ChangeStream.REMOVE: (
        "it is removed with its segment, once `loom log trim LOG` has trimmed all entries"
    ),
    pb.ChangeStream.MOVE: (
        "`loom node drain NODE` takes its copies off a node, and `loom rebalance` lets new entries "
        "use other nodes"
    ),
    pb.ChangeStream.UNREGISTER: _REPLICAS,
    pb.ChangeStream.ADD_REPLICA: _REPLICAS,
    pb.ChangeStream.SYNC: (
        "missing copies are made without a command: `loom node rebuild-status` shows how far that "
        "is, and `loom stream scrub STREAM` looks for others"
    ),
}

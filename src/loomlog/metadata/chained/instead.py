"""Name the alternatives to unsupported changes of a stream, for operators of `chained` logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from loomlog.wire import loomlog_pb2 as pb

_REPLICAS: Final = "`loom log switch LOG --replicas N` gives the log another number of replicas"
_SEAL: Final = "it is not sealed by hand: `loom acl revoke` takes the permission to append away"

INSTEAD: Final[Mapping[int, str]] = {
    pb.ChangeStream.SEAL: _SEAL,
    pb.ChangeStream.UNSEAL: _SEAL,
    pb.ChangeStream.UNREGISTER: _REPLICAS,
    pb.ChangeStream.ADD_REPLICA: _REPLICAS,
}

"""Decide which peers may send requests of an epoch: the node to which the epoch was granted.

Any peer can send a request of any epoch, so the metadata repository is asked about an unknown one:
once for each epoch of a log, and for each forged one.
"""

from __future__ import annotations

from typing import Final

from loomlog.core.copyset.messages import NodeRequest, Reassign, Restore, Store
from loomlog.core.copyset.record import Epoch
from loomlog.errors import Unauthorized, Unavailable
from loomlog.node.copyset.copies import Copies
from loomlog.node.copyset.epoch_store import EpochStoreClient
from loomlog.wire.link import Connection

_OF_HOLDERS: Final = (Store, Restore, Reassign)


class Grants:
    """Knows, or learns, whether a peer may send a request of an epoch."""

    def __init__(self, epochs: EpochStoreClient) -> None:
        self._epochs = epochs

    def may(self, connection: Connection, request: NodeRequest, epoch: Epoch) -> bool:
        """Return whether the peer is known to be allowed to send this; without TLS, every peer is.
        A node that has a copy may store it where it is missing."""
        if not connection.is_encrypted:
            return True
        log, node = request.log, connection.principal.number
        return self._epochs.is_sequencer(log, node, epoch) or (
            isinstance(request, _OF_HOLDERS) and self._epochs.is_holder(log, node)
        )

    async def check(
        self, connection: Connection, copies: Copies, request: NodeRequest, epoch: Epoch
    ) -> bool:
        """Ask the metadata repository; raise LoomError if it does not answer."""
        for _ in range(2):  # an answer that was on its way before may be too old
            await self._epochs.ask_granted(request.log)
            if copies.is_granted(request.log, epoch) and self.may(connection, request, epoch):
                return True
        return False

    async def verify(
        self, connection: Connection, copies: Copies, request: NodeRequest, epoch: Epoch
    ) -> None:
        """Raise Unavailable unless the epoch is known to be granted, and Unauthorized if it was
        granted to another node than this peer."""
        if await self.check(connection, copies, request, epoch):
            return
        log = request.log
        if copies.is_granted(log, epoch):
            raise Unauthorized(
                f"{connection.principal} may not change what others have of epoch {epoch} of "
                f"loglet {log}: another node took it"
            )
        raise Unavailable(
            f"epoch {epoch} of loglet {log} was never granted: the newest one is "
            f"{self._epochs.granted.get(log, 0)}"
        )

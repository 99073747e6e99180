"""The replicas of a node that may have forgotten blocks in a crash before the last start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import Request
from loomlog.core.chained.replica import Standing

ASK_AGAIN_S: Final = 0.5  # after the last registration


class ForgetfulReplicas:
    """Keeps the replicas that the metadata repository named when the node registered. They serve
    nothing until they are sealed for an epoch that takes the crash into account.

    The node may have been sealed for such an epoch before it was started again, and have registered
    before that epoch was in force. Then it is not sealed again. So if a request names the epoch for
    which a replica is sealed, the node registers again."""

    def __init__(self, register_again: Callable[[], None]) -> None:
        self._register_again = register_again
        self.replicas: set[Replica] = set()
        self._known_s = 0.0  # when the node registered

    def __contains__(self, replica: Replica) -> bool:
        return replica in self.replicas

    def registered(self, replicas: Iterable[Replica]) -> None:
        """Called with the answer to a registration."""
        self.replicas = set(replicas)
        self._known_s = asyncio.get_running_loop().time()

    def sealed(self, replica: Replica) -> None:
        """Called when a replica was sealed."""
        self.replicas.discard(replica)

    def refused(self, replica: Replica, request: Request, standing: Standing | None) -> None:
        """Called when a request was refused because the replica may have forgotten blocks."""
        if replica not in self or standing is None:
            return
        is_of_epoch = getattr(request, "epoch", 0) == standing.epoch > 0
        known_for_s = asyncio.get_running_loop().time() - self._known_s
        if is_of_epoch and known_for_s >= ASK_AGAIN_S:
            self._register_again()

"""Who sequences a segment: the node that its log likes most, of those that are alive.

Whoever is asked and does not sequence names the one who does. That is remembered until it does not
answer any more, or knows better itself.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from loomlog.client import backoff
from loomlog.client.copyset.segments import Segments, View
from loomlog.core.copyset.lsn import Epoch
from loomlog.core.copyset.placement import sequencer_of
from loomlog.errors import NotLeader, Retryable, Unavailable
from loomlog.net.connection import Connection
from loomlog.types import Buffer, LogId
from loomlog.wire import loomlog_pb2 as pb

HOPS_MAX: Final = 3  # from one who names another, without a pause


class Sequencers:
    """Of the copyset segments of one log, for one client."""

    def __init__(self, segments: Segments, rng: random.Random) -> None:
        self._segments = segments
        self._rng = rng
        self._named: dict[LogId, str] = {}  # the address of who was said to sequence it
        self._told: dict[LogId, tuple[str, Epoch]] = {}  # by whom, in which epoch

    def address(self, view: View) -> str:
        """Of who should be asked next."""
        return self._named.get(view.loglet) or _chosen(view)

    async def connect(self, view: View) -> Connection:
        return await self._segments.connect_to(self.address(view))

    def epoch(self, view: View, address: str) -> Epoch:
        """In which whoever is there sequences, or would begin to, as far as is known."""
        state = view.state
        told_by, told = self._told.get(view.loglet, ("", 0))
        if told_by == address and told >= state.epoch:
            return told
        node = view.nodes.get(state.sequencer)
        return state.epoch if node is not None and node.address == address else state.epoch + 1

    def told_epoch(self, view: View, address: str, epoch: Epoch) -> None:
        self._told[view.loglet] = address, epoch

    async def ask(
        self, view: View, frame: pb.Frame, timeout_s: float, payload: Sequence[Buffer] = ()
    ) -> pb.Frame:
        """What the sequencer answers; of something that may be asked twice."""
        for _ in range(HOPS_MAX):
            try:
                connection = await self.connect(view)
                answer: pb.Frame
                answer, _ = await connection.request(frame, payload, timeout_s=timeout_s)
                return answer
            except Retryable as error:
                self.failed(view, error)
                if not isinstance(error, NotLeader):
                    raise
        raise Unavailable(f"who sequences stream {view.stream} is being decided: try again")

    def failed(self, view: View, error: Retryable) -> None:
        """Who was asked did not do it."""
        leader = error.leader if isinstance(error, NotLeader) else ""
        if leader and leader != self._named.get(view.loglet):
            self._named[view.loglet] = leader
        else:
            self._named.pop(view.loglet, None)

    def pause_s(self, attempts: int) -> float:
        return backoff.delay_s(attempts, self._rng)


def _chosen(view: View) -> str:
    """As nodes choose it, too."""
    alive = [node for node in view.nodes.values() if node.alive]
    staying = [node for node in alive if not node.draining] or alive
    chosen = sequencer_of(view.loglet, {node.node_id: 1.0 for node in staying})
    if chosen is None:
        raise Unavailable(f"no node is there that could sequence stream {view.stream}")
    return view.nodes[chosen].address

"""Finds a segment's sequencer: the live node with the highest rendezvous hash for the segment.

A node that is not the sequencer names the one it knows. That one is remembered until it fails or
names another.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from loomlog.client.loglets.copyset.known_segments import Segments, View
from loomlog.client.servers import BACKOFF
from loomlog.core.copyset.nodeset import sequencer_of
from loomlog.core.copyset.record import Epoch
from loomlog.errors import NotLeader, Retryable, Unavailable
from loomlog.types import Buffer, LogId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

HOPS_MAX: Final = 3  # redirects followed without a pause


class Sequencers:
    """The sequencers of the copyset segments of one log."""

    def __init__(self, segments: Segments, rng: random.Random) -> None:
        self._segments = segments
        self._rng = rng
        self._named: dict[LogId, str] = {}  # address of the sequencer named by a redirect
        self._told: dict[LogId, tuple[str, Epoch]] = {}  # epoch reported by an address

    def address(self, view: View) -> str:
        """Return the address of the node to ask next."""
        return self._named.get(view.loglet) or _chosen(view)

    async def connect(self, view: View) -> Connection:
        return await self._segments.connect_to(self.address(view))

    def epoch(self, view: View, address: str) -> Epoch:
        """Return the epoch in which the node at `address` sequences, or would start to."""
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
        """Return the sequencer's answer to an idempotent request, following redirects."""
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
        raise Unavailable(f"the sequencer of stream {view.stream} is being chosen: try again")

    def failed(self, view: View, error: Retryable) -> None:
        """Note that the node asked failed, or named another sequencer."""
        leader = error.leader if isinstance(error, NotLeader) else ""
        if leader and leader != self._named.get(view.loglet):
            self._named[view.loglet] = leader
        else:
            self._named.pop(view.loglet, None)

    def pause_s(self, attempts: int) -> float:
        return BACKOFF.delay_s(attempts, self._rng)


def _chosen(view: View) -> str:
    """Return the address of the node that nodes choose as sequencer, too."""
    alive = [node for node in view.nodes.values() if node.alive]
    staying = [node for node in alive if not node.draining] or alive
    chosen = sequencer_of(view.loglet, {node.node_id: 1.0 for node in staying})
    if chosen is None:
        raise Unavailable(f"no node is alive that could sequence stream {view.stream}")
    return view.nodes[chosen].address

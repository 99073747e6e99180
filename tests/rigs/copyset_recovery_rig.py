"""Nodes and an epoch store in memory, and what asks them, a round at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from copyset_node import CopysetNode

from loomlog.core.copyset.late_losses import miss
from loomlog.core.copyset.log_state import presume, set_clean
from loomlog.core.copyset.messages import (
    EpochStoreRequest,
    LogState,
    Miss,
    NodeRequest,
    SealedAt,
    SetClean,
    Store,
)
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.presumption import Presume
from loomlog.core.copyset.procedures import Answer, CopysetAsk, Exchange, Steps
from loomlog.core.copyset.record import Kind, Record, make
from loomlog.core.copyset.recovery import Ending, Recovery
from loomlog.core.requests import Lost
from loomlog.types import NodeId

LOG = 1
NOW_US = 1_000
Outcome = TypeVar("Outcome")
Hook = Callable[[CopysetAsk], Answer | None]


def let_through(ask: CopysetAsk) -> Answer | None:
    return None


class RecoveryRig:
    """`epoch` is the newest one; nothing before it is clean. `racks`: a letter for each node."""

    def __init__(
        self, count: int = 4, replication: int = 3, epoch: int = 2, racks: str = ""
    ) -> None:
        self.nodes = {n: CopysetNode(n) for n in range(1, (len(racks) or count) + 1)}
        members = tuple(Member(n, racks[n - 1 : n]) for n in self.nodes)
        self.metadata = EpochMetadata(1, members, replication)
        self.state = LogState(epoch, 1, (self.metadata,), 0, 0)
        self.down: set[NodeId] = set()
        self.lives: dict[NodeId, int] = {}
        self.asked: list[CopysetAsk] = []

    # ---- what is stored

    def write(
        self,
        offset: int,
        *nodes: NodeId,
        epoch: int = 1,
        count: int = 1,
        wave: int = 1,
        lng: int = 0,
        copyset: tuple[NodeId, ...] = (),
    ) -> Record:
        record = Record(make(epoch, offset), count, Kind.DATA, 7, copyset or nodes, wave, lng)
        record = record._replace(batch=b"batch of %d" % offset)
        for node in nodes:
            self.nodes[node].answer(Store(LOG, record))
        return record

    def copies(self, first: int, epoch: int = 1) -> dict[NodeId, Record]:
        found = {n: node.records(LOG).by_first for n, node in self.nodes.items()}
        return {n: kept[lsn] for n, kept in found.items() if (lsn := make(epoch, first)) in kept}

    def pieces(self, node: NodeId, epoch: int = 1) -> list[tuple[int, int, Kind]]:
        records = [r for r in self.nodes[node].records(LOG).all() if r.epoch == epoch]
        return [(r.offset, r.last - make(epoch, 0), r.kind) for r in records]

    def lose_disk(self, node: NodeId) -> None:
        self.nodes[node] = CopysetNode(node)

    # ---- who asks

    def recover(self, hook: Hook = let_through) -> Ending:
        return self.drive(Recovery(LOG, self.state.epoch).attempt({}, NOW_US), hook)

    def drive(self, steps: Steps[Outcome], hook: Hook = let_through) -> Outcome:
        try:
            asked = next(steps)
            while True:
                asked = steps.send(self.answer(asked, hook))
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome

    def answer(self, asked: Exchange, hook: Hook = let_through) -> list[Answer]:
        return [hook(ask) or self._answer(ask) for ask in asked.asks]

    def _answer(self, ask: CopysetAsk) -> Answer:
        self.asked.append(ask)
        target, request = ask
        if not isinstance(target, int):
            assert not isinstance(request, NodeRequest)
            return self._serve(request)
        assert isinstance(request, NodeRequest)
        answer = Lost() if target in self.down else self.nodes[target].answer(request)
        if isinstance(answer, SealedAt):
            answer = replace(answer, life=self.lives.get(target, 0))
        return answer

    def _serve(self, request: EpochStoreRequest) -> LogState:
        if isinstance(request, SetClean):
            self.state = set_clean(self.state, request)
        if isinstance(request, Presume):
            self.state = presume(self.state, request)
        if isinstance(request, Miss):
            self.state = miss(self.state, request)
        return self.state

    def next_sequencer(self) -> None:
        self.state = replace(self.state, epoch=self.state.epoch + 1)

    def requests(self, kind: type[Outcome], targets: Iterable[NodeId] = ()) -> list[Outcome]:
        wanted = set(targets) or set(self.nodes)
        found = [ask.request for ask in self.asked if ask.target in wanted]
        return [request for request in found if isinstance(request, kind)]

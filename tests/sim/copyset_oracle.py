"""Looks into all nodes of a simulated copyset log at once, as no reader can."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from copyset_judge import Violation
from copyset_parties import Node

from loomlog.core.copyset.authority import Authority
from loomlog.core.copyset.lsn import OFFSET_MAX, Epoch, Lsn, epoch_of, make, offset_of, words
from loomlog.core.copyset.record import Kind, Record
from loomlog.types import NodeId

if TYPE_CHECKING:
    from copyset_world import World


class Oracle:
    def __init__(self, world: World) -> None:
        self._world = world
        self._lasts: dict[Epoch, int] = {}  # of clean epochs: the last record

    # ---- what nodes show

    def peek(self) -> None:
        """Ask all nodes that are up for everything: what a reader could see now."""
        shown: list[Record] = []
        looked: dict[NodeId, Lsn] = {}
        for node in self._world.nodes.values():
            if not node.up:
                continue
            answer = node.peek(1)
            shown += answer.records
            if node.authority is Authority.FULL:
                looked[node.node_id] = answer.next_lsn
        for record in shown:
            self._check_order(record)
            self._world.judge.seen(record)
        self._check_gaps(shown, looked)

    def _check_order(self, record: Record) -> None:
        if record.epoch - 1 > self._world.store.state.last_clean:
            raise Violation(f"{words(record.first)} is shown before all epochs before it are clean")

    def _check_gaps(self, shown: list[Record], looked: dict[NodeId, Lsn]) -> None:
        """Where an f-majority has nothing, nothing must have been."""
        state = self._world.store.state
        for epoch in range(1, state.epoch + 1):
            metadata = state.metadata_of(epoch)
            passed = [n for n in metadata.nodes if looked.get(n, 0) > make(epoch, 1)]
            if not metadata.is_f_majority(passed):
                continue
            there = sorted((r.offset, offset_of(r.last)) for r in shown if r.epoch == epoch)
            for lsn in self._missing(epoch, there):
                if metadata.is_f_majority([n for n in passed if looked[n] > lsn]):
                    self._missed(lsn)

    def _missing(self, epoch: Epoch, there: list[tuple[int, int]]) -> list[Lsn]:
        """LSNs that nobody shows, of those where there was something."""
        last = self._lasts.get(epoch)
        highest = OFFSET_MAX if last is None else last
        missing, offset = [], 1
        for first, end in there:
            if offset < first:
                missing.append(make(epoch, offset))
            offset = max(offset, end + 1)
        if offset <= highest and (last is not None or offset_of(self._released(epoch)) >= offset):
            missing.append(make(epoch, offset))
        trimmed = self._world.judge.trimmed
        return [lsn for lsn in missing if lsn > trimmed]

    def _released(self, epoch: Epoch) -> Lsn:
        released = [node.records.standing.released for node in self._world.nodes.values()]
        return max((lsn for lsn in released if epoch_of(lsn) == epoch), default=0)

    def _missed(self, lsn: Lsn) -> None:
        judge = self._world.judge
        if epoch_of(lsn) not in judge.doubtful and not self._is_lost(lsn):
            raise Violation(f"nothing is shown at {words(lsn)}")
        for record in judge.acknowledged.values():
            if record.first <= lsn <= record.last and record.first not in judge.lost:
                raise Violation(f"{record} was acknowledged, and is not shown")

    def _is_lost(self, lsn: Lsn) -> bool:
        judge = self._world.judge
        return any(first <= lsn <= judge.given_out[first].last for first in judge.lost)

    # ---- what nodes have

    def cleaned(self, epoch: Epoch) -> None:
        """An epoch is recovered: from now on it is as it is."""
        world = self._world
        nodes = world.nodes.values()
        ends = [end for node in nodes if (end := node.records.end_of(epoch)) is not None]
        if not ends:  # all disks were lost meanwhile
            world.judge.doubtful.add(epoch)
            return
        final = max(ends, key=lambda end: end.precedence)
        self._lasts[epoch] = final.last
        metadata = world.store.state.metadata_of(epoch)
        full = [node.node_id for node in nodes if node.authority is Authority.FULL]
        if not metadata.is_f_majority(full):
            world.judge.doubtful.add(epoch)
        for node in nodes:
            if node.records.end_of(epoch) == final:
                for record in self._records(node, epoch):
                    world.judge.seen(record)

    def _records(self, node: Node, epoch: Epoch) -> list[Record]:
        return [r for r in node.records.all() if r.epoch == epoch]

    def look_for_losses(self, lsns: Iterable[Lsn]) -> None:
        """Which of these records nobody has any more whose word counts; and of which epochs nobody
        is left who knows anything."""
        judge, state = self._world.judge, self._world.store.state
        full = [n for n in self._world.nodes.values() if n.authority is Authority.FULL]
        there = {record.first for node in full for record in node.records.all()}
        for lsn in set(lsns) & judge.given_out.keys() - there:
            if judge.given_out[lsn].last > judge.trimmed:
                judge.lost.add(lsn)
        counting = {node.node_id for node in full}
        for epoch in range(1, state.epoch + 1):
            if not counting.intersection(state.metadata_of(epoch).nodes):
                judge.doubtful.add(epoch)

    def somewhere_released(self) -> Lsn:
        node = self._world.random.choice([*self._world.nodes.values()])
        shown = node.peek(1).records
        return self._world.random.choice(shown).last if shown else 0

    # ---- at the end

    def look_at_the_end(self) -> None:
        """Everything is released and purged: all that is anywhere is shown, and is complete."""
        self.peek()
        world = self._world
        holders: dict[tuple[Lsn, Lsn, Kind], set[NodeId]] = {}
        for node in world.nodes.values():
            for record in node.records.all():
                world.judge.seen(record)
                holders.setdefault((record.first, record.last, record.kind), set()).add(
                    node.node_id
                )
        self._check_copies(holders)

    def _check_copies(self, holders: dict[tuple[Lsn, Lsn, Kind], set[NodeId]]) -> None:
        world = self._world
        unlucky = set(world.unlucky)
        for (first, last, kind), nodes in holders.items():
            metadata = world.store.state.metadata_of(epoch_of(first))
            if last > world.judge.trimmed and not metadata.can_hold_a_copyset(nodes | unlucky):
                raise Violation(f"[{words(first)}, {words(last)}] {kind.name} is only on {nodes}")

"""The rules of rebuilding, checked while a simulation runs, with a look into all nodes.

- When a shard is rebuilt, or leaves a nodeset before that, every record has all its copies on other
  shards, which are intact.
- Copies never differ from what was appended, and nothing that is trimmed comes back.
- Readers see everything, in whatever state the log was when they began.
- A condition names every loss that readers see.
- When all is calm, every record has all its copies on intact shards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from violation import Violation

from loomlog.core.copyset.effects import (
    AskShard,
    Deliver,
    GapKind,
    NeedMetadata,
    ReaderEffect,
    ReadGap,
    SetTimer,
)
from loomlog.core.copyset.log_state import still_lossy
from loomlog.core.copyset.messages import Delivered, LogState
from loomlog.core.copyset.reader import CopysetReader
from loomlog.core.copyset.rebuild import events
from loomlog.core.copyset.rebuild.events import RebuildState, Status
from loomlog.core.copyset.record import Epoch, Kind, Lsn, Record, epoch_of, lsn_words
from loomlog.types import ShardId

if TYPE_CHECKING:
    from rebuild_world import RebuildWorld

READ_STEPS = 100


class RebuildJudge:
    def __init__(self, world: RebuildWorld) -> None:
        self._world = world
        self.truth: dict[Lsn, Record] = {}  # by first LSN
        self.lost: set[Lsn] = set()  # all copies are gone
        self.read_records = 0

    def lost_disk(self) -> None:
        """Called when a node has lost its disk."""
        nodes = self._world.nodes.values()
        there = {first for node in nodes for first in node.records.by_first}
        untrimmed = [r.first for r in self.truth.values() if r.last > self._world.trimmed]
        self.lost.update(first for first in untrimmed if first not in there)

    def rebuilt(self, shard: ShardId, through: Epoch, before: RebuildState, version: int) -> None:
        """Called when a shard counts as rebuilt."""
        if version != before.version:
            raise Violation(f"shard {shard} is rebuilt in an older version")
        waiting = events.rebuilt(self._world.replica.state)
        self._check_copies(f"shard {shard} is rebuilt", shard if waiting else None)
        self._check_names(shard, through, is_refilled=before.status(shard) is Status.REFILLING)
        self.read(self._world.state)

    def left(self, shard: ShardId, before: LogState) -> None:
        """Called when a shard has left nodesets before it counts as rebuilt."""
        holders, state = self._holders(), self._world.state
        unnoticed = {n for n, node in self._world.nodes.items() if node.lost}
        for first, record in self.truth.items():
            metadata = state.metadata_of(epoch_of(first))
            is_left = shard in before.metadata_of(epoch_of(first)).shards
            if record.last <= self._world.trimmed or not is_left or shard in metadata.shards:
                continue
            held = holders.get(first, set()) | unnoticed
            if first not in self.lost and not metadata.can_hold_a_copyset(held):
                raise Violation(f"shard {shard} left {lsn_words(first)}, which is only on {held}")
        self.read(before)

    def _check_names(self, shard: ShardId, through: Epoch, *, is_refilled: bool) -> None:
        """Check that no copy still names a shard that counts as rebuilt, unless it was refilled and
        has that copy, or left the nodeset: a later donor would rely on it."""
        if is_refilled and self._world.nodes[shard].lost:
            return  # its disk is lost again, which starts a new rebuild when it returns
        there = self._world.nodes[shard].records.by_first if is_refilled else {}
        for n in self._world.donors():
            for copy in self._world.nodes[n].records.all():
                is_due = copy.epoch <= through and copy.last > self._world.trimmed
                is_due &= {n, shard} <= {*self._world.state.metadata_of(copy.epoch).shards}
                if n != shard and is_due and shard in copy.copyset and copy.first not in there:
                    raise Violation(f"shard {shard} is rebuilt, and node {n} has {copy}")

    def look_at_the_end(self) -> None:
        self._check_copies("all is calm")
        self._check_contents()
        self._check_copysets()
        if not self.read(self._world.state):
            raise Violation("a reader does not get to the end")

    def _check_copies(self, when: str, shard: ShardId | None = None) -> None:
        """Check all records, or those that a shard may have had, if others wait for something."""
        if self._world.disaster:
            return
        holders = self._holders()
        state = self._world.state
        unnoticed = {n for n, node in self._world.nodes.items() if node.lost}
        for first, record in self.truth.items():
            metadata = state.metadata_of(epoch_of(first))
            if record.last <= self._world.trimmed or epoch_of(first) > state.last_clean:
                continue
            if shard is not None and shard not in metadata.shards:
                continue
            if not metadata.can_hold_a_copyset(holders.get(first, set()) | unnoticed):
                raise Violation(
                    f"{when}, and {lsn_words(first)} of {metadata} is only on {holders.get(first)}"
                )

    def _holders(self) -> dict[Lsn, set[ShardId]]:
        holders: dict[Lsn, set[ShardId]] = {}
        endangered = {n for n in self._world.nodes if self._world.nodes[n].lost}
        for node in self._world.holding():
            for record in node.records.all() if node.node_id not in endangered else ():
                holders.setdefault(record.first, set()).add(node.node_id)
        return holders

    def _check_contents(self) -> None:
        for n, node in self._world.nodes.items():
            for copy in node.records.all():
                record = self.truth[copy.first]
                if (copy.count, copy.kind, copy.batch) != (record.count, record.kind, record.batch):
                    raise Violation(f"node {n} has {copy}; appended was {record}")
                if copy.last <= node.records.standing.trimmed:
                    raise Violation(f"node {n} has {copy}, which it trimmed")

    def _check_copysets(self) -> None:
        """Check that, whichever copies are lost, one that is left names one of them, as long as
        fewer are lost than a record has: nobody else would know. Not where operators know that
        entries may be lost: all that is left may be what interrupted donors stored."""
        holders = self._holders()
        lossy = still_lossy(self._world.state, self._world.lossy)
        for first, record in self.truth.items():
            if record.last <= self._world.trimmed or epoch_of(first) in lossy:
                continue
            held = holders.get(first, set())
            metadata = self._world.state.metadata_of(epoch_of(first))
            for gone in _parts_of(held):
                left = held - gone
                is_harm = not metadata.can_hold_a_copyset(left)
                named = {n for other in left for n in self._copy(other, first).copyset}
                if is_harm and named.isdisjoint(gone) and not metadata.can_hold_a_copyset(gone):
                    raise Violation(f"{left} do not name {gone}, which have {lsn_words(first)}")

    def _copy(self, shard: ShardId, first: Lsn) -> Record:
        return self._world.nodes[shard].records.by_first[first]

    # ---- reading

    def read(self, state: LogState) -> bool:
        """Read everything, beginning with a state of the log. Return whether that was possible:
        some nodes may be away."""
        world = self._world
        ends = [r.last for r in self.truth.values() if r.kind is Kind.DATA]
        if not ends:
            return True
        reader = CopysetReader(1, 1, max(ends))
        authorities = {n: events.authority(world.replica.state, n) for n in world.nodes}
        effects = reader.learn_state(state, 0.0)
        effects += reader.learn_authorities(authorities, 0.0)
        now, timer = 0.0, 0.0
        seen: set[Lsn] = set()
        for _ in range(READ_STEPS):
            if reader.finished and not effects:
                break
            if not effects:
                now = max(now, timer) + 0.01
                effects = reader.woken(now)
            todo, effects = effects, []
            for effect in todo:
                if isinstance(effect, SetTimer):
                    timer = effect.at
                elif isinstance(effect, Deliver | ReadGap):
                    self._saw(effect, seen)
                    if isinstance(effect, Deliver):
                        effects += reader.consumed(1, now)
                else:
                    effects += self._answer(reader, effect, now)
        if reader.finished:
            self._check_seen(seen)
        return reader.finished

    def _answer(
        self, reader: CopysetReader, effect: ReaderEffect, now: float
    ) -> list[ReaderEffect]:
        match effect:
            case NeedMetadata():
                return reader.learn_state(self._world.state, now)
            case AskShard(node_id, question, request):
                node = self._world.nodes[node_id]
                answer = node.answer(request) if node.up else None
                if isinstance(answer, Delivered):
                    return reader.answered(node_id, question, answer, now)
                return reader.failed(node_id, question, now)
        return []

    def _saw(self, effect: Deliver | ReadGap, seen: set[Lsn]) -> None:
        if isinstance(effect, Deliver):
            record = self.truth[effect.record.first]
            if effect.record.batch != record.batch:
                raise Violation(f"{effect.record} is shown; appended was {record}")
            seen.add(record.first)
        elif effect.kind is GapKind.DATALOSS and not self._is_lost(effect):
            first, last = lsn_words(effect.first), lsn_words(effect.last)
            raise Violation(f"[{first}, {last}] is said to be lost")
        elif effect.kind is GapKind.DATALOSS:
            self._check_told(effect)

    def _check_told(self, gap: ReadGap) -> None:
        state, lossy = self._world.state, self._world.lossy
        if epoch_of(gap.first) not in still_lossy(state, lossy):
            raise Violation(f"operators are not told that {lsn_words(gap.first)} is lost")

    def _is_lost(self, gap: ReadGap) -> bool:
        return any(gap.first <= first <= gap.last for first in self.lost)

    def _check_seen(self, seen: set[Lsn]) -> None:
        self.read_records += len(seen)
        for first, record in self.truth.items():
            is_due = record.kind is Kind.DATA and record.last > self._world.trimmed
            if is_due and first not in seen and first not in self.lost:
                raise Violation(f"{lsn_words(first)} is not shown")


def _parts_of(shards: Collection[ShardId]) -> Iterator[set[ShardId]]:
    """Yield all sets of some of the shards, but not of all."""
    for size in range(1, len(shards)):
        yield from map(set, combinations(sorted(shards), size))

"""The rules of a copyset log, checked while a simulation runs, with a look into all nodes.

- An acknowledged record was stored on all nodes of its newest wave, which span the racks.
- Once acknowledged, it is read forever, as long as fewer than R nodes lose their disks.
- An append that was not acknowledged is a record or a hole, the same for all, forever.
- Nothing of an epoch is released or shown before all epochs before it are clean.
- A node takes nothing that is sealed, and no older copy in place of a newer one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from copyset_parties import LOG, Node
from violation import Violation

from loomlog.core.copyset.effects import (
    Acknowledge,
    Deliver,
    GapKind,
    LeaveOpen,
    ReadGap,
    Reject,
    Send,
    SequencerEffect,
    StepDown,
)
from loomlog.core.copyset.messages import Amend, Delivered, EpochEnd, Read, Release, Store
from loomlog.core.copyset.record import (
    EPOCH_MAX,
    OFFSET_MAX,
    Epoch,
    Kind,
    Lsn,
    Offset,
    Record,
    epoch_of,
    lsn_words,
    make,
    offset_of,
)
from loomlog.types import NodeId

if TYPE_CHECKING:
    from copyset_world import CopysetWorld


def demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)


class Void(NamedTuple):
    first: Lsn
    last: Lsn
    kind: Kind


class WriteJudge:
    """Watches what sequencers send and what nodes answer."""

    def __init__(self, world: CopysetWorld) -> None:
        self._world = world
        self.acknowledged: dict[Lsn, Record] = {}  # by first LSN, in the wave that counted
        self.given_out: dict[Lsn, Record] = {}  # by first LSN, in the newest wave
        self.outcomes: dict[int, SequencerEffect] = {}  # by append
        self.begun: dict[int, int] = {}  # the process that an append was handed to
        self._floors: dict[int, Lsn] = {}  # what was acknowledged when an append began
        self._stored: dict[tuple[Lsn, int], set[NodeId]] = {}  # who took an LSN in a wave
        self._good: dict[Epoch, Offset] = {}  # all offsets up to here are stored
        self._over: set[Epoch] = set()  # their sequencers stepped down
        self.highest_release: Lsn = 0

    # ---- sequencers

    def begins(self, append: int, process: int) -> None:
        self._floors[append] = max(self.acknowledged, default=0)
        self.begun[append] = process

    def did(self, epoch: Epoch, effect: SequencerEffect) -> None:
        match effect:
            case Acknowledge(int(append), lsn):
                self._end(append, effect)
                self._acknowledge(epoch, lsn, append)
            case Reject(int(append)) | LeaveOpen(int(append)):
                self._end(append, effect)
            case StepDown():
                self._over.add(epoch)
            case Send(_, Release(_, lsn)):
                self._release(epoch, lsn)
            case Send(_, Store(_, record) | Amend(_, record)):
                self._give(record)
                good = self._is_good(epoch, record.lng)
                demand(good, f"the LNG of {lsn_words(record.first)} passes what is not stored")

    def _end(self, append: int, effect: SequencerEffect) -> None:
        before = self.outcomes.setdefault(append, effect)
        demand(before is effect, f"append {append} ended twice: {before}, {effect}")

    def _give(self, record: Record) -> None:
        """Called when a sequencer assigns LSNs to a record."""
        other = self.given_out.setdefault(record.first, record)
        same = other.batch == record.batch or not record.batch  # an amendment has none
        if not same or other.count != record.count:
            raise Violation(f"{lsn_words(record.first)} was given to {other} and to {record}")
        if record.wave > other.wave:
            self.given_out[record.first] = record._replace(batch=other.batch)

    def _acknowledge(self, epoch: Epoch, lsn: Lsn, append: int) -> None:
        name = lsn_words(lsn)
        demand(epoch not in self._over, f"{name} is acknowledged after a preemption")
        floor = self._floors[append]
        demand(
            lsn > floor, f"{name} is acknowledged to an append that began behind {lsn_words(floor)}"
        )
        demand(lsn not in self.acknowledged, f"{name} was acknowledged twice")
        record = self.given_out[lsn]
        demand(
            self._is_stored(lsn), f"{name}, in wave {record.wave} not on all of {record.copyset}"
        )
        metadata = self._world.store.state.metadata_of(epoch)
        spread = metadata.can_hold_a_copyset(record.copyset)
        demand(spread, f"{record.copyset} is not spread over the failure domains")
        self.acknowledged[lsn] = record

    def _is_stored(self, lsn: Lsn) -> bool:
        record = self.given_out.get(lsn)
        return record is not None and self._stored.get((lsn, record.wave), set()).issuperset(
            record.copyset
        )

    def _is_good(self, epoch: Epoch, lng: Offset) -> bool:
        """Return whether all records up to it are stored."""
        good = self._good.get(epoch, 0)
        while good < lng and self._is_stored(lsn := make(epoch, good + 1)):
            good += self.given_out[lsn].count
        self._good[epoch] = good
        return lng <= good

    def _release(self, epoch: Epoch, lsn: Lsn) -> None:
        clean = self._world.store.state.last_clean
        demand(epoch - 1 <= clean, f"{lsn_words(lsn)} is released before recovery")
        demand(self._is_good(epoch, offset_of(lsn)), f"{lsn_words(lsn)} is released, not stored")
        self.highest_release = max(self.highest_release, lsn)

    def open_appends(self) -> list[int]:
        """Return the appends without an outcome whose sequencer runs."""
        begun = self.begun.items()
        open_ = [append for append, _ in begun if append not in self.outcomes]
        return [append for append in open_ if self._world.is_alive(self.begun[append])]

    # ---- nodes

    def took(self, node: Node, record: Record, before: Record | None, sealed: Epoch) -> None:
        """Called when a node has stored a record. It had `before`, and was sealed up to
        `sealed`."""
        records = node.records
        after = records.by_first.get(record.first)
        name = f"node {node.node_id} took {lsn_words(record.first)}"
        if record.last > records.standing.trimmed:
            demand(after is not None, f"{name} and does not have it: it is not on it")
        if after is not None and before is not None:
            newer = after.precedence >= before.precedence
            demand(newer, f"{name}, and its copy changed from {before} to {after}")
        if not record.recovered:
            self._stored.setdefault((record.first, record.wave), set()).add(node.node_id)
            demand(after == before or record.epoch > sealed, f"{name}, which was sealed")
        around = [copy for copy in records.heads(record.first, record.last, 3) if copy != after]
        others = [copy for copy in around if copy.first != record.first]
        demand(not others, f"copies of node {node.node_id} overlap: {record}, {others}")

    def released(self, node: Node) -> None:
        """Called when a node has learned what is released."""
        records = node.records
        unclean = (copy.epoch for copy in records.all() if records.end_of(copy.epoch) is None)
        clean = epoch_of(records.standing.released) <= next(unclean, EPOCH_MAX)
        demand(clean, f"node {node.node_id} released something over an unclean epoch")

    # ---- at the end

    def check_single_copies(self, up: Collection[Node]) -> int:
        """Check that complete records are sent, although only one node sends each, whichever node
        is away. Return how many were due."""
        released = min((node.records.standing.released for node in up), default=0)
        complete = self._complete({node.node_id: node for node in up})
        due = {lsn: set(r.copyset) for lsn, r in complete.items() if r.last <= released}
        return sum(self._check_sent(up, due, released, node.node_id) for node in up)

    def _check_sent(
        self, up: Collection[Node], due: dict[Lsn, set[NodeId]], released: Lsn, away: NodeId
    ) -> int:
        known_down = frozenset([away])
        expected = {lsn for lsn, copyset in due.items() if copyset != known_down}
        sent: set[Lsn] = set()
        for node in up:
            if node.node_id != away:
                answer = node.answer(Read(LOG, 1, released, 1 << 30, known_down))
                assert isinstance(answer, Delivered)
                firsts = [record.first for record in answer.records]
                demand(firsts == sorted(set(firsts)), f"node {node.node_id} sends {firsts}")
                sent.update(firsts)
        demand(sent >= expected, f"without node {away}, {expected - sent} are not sent")
        return len(expected)

    def _complete(self, nodes: dict[NodeId, Node]) -> dict[Lsn, Record]:
        """Return the acknowledged records that are on all nodes of their copyset."""
        found = {}
        for lsn in self.acknowledged:
            copies = {
                n: node.records.by_first[lsn]
                for n, node in nodes.items()
                if lsn in node.records.by_first and lsn not in node.unreadable
            }
            newest = max(copies.values(), key=lambda copy: copy.precedence, default=None)
            if newest and all(copies.get(node) == newest for node in newest.copyset):
                found[lsn] = newest
        return found


class CopysetJudge(WriteJudge):
    """Knows all that was given out, acknowledged and seen."""

    def __init__(self, world: CopysetWorld) -> None:
        super().__init__(world)
        self.trimmed: Lsn = 0  # by some trim that began
        self.doubtful: set[Epoch] = set()  # too few nodes were left that knew them in recovery
        self.finished: dict[Epoch, Lsn] = {}  # said the sequencer: nothing is behind
        self.gaps: list[ReadGap] = []  # shown to readers
        self.deliveries = 0  # to readers
        self.holes = 0
        self.delivered = 0  # records, by single copy delivery, at the end
        self.lost: set[Lsn] = set()  # acknowledged, and shown to be lost
        self._data: dict[Lsn, Record] = {}  # every LSN of what was seen
        self._voids: dict[Epoch, set[Void]] = {}
        self._lasts: dict[Epoch, int] = {}  # of clean epochs: the last record

    def _acknowledge(self, epoch: Epoch, lsn: Lsn, append: int) -> None:
        super()._acknowledge(epoch, lsn, append)
        for void in self._voids.get(epoch, ()):
            self._check(self.acknowledged[lsn], void)

    # ---- reading: what anybody sees is so for everybody, forever

    def shown(self, shown: Deliver | ReadGap, expected: Lsn) -> None:
        """Called when a reader gets something; it should begin at `expected`."""
        if shown.first != expected:
            raise Violation(f"{lsn_words(expected)} comes next, not {lsn_words(shown.first)}")
        if isinstance(shown, ReadGap):
            self._gap(shown)
            return
        demand(shown.last <= self.highest_release, f"{lsn_words(shown.last)} is not released")
        self.deliveries += 1
        self.seen(shown.record)

    def reader_finished(self, head: Lsn, until: Lsn) -> None:
        closed = self._world.store.state.closed
        demand(closed or head > until, "a reader has finished a log that goes on")

    def seen(self, record: Record) -> None:
        if record.kind is Kind.DATA:
            self._seen_data(record)
        else:
            self._seen_void(Void(record.first, record.last, record.kind))

    def _seen_data(self, record: Record) -> None:
        if self._data.get(record.first) == record:
            return
        given = self.given_out.get(record.first)
        if given is None or (given.batch, given.count) != (record.batch, record.count):
            raise Violation(f"{lsn_words(record.first)} shows {record}; it was given to {given}")
        for lsn in range(record.first, record.last + 1):
            self._data[lsn] = record
        for void in self._voids.get(record.epoch, ()):
            self._check(record, void)

    def _seen_void(self, void: Void) -> None:
        known = self._voids.setdefault(epoch_of(void.first), set())
        if void in known:
            return
        for other in known:
            if other.kind is not void.kind and overlap(void, other):
                raise Violation(f"{lsn_words(void.first)} shows {other}, now {void}")
        known.add(void)
        self.holes += 1
        for record in [*self._data.values(), *self.acknowledged.values()]:
            self._check(record, void)

    def _check(self, record: Record, void: Void) -> None:
        if overlap(record, void):
            raise Violation(f"{lsn_words(record.first)} shows {record} and {void}")

    def _gap(self, gap: ReadGap) -> None:
        """Called when a reader has found a gap."""
        self.gaps.append(gap)
        first, last, kind = gap.first, gap.last, gap.kind
        if kind is GapKind.TRIM:
            demand(last <= self.trimmed, f"{lsn_words(last)} is said to be trimmed")
            return
        there = self.there()
        if kind is GapKind.DATALOSS and not self._world.disaster:
            raise Violation(f"[{lsn_words(first)}, {lsn_words(last)}] is said to be lost")
        for record in self.acknowledged.values():
            if first <= record.last and record.first <= last:
                self._check_loss(record, kind, there)
        if kind is GapKind.DATALOSS and not self._may_be_lost(gap, there):
            raise Violation(
                f"[{lsn_words(first)}, {lsn_words(last)}] is said to be lost, and was not"
            )

    def _check_loss(self, record: Record, kind: GapKind, there: Collection[Lsn]) -> None:
        if record.last <= self.trimmed:
            return
        if record.first in there:
            raise Violation(f"{record} was acknowledged and is shown as {kind}")
        if kind is not GapKind.DATALOSS:
            raise Violation(f"{record} was lost and is shown as {kind}")
        self.lost.add(record.first)

    def _may_be_lost(self, gap: ReadGap, there: Collection[Lsn]) -> bool:
        """Return whether something in the gap was lost, or may have been."""
        if gap.last <= self.trimmed:
            return True
        lost = [self.given_out[lsn] for lsn in self.given_out.keys() - there]
        inside = [r for r in lost if gap.first <= r.last and r.first <= gap.last]
        epoch = epoch_of(gap.first)
        if epoch not in self.doubtful:
            return bool(inside) and gap.exact
        last_given = max((r.last for r in inside), default=0)
        return gap.last <= max(self.finished.get(epoch, gap.last), last_given)

    def there(self) -> set[Lsn]:
        """Return the first LSNs of records that have a copy."""
        nodes = [node for node in self._world.nodes.values() if not node.gone]
        return {record.first for node in nodes for record in node.readable()}

    def purged(self, node: Node, before: Collection[Lsn]) -> None:
        """Called when a node has purged an epoch, with the records that had a copy before."""
        for lsn in set(before) - self.there():
            record = self._data.get(lsn) or self.acknowledged.get(lsn)
            if record is not None and record.last > self.trimmed:
                name = lsn_words(lsn)
                raise Violation(f"node {node.node_id} purged the last copy of {name}, a record")

    # ---- looking into all nodes at once

    def peek(self) -> None:
        """Ask all nodes that are up for everything: what a reader could see now."""
        shown: list[Record] = []
        looked: dict[NodeId, Lsn] = {}
        for node in self._world.nodes.values():
            if node.up:
                answer = node.peek(1)
                shown += answer.records
                looked[node.node_id] = answer.next_lsn
        clean = self._world.store.state.last_clean
        for record in shown:
            if record.epoch - 1 > clean:
                first = lsn_words(record.first)
                raise Violation(f"{first} is shown before all epochs before it are clean")
            self.seen(record)
        self._check_gaps(shown, looked)

    def _check_gaps(self, shown: list[Record], looked: dict[NodeId, Lsn]) -> None:
        """Check that no record was lost where an f-majority has nothing."""
        state = self._world.store.state
        for epoch in range(1, state.epoch + 1):
            metadata = state.metadata_of(epoch)
            passed = [
                n
                for n in metadata.shards
                if looked.get(n, 0) > make(epoch, 1) and self._world.nodes[n].counts_in(epoch)
            ]
            if not metadata.is_f_majority(passed):
                continue
            there = sorted((r.offset, offset_of(r.last)) for r in shown if r.epoch == epoch)
            for lsn in self._missing(epoch, there):
                if metadata.is_f_majority([n for n in passed if looked[n] > lsn]):
                    self._missed(lsn)

    def _missing(self, epoch: Epoch, there: list[tuple[int, int]]) -> list[Lsn]:
        """Return the LSNs that no node shows, up to the last one of the epoch."""
        last = self._lasts.get(epoch)
        highest = OFFSET_MAX if last is None else last
        missing, offset = [], 1
        for first, end in there:
            if offset < first:
                missing.append(make(epoch, offset))
            offset = max(offset, end + 1)
        if offset <= highest and (last is not None or offset_of(self._released(epoch)) >= offset):
            missing.append(make(epoch, offset))
        return [lsn for lsn in missing if lsn > self.trimmed]

    def _released(self, epoch: Epoch) -> Lsn:
        released = [node.records.standing.released for node in self._world.nodes.values()]
        return max((lsn for lsn in released if epoch_of(lsn) == epoch), default=0)

    def _missed(self, lsn: Lsn) -> None:
        there = self.there()
        lost = [first for first in self.given_out.keys() - there if first <= lsn]
        is_lost = any(lsn <= self.given_out[first].last for first in lost)
        if epoch_of(lsn) not in self.doubtful and not (self._world.disaster and is_lost):
            raise Violation(f"nothing is shown at {lsn_words(lsn)}")
        for record in self.acknowledged.values():
            if record.first <= lsn <= record.last and record.first in there:
                raise Violation(f"{record} was acknowledged, and is not shown")

    def cleaned(self, end: EpochEnd) -> None:
        """Called when an epoch is recovered: from now on it does not change."""
        epoch, nodes = end.epoch, self._world.nodes.values()
        self._lasts[epoch] = end.last
        counting = [node.node_id for node in nodes if node.counts_in(epoch)]
        if not self._world.store.state.metadata_of(epoch).is_f_majority(counting):
            self.doubtful.add(epoch)
        for node in nodes:
            if node.records.end_of(epoch) == end:
                for record in node.records.all():
                    if record.epoch == epoch:
                        self.seen(record)

    def look_at_the_end(self) -> None:
        """Check, when everything is released and purged, that all that is stored is shown and
        complete."""
        self.peek()
        nodes = self._world.nodes.values()
        holders: dict[Void, set[NodeId]] = {}
        for node in nodes:
            for record in node.records.all():
                self.seen(record)
                place = Void(record.first, record.last, record.kind)
                holders.setdefault(place, set()).add(node.node_id)
        self._check_copies(holders)
        up = [node for node in nodes if node.up]
        self.delivered += self.check_single_copies(up)

    def _check_copies(self, holders: dict[Void, set[NodeId]]) -> None:
        unlucky = set(self._world.unlucky)
        for (first, last, kind), nodes in holders.items():
            metadata = self._world.store.state.metadata_of(epoch_of(first))
            if last > self.trimmed and not metadata.can_hold_a_copyset(nodes | unlucky):
                raise Violation(
                    f"[{lsn_words(first)}, {lsn_words(last)}] {kind.name} is only on {nodes}"
                )


def overlap(one: Record | Void, other: Record | Void) -> bool:
    return one.first <= other.last and other.first <= one.last

"""A log of `copyset` as it was written: what stands where, and on which nodes. For readers."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import replace

from loomlog.core.copyset.epoch_metadata import EpochMetadata, Member
from loomlog.core.copyset.lsn import OFFSET_MAX, Epoch, Lsn, epoch_of, last_of, make
from loomlog.core.copyset.messages import Delivered, EpochEnd, LogState, Read
from loomlog.core.copyset.record import Kind, Record
from loomlog.core.copyset.storage import Put
from loomlog.testing.copyset_node import CopysetNode
from loomlog.types import NodeId

LOG = 1
NODES = range(1, 8)


class DamagedNode(CopysetNode):
    """A storage node, and what is wrong with it."""

    def __init__(self, node_id: NodeId) -> None:
        super().__init__(node_id)
        self.has_lost = False  # its disk, once
        self.unreadable: set[Lsn] = set()  # where copies begin that it cannot read

    def read(self, request: Read) -> Delivered:
        answer = self.answer(request)
        assert isinstance(answer, Delivered)
        whole = [r for r in answer.records if r.first not in self.unreadable]
        damaged = [(r.first, r.last) for r in answer.records if r.first in self.unreadable]
        return replace(
            answer,
            underreplicated=self.has_lost,
            records=whole,
            damaged=[*answer.damaged, *damaged],
        )

    def has(self, record: Record) -> bool:
        return record.first in self.records(LOG).by_first and record.first not in self.unreadable

    def release(self, lsn: Lsn) -> None:
        """It learned of all epochs before what became of them."""
        records = self.records(LOG)
        if lsn > records.standing.released:
            records.standing = records.standing._replace(
                released=lsn, last_clean=max(records.standing.last_clean, epoch_of(lsn) - 1)
            )

    def lose_all(self) -> None:
        self.logs.clear()
        self.unreadable.clear()
        self.has_lost = True


class WrittenLog:
    """Epochs with batches, holes and a bridge each; some are empty. The last one may go on."""

    def __init__(self, pick: random.Random, *, epochs_max: int, records_max: int) -> None:
        self.pick = pick
        self.nodes = {node: DamagedNode(node) for node in NODES}
        self.truth: list[Record] = []  # in order; as if there were one copy
        self.ends: dict[Epoch, Lsn] = {}  # the last batch of each epoch
        self.closed = pick.random() < 0.5
        self.first_epoch = pick.randint(1, 3)
        self.last_epoch = self.first_epoch + pick.randrange(epochs_max)
        self.history: list[EpochMetadata] = []
        for epoch in range(self.first_epoch, self.last_epoch + 1):
            if not self.history or pick.random() < 0.5:
                self.history.append(self._choose_metadata(epoch))
            is_open = epoch == self.last_epoch and not self.closed
            self._write(epoch, pick.randint(is_open, records_max), is_open=is_open)

    def metadata_of(self, epoch: Epoch) -> EpochMetadata:
        return next(m for m in reversed(self.history) if m.since <= epoch)

    def state(self, released: Lsn, trimmed: Lsn) -> LogState:
        """As the epoch store has it when all up to `released` is."""
        is_all = not self.truth or released >= self.truth[-1].last
        newest = self.last_epoch + 1 if is_all and self.closed else epoch_of(released)
        newest = max(newest, self.first_epoch)
        ends = [end for epoch, end in self.ends.items() if epoch < newest]
        return LogState(
            epoch=newest,
            sequencer=1,
            history=tuple(m for m in self.history if m.since <= newest),
            last_clean=newest - 1,
            tail=max(ends, default=0),
            closed=is_all and self.closed,
            trimmed=trimmed,
        )

    def released_with(self, record: Record) -> Lsn:
        """What is released when this is: a bridge, with the epoch after it."""
        return record.last if record.kind is not Kind.BRIDGE else last_of(record.epoch)

    def holders(self, record: Record) -> list[NodeId]:
        """Of copies that can be read."""
        return [node.node_id for node in self.nodes.values() if node.has(record)]

    def copy_again(self, lost: NodeId, alive: Collection[NodeId]) -> bool:
        """What was on a node that lost its disk goes to others, and what it knew of the ends of
        epochs; False: somebody has to come back for that first."""
        concerned = [r for r in self.truth if lost in self.metadata_of(r.epoch).nodes]
        if any(set(self.holders(r)) and not set(self.holders(r)) & set(alive) for r in concerned):
            return False
        for record in concerned:
            self._complete(record)
        for epoch in range(self.first_epoch, self.last_epoch + 1):
            self._tell_end(epoch)
        return True

    # ---- inside

    def _choose_metadata(self, epoch: Epoch) -> EpochMetadata:
        replication = self.pick.randint(1, 3)
        nodes = self.pick.sample(NODES, self.pick.randint(replication, 6))
        racks = self.pick.choice([0, 0, 2, 3])
        members = (Member(node, f"rack {node % racks}" if racks else "") for node in nodes)
        return EpochMetadata(epoch, tuple(members), replication)

    def _write(self, epoch: Epoch, records: int, *, is_open: bool) -> None:
        offset, last = 1, 0
        for number in range(records):
            is_last = number == records - 1
            kind = Kind.HOLE if not is_last and self.pick.random() < 0.1 else Kind.DATA
            count = self.pick.randint(1, 4)
            self._store(make(epoch, offset), count, kind)
            offset += count
            last = offset - 1
        if is_open:
            return
        if records:
            self._store(make(epoch, offset), OFFSET_MAX - offset + 1, Kind.BRIDGE)
            self.ends[epoch] = make(epoch, last)
        self._end(epoch, last)

    def _store(self, first: Lsn, count: int, kind: Kind) -> None:
        batch = f"{first} ".encode() * self.pick.randint(1, 8) if kind is Kind.DATA else b""
        record = Record(first, count, kind, first, (), 0, 0, batch=batch)
        self.truth.append(record)
        for wave in range(1 + (self.pick.random() < 0.2)):
            copyset = self._choose_copyset(self.metadata_of(record.epoch))
            self._put(record._replace(copyset=copyset, wave=wave + 1), copyset)

    def _choose_copyset(self, metadata: EpochMetadata) -> tuple[NodeId, ...]:
        """Not more nodes than needed."""
        chosen = list(metadata.nodes)
        self.pick.shuffle(chosen)
        for node in metadata.nodes:
            others = [other for other in chosen if other != node]
            if metadata.can_hold_a_copyset(others):
                chosen = others
        return tuple(chosen)

    def _put(self, record: Record, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            self.nodes[node].records(LOG).apply(Put(record))

    def _end(self, epoch: Epoch, last: int) -> None:
        metadata = self.metadata_of(epoch)
        knowing = set(self._choose_copyset(metadata))
        knowing |= {node for r in self.truth if r.epoch == epoch for node in self.holders(r)}
        for node in knowing:
            self.nodes[node].records(LOG).apply(EpochEnd(epoch, last, last, epoch + 1, 1))

    def _tell_end(self, epoch: Epoch) -> None:
        nodes = [self.nodes[node] for node in self.metadata_of(epoch).nodes]
        ends = [node.records(LOG).ends.get(epoch) for node in nodes]
        for end in ends:
            for node in nodes:
                if end is not None and not node.has_lost:
                    node.records(LOG).apply(end)

    def _complete(self, record: Record) -> None:
        metadata = self.metadata_of(record.epoch)
        copies = self.holders(record)
        if not copies:
            return
        spares = [n for n in metadata.nodes if not self.nodes[n].has_lost and n not in copies]
        self.pick.shuffle(spares)
        while spares and not metadata.can_hold_a_copyset(copies):
            copies.append(spares.pop())
        for node in copies:
            self.nodes[node].unreadable.discard(record.first)
        self._put(record._replace(copyset=tuple(copies), wave=9), copies)

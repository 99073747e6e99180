"""Decide, per log, which records a storage node takes, keeps, shows and deletes. Pure.

- Copies of a log on one node never overlap. Of two that would, the one of higher precedence stays.
- A writer (a sequencer in its epoch, or recovery in the epoch of its sequencer) must be above the
  seal. What is clean here is changed only by a later recovery, or a later attempt of it.
- Nothing is shown above `released`, and that never passes an epoch that is not clean here: of such
  an epoch the node may have copies that recovery, without it, turned into holes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from loomlog.core.copyset.messages import (
    Amend,
    Begin,
    Clean,
    Delivered,
    Digest,
    Digested,
    Done,
    EpochEnd,
    EpochState,
    Forget,
    Mend,
    NodeAnswer,
    NodeRequest,
    NotHere,
    Occupied,
    Preempted,
    Purge,
    Read,
    Reassign,
    Release,
    Restore,
    Seal,
    SealedAt,
    Store,
    Stored,
    Trim,
)
from loomlog.core.copyset.nodeset import is_sender
from loomlog.core.copyset.record import (
    HEAD_BYTES,
    LSN_MAX,
    OFFSET_MAX,
    Epoch,
    Kind,
    Lsn,
    Offset,
    Record,
    epoch_of,
    is_occupied,
    make,
    offset_of,
)
from loomlog.errors import Corrupt
from loomlog.types import Buffer, ShardId


class EpochLng(NamedTuple):
    """The highest LNG (last known good offset) that is known of an epoch."""

    epoch: Epoch
    lng: Offset


class LogStanding(NamedTuple):
    """The state of a log on a node besides its records and the ends of its epochs."""

    seal: Epoch = 0  # sequencers of epochs up to this one are refused
    seal_wave: int = 0  # so are earlier attempts of the recovery that sealed it
    soft_seal: Epoch = 0  # the same, because a later one stored something; not if they drain
    last_clean: Epoch = 0  # what is here of epochs up to this one is as recovery left it
    released: Lsn = 0  # all up to here may be shown; may be forgotten: it is sent again
    trimmed: Lsn = 0  # all up to here is gone
    stamp: int = 0  # of the creation of the log; 0: nothing of it is here yet
    lngs: tuple[EpochLng, ...] = ()  # the highest known, for epochs above last_clean, in order

    def lng_of(self, epoch: Epoch) -> Offset:
        return next((each.lng for each in self.lngs if each.epoch == epoch), 0)

    def released_in(self, epoch: Epoch) -> Offset:
        """Return up to where an epoch is fully stored, also by releases that may be forgotten."""
        released = offset_of(self.released) if epoch_of(self.released) == epoch else 0
        return max(released, self.lng_of(epoch))

    @property
    def taken(self) -> Epoch:
        """The highest epoch from which the node has accepted a change."""
        return max(self.seal + 1, self.soft_seal + 1, epoch_of(self.released))


@dataclass(frozen=True, slots=True)
class Put:
    """Store the copy, in the place of one that begins at the same LSN."""

    record: Record


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Keep the copy that begins here with its batch, and replace the rest of it by `head`."""

    head: Record


@dataclass(frozen=True, slots=True)
class Erase:
    """Delete copies that begin in [first, last]."""

    first: Lsn
    last: Lsn


@dataclass(frozen=True, slots=True)
class Gone:
    """Delete all of the log: its records, standing and ends."""


# A standing that trims more deletes the records that end there. An EpochEnd is kept separately.
Change: TypeAlias = Put | Rewrite | Erase | LogStanding | EpochEnd | Gone


class Records(Protocol):
    """The copies that a node has of a log. Heads are records without their batches."""

    def heads(self, first: Lsn, last: Lsn, records_max: int) -> Sequence[Record]:
        """Yield the first of those that overlap [first, last], in order."""

    def last_head(self, last: Lsn) -> Record | None:
        """Return the last one that begins at or before `last`."""

    def load(self, head: Record) -> Record:
        """Return a record with its batch. Raise Corrupt if the disk returns something else."""

    def is_batch_of(self, head: Record, batch: Buffer) -> bool:
        """Return whether this is the batch that was stored, whatever the disk returns now."""

    def end_of(self, epoch: Epoch) -> EpochEnd | None: ...


Decision: TypeAlias = tuple[NodeAnswer, Sequence[Change]]

SCAN_RECORDS_MAX: Final = 1024  # looked at for one answer, however few of them are sent
SCAN_STEP: Final = 64  # heads looked up at once: most answers are full long before the maximum


def decide(request: NodeRequest, standing: LogStanding, records: Records, me: ShardId) -> Decision:
    """Return the answer, and the changes, in order, that must be durable before it is given. (A
    release need not be durable, and has no answer.)"""
    match request:
        case Store():
            return _store(request, standing, records)
        case Amend():
            return _amend(request, standing, records)
        case Mend(_, record):
            return _mend(record, standing, records)
        case Release(_, lsn):
            return Done(), _changed(standing, _release(lsn, standing, records))
        case Seal():
            return _seal(request, standing, records)
        case Clean():
            return _clean(request, standing, records)
        case Purge(_, end):
            return Done(), _purge(end, standing, records)
        case Trim(_, lsn):
            return Done(), _changed(standing, standing._replace(trimmed=max(lsn, standing.trimmed)))
        case Forget():
            return Done(), [Gone()]
        case Begin(_, stamp):
            return Done(), [] if standing.stamp else [standing._replace(stamp=stamp)]
    return look_up(request, standing, records, me), []


def look_up(
    request: NodeRequest, standing: LogStanding, records: Records, me: ShardId
) -> NodeAnswer:
    """Return the answer to a request that changes nothing."""
    match request:
        case Read():
            return _read(request, standing, records, me)
        case Digest():
            return _digest(request, standing, records)
    raise TypeError(f"{type(request).__name__} is not a look-up")


def epoch_to_purge(lsn: Lsn, standing: LogStanding) -> Epoch | None:
    """Return the epoch, if any, that keeps a release of `lsn` from counting. The node must learn
    its end (Purge); then the release is decided again."""
    epoch = standing.last_clean + 1
    return epoch if epoch < epoch_of(lsn) else None


def claimed_epoch(request: NodeRequest) -> Epoch:
    """Return the epoch that the sender must have been granted; 0 if the request changes nothing.
    One that was never granted would fence the sequencers of all epochs below it for good."""
    match request:
        case Store(_, record) | Amend(_, record) | Reassign(_, record):
            return max(record.epoch, record.recovered)
        case Release(_, lsn):
            return epoch_of(lsn)
        case Seal(_, epoch):
            return epoch + 1
        case Clean(_, seal, end):
            return max(seal + 1, end.epoch)
        case Restore(_, record, end):
            return max(end.seal + 1, end.epoch, record.epoch)
    return 0


def newest_epoch(standing: LogStanding, last_copy: Record | None) -> Epoch:
    """Return the highest epoch that is known to have been taken: a seal comes from a later one."""
    sealed = max(standing.seal, standing.soft_seal, standing.last_clean)
    return max(
        sealed + 1 if sealed else 0,
        epoch_of(standing.released),
        last_copy.epoch if last_copy is not None else 0,
        *(each.epoch for each in standing.lngs),
    )


# ---- incoming records


def _store(request: Store, standing: LogStanding, records: Records) -> Decision:
    record = request.record
    if (preempted := _check_seals(record, standing, records, request.draining)) is not None:
        return preempted, []
    if record.last <= standing.trimmed:
        return Stored(), []
    overlapping = records.heads(record.first, record.last, record.count)
    if is_occupied(record, overlapping, records.load):
        return Occupied(record.first), []
    if any(_counts_as_much(copy, record) for copy in overlapping):
        return Stored(), []
    changes: list[Change] = [Erase(copy.first, copy.first) for copy in overlapping]
    changes += [Put(rest) for copy in overlapping for rest in _rests(copy, record)]
    changes.append(Put(record))
    return Stored(), changes + _changed(standing, _note_record(record, standing))


def _amend(request: Amend, standing: LogStanding, records: Records) -> Decision:
    record = request.record
    if (preempted := _check_seals(record, standing, records)) is not None:
        return preempted, []
    if record.last <= standing.trimmed:
        return Stored(), []
    copies = records.heads(record.first, record.last, 2)
    if not any(copy.is_copy_of(record) for copy in copies):
        return NotHere(), []
    if _counts_as_much(copies[0], record):
        return Stored(), []
    return Stored(), [Rewrite(record), *_changed(standing, _note_record(record, standing))]


def _mend(record: Record, standing: LogStanding, records: Records) -> Decision:
    """Replace only the batch of a copy, and only by the one that was stored: so neither seals nor
    precedence matter."""
    if record.last <= standing.trimmed:
        return Stored(), []
    copies = records.heads(record.first, record.last, 2)
    copy = next((copy for copy in copies if copy.is_copy_of(record)), None)
    if copy is None:
        return NotHere(), []
    try:
        records.load(copy)
    except Corrupt:
        if records.is_batch_of(copy, record.batch):
            return Stored(), [Put(copy._replace(batch=record.batch))]
        return NotHere(), []
    return Stored(), []


def _check_seals(
    record: Record, standing: LogStanding, records: Records, draining: bool = False
) -> Preempted | None:
    seal = standing.seal
    if not record.recovered and not draining:
        seal = max(seal, standing.soft_seal)
    if (record.recovered or record.epoch) <= seal:
        return Preempted(seal)
    if record.recovered == seal + 1 and record.wave < standing.seal_wave:
        return Preempted(seal)  # a later attempt may have looked already
    if record.epoch <= standing.last_clean:
        end = records.end_of(record.epoch)
        if end is None or record.precedence <= end.precedence:
            return Preempted(standing.seal)  # it is late: the epoch is recovered
    return None


def _counts_as_much(copy: Record, record: Record) -> bool:
    """Return whether the copy that is here stays, because it is newer than `record` or the same."""
    return copy.precedence >= record.precedence


def _rests(copy: Record, record: Record) -> list[Record]:
    """Return the rest of a copy that `record` replaces: of a range without entries."""
    if copy.kind is Kind.DATA:
        return []
    ranges = [(copy.first, min(copy.last, record.first - 1)), (record.last + 1, copy.last)]
    return [
        copy._replace(first=first, count=last - first + 1)
        for first, last in ranges
        if first <= last
    ]


def _note_record(record: Record, standing: LogStanding) -> LogStanding:
    """Note what a record implies: how far its epoch is stored, and that it has a sequencer."""
    if not record.recovered and standing.soft_seal < record.epoch - 1:
        standing = standing._replace(soft_seal=record.epoch - 1)
    return _note_lng(EpochLng(record.epoch, record.lng), standing)


def _note_lng(news: EpochLng, standing: LogStanding) -> LogStanding:
    if news.epoch <= standing.last_clean or news.lng <= standing.lng_of(news.epoch):
        return standing
    others = [each for each in standing.lngs if each.epoch != news.epoch]
    return standing._replace(lngs=tuple(sorted([*others, news])))


# ---- epochs end


def _seal(request: Seal, standing: LogStanding, records: Records) -> Decision:
    if request.epoch < standing.seal:
        return Preempted(standing.seal), []
    epochs = _unclean_epochs(standing, records, request.epoch)
    told = records.end_of(request.recovered) if request.recovered <= standing.last_clean else None
    if told is not None:  # by a recovery that died, of which the epoch store does not know
        epochs = [EpochState(told.epoch, told.lng, told.last), *epochs]
    newest = records.last_head(LSN_MAX)
    newer = newest.last if newest is not None and newest.epoch > request.epoch else 0
    answer = SealedAt(standing.last_clean, standing.trimmed, epochs, newer=newer)
    return answer, _changed(standing, _sealed(request.epoch, request.wave, standing))


def _sealed(epoch: Epoch, wave: int, standing: LogStanding) -> LogStanding:
    seal, seal_wave = max((standing.seal, standing.seal_wave), (epoch, wave))
    return standing._replace(seal=seal, seal_wave=seal_wave)


def _unclean_epochs(standing: LogStanding, records: Records, until: Epoch) -> list[EpochState]:
    lasts = {each.epoch: 0 for each in standing.lngs if each.epoch <= until}
    epoch = standing.last_clean
    while head := _first_head(records, epoch + 1, until):
        epoch = head.epoch
        last = records.last_head(make(epoch, OFFSET_MAX))
        lasts[epoch] = offset_of(last.last) if last else 0
    return [EpochState(epoch, standing.lng_of(epoch), lasts[epoch]) for epoch in sorted(lasts)]


def _first_head(records: Records, epoch: Epoch, until: Epoch) -> Record | None:
    """Return the first copy of an epoch in [epoch, until]."""
    heads = records.heads(make(epoch, 0), make(until, OFFSET_MAX), 1) if epoch <= until else []
    return heads[0] if heads else None


def _clean(request: Clean, standing: LogStanding, records: Records) -> Decision:
    if request.seal < standing.seal:
        return Preempted(standing.seal), []
    if (request.seal, request.end.wave) != (standing.seal, standing.seal_wave):
        return NotHere(), []  # it was sealed, and forgot; or another attempt sealed it
    end = records.end_of(request.end.epoch)
    if end is not None and end.precedence >= request.end.precedence:
        return Done(), []
    return Done(), [request.end, *_changed(standing, _ended(request.end, standing, records))]


def _ended(end: EpochEnd, standing: LogStanding, records: Records) -> LogStanding:
    """Note the end of an epoch. Epochs become clean in order, so it may wait for earlier ones."""
    clean = standing.last_clean
    while clean + 1 == end.epoch or records.end_of(clean + 1) is not None:
        clean += 1
    return _cleaned(clean, standing)


def _cleaned(epoch: Epoch, standing: LogStanding) -> LogStanding:
    lngs = tuple(each for each in standing.lngs if each.epoch > epoch)
    return _sealed(epoch, 0, standing)._replace(last_clean=epoch, lngs=lngs)


def _purge(end: EpochEnd, standing: LogStanding, records: Records) -> list[Change]:
    """Delete what this node has above the LNG of an epoch that was recovered without it, where
    recovery left a hole. It stays if too few nodes knew where the epoch ended, or if they knew of
    nothing although something was stored on R nodes: then this may be all that is left. It goes if
    it counts as lost: readers may have passed it. What an earlier recovery said, which died, does
    not count."""
    known, is_clean = records.end_of(end.epoch), end.epoch <= standing.last_clean
    if is_clean and (known is None or known.precedence >= end.precedence):
        return []
    changes: list[Change] = [end]
    lng = max(standing.lng_of(end.epoch), 0 if known is None else known.lng)
    if end.lost or (end.exact and (end.last or not lng)):
        changes += _erase_leftovers(end, records)
    if is_clean:
        return changes
    sealed = _sealed(end.epoch, 0, standing)
    return changes + _changed(standing, _ended(end, sealed, records))


def _erase_leftovers(end: EpochEnd, records: Records) -> Iterator[Erase]:
    """Erase all above the LNG that recovery made a hole. Other copies may be all that is left of a
    record, if recovery did not find it or what it wrote is lost by now. They are the same, since an
    LSN is given to one batch only."""
    first = make(end.epoch, end.lng + 1)
    for begin, until in end.found:
        last = min(until, end.last)  # nothing is behind it
        for copy in _heads(make(end.epoch, begin), make(end.epoch, last), records):
            if copy.kind is Kind.DATA and begin <= copy.offset and offset_of(copy.last) <= last:
                if first < copy.first:
                    yield Erase(first, copy.first - 1)
                first = copy.last + 1
    yield Erase(first, make(end.epoch, OFFSET_MAX))


def _heads(first: Lsn, last: Lsn, records: Records) -> Iterator[Record]:
    while first <= last and (heads := records.heads(first, last, SCAN_RECORDS_MAX)):
        yield from heads
        first = heads[-1].last + 1


# ---- reads


def _release(lsn: Lsn, standing: LogStanding, records: Records) -> LogStanding:
    """Note a release. A release in an epoch says that all epochs before it are recovered."""
    clean = _clean_before(epoch_of(lsn), standing, records)
    standing = _note_lng(EpochLng(epoch_of(lsn), offset_of(lsn)), standing)
    if clean > standing.last_clean:
        standing = _cleaned(clean, standing)
    shown = lsn if clean + 1 >= epoch_of(lsn) else make(clean + 1, 0)
    return standing._replace(released=max(standing.released, shown))


def _clean_before(epoch: Epoch, standing: LogStanding, records: Records) -> Epoch:
    """Return the last epoch up to which all are clean here, given that all before `epoch` are
    recovered: those with an end here, and those of which nothing is here. What is known to be
    fully stored in one must first be compared with its end."""
    clean = standing.last_clean
    last = epoch - 1
    for known, lng in standing.lngs:
        if known <= last and lng and records.end_of(known) is None:
            last = known - 1
    while head := _first_head(records, clean + 1, last):
        if records.end_of(head.epoch) is None:
            return head.epoch - 1
        clean = head.epoch
    return max(clean, last)


def _read(request: Read, standing: LogStanding, records: Records, me: ShardId) -> Delivered:
    sent: list[Record] = []
    damaged: list[tuple[Lsn, Lsn]] = []
    size = 0
    next_lsn = max(request.first, standing.trimmed + 1)
    until = min(request.until, standing.released)
    scanned = 0
    while next_lsn <= until and size < request.bytes_max and scanned < SCAN_RECORDS_MAX:
        heads = records.heads(next_lsn, until, SCAN_STEP)
        scanned += len(heads)
        for head in heads:
            if size >= request.bytes_max:
                break
            next_lsn = max(next_lsn, head.last + 1)
            if request.everything or is_sender(me, head.copyset, head.first, request.known_down):
                try:
                    sent.append(records.load(head) if request.batches else head)
                except Corrupt:
                    damaged.append((head.first, head.last))
                    continue
                size += HEAD_BYTES + len(sent[-1].batch)
        else:
            if len(heads) < SCAN_STEP:
                next_lsn = until + 1
    return Delivered(sent, next_lsn, standing.trimmed, standing.released, damaged=tuple(damaged))


def _digest(request: Digest, standing: LogStanding, records: Records) -> NodeAnswer:
    if request.seal < standing.seal:
        return Preempted(standing.seal)
    if (request.seal, request.wave) != (standing.seal, standing.seal_wave):
        return NotHere()  # it was sealed, and forgot; or another attempt sealed it
    first, last = make(request.epoch, request.after + 1), make(request.epoch, OFFSET_MAX)
    heads = records.heads(first, last, SCAN_RECORDS_MAX)
    sent: list[Record] = []
    size = 0
    for head in heads:
        if size >= request.bytes_max:
            return Digested(sent, more=True, trimmed=standing.trimmed)
        sent.append(records.load(head) if request.batches else head)
        size += HEAD_BYTES + len(sent[-1].batch)
    return Digested(sent, len(heads) == SCAN_RECORDS_MAX, standing.trimmed)


def _changed(before: LogStanding, after: LogStanding) -> list[Change]:
    return [after] if after != before else []

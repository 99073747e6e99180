"""Salvaged copies: a copy that recovery replaced by a hole is never believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import pytest

from loomlog.core.copyset.messages import (
    Clean,
    Delivered,
    EpochEnd,
    NodeRequest,
    Purge,
    Read,
    Release,
    Seal,
    Store,
)
from loomlog.core.copyset.record import LSN_MAX, Epoch, Kind, Lsn, Record, make
from loomlog.core.copyset.salvage import Sifted, sift
from loomlog.core.copyset.storage import (
    Change,
    Erase,
    LogStanding,
    Put,
    Rewrite,
    decide,
    epoch_to_purge,
)
from loomlog.limits import MIB
from loomlog.storage.logsdb.table import MemoryLog

ME, LOG = 1, 7
COPYSET = (1, 2)
END = EpochEnd(1, lng=2, last=5, seal=1, wave=1)  # of epoch 1: 3 and 4 became a hole
RELEASE = Release(LOG, make(2, 1))

Ends = dict[Epoch, EpochEnd]
Sift = Callable[[LogStanding, Sequence[tuple[Record, None]], Ends], Sifted[None]]


def copy(offset: int, *, epoch: int = 1, lng: int = 0, recovered: int = 0) -> Store:
    content = b"%d" % offset
    place = make(epoch, offset)
    return Store(LOG, Record(place, 1, Kind.DATA, 5, COPYSET, 1, lng, recovered, content))


HOLE = Store(LOG, Record(make(1, 3), 2, Kind.HOLE, 0, COPYSET, 1, 0, 2))
COPIES = [copy(1), copy(2, lng=1), copy(3, lng=1), copy(4, lng=1), copy(5, lng=1)]
LATER: list[NodeRequest] = [copy(1, epoch=2), RELEASE]
TOOK_PART: list[NodeRequest] = [
    *COPIES,
    Seal(LOG, 1, 1),
    HOLE,
    copy(5, recovered=2),
    Clean(LOG, 1, END),
    *LATER,
]
WAS_AWAY: list[NodeRequest] = [*COPIES, Purge(LOG, END), *LATER]


def writes_of(requests: Sequence[NodeRequest]) -> list[list[Change]]:
    """Return the changes that a node makes for each of these requests: each is one write."""
    log, writes = MemoryLog(), []
    log.standing = LogStanding(stamp=3)
    for request in requests:
        _, changes = decide(request, log.standing, log, ME)
        for change in changes:
            log.apply(change)
        writes.append(list(changes))
    return writes


def left_of(writes: Sequence[list[Change]]) -> tuple[LogStanding, dict[Lsn, Record], Ends]:
    """Return the rows of a store after these writes only."""
    standing = LogStanding(stamp=3)
    copies: dict[Lsn, Record] = {}
    ends: Ends = {}
    for change in (change for write in writes for change in write):
        match change:
            case Put(record):
                copies[record.first] = record
            case Rewrite(head):
                copies[head.first] = head
            case Erase(first, last):
                copies = {at: c for at, c in copies.items() if not first <= at <= last}
            case LogStanding():
                standing = change
            case EpochEnd():
                ends[change.epoch] = change
    return standing, copies, ends


def shown(writes: Sequence[list[Change]], sift: Sift) -> list[Lsn]:
    """Return what readers get from a node with only these writes, once it has caught up."""
    standing, copies, ends = left_of(writes)
    heads = [(record._replace(batch=b""), None) for _, record in sorted(copies.items())]
    standing, dropped = sift(standing, heads, ends)
    for head, _ in dropped:
        del copies[head.first]
    log = MemoryLog()
    rows: list[Change] = [*map(Put, copies.values()), *ends.values(), standing]
    for change in rows:
        log.apply(change)
    while epoch_to_purge(RELEASE.lsn, log.standing) is not None:
        before = log.standing
        for request in (RELEASE, Purge(LOG, END)):
            for change in decide(request, log.standing, log, ME)[1]:
                log.apply(change)
        if log.standing == before:
            break
    for change in decide(RELEASE, log.standing, log, ME)[1]:
        log.apply(change)
    read = Read(LOG, 1, LSN_MAX, MIB, everything=True)
    answer, _ = decide(read, log.standing, log, ME)
    assert isinstance(answer, Delivered)
    return [record.first for record in answer.records if record.kind is Kind.DATA]


def all_shown(requests: Sequence[NodeRequest], sift: Sift) -> list[list[Lsn]]:
    """Return what is shown after any one, two or three of the writes are lost."""
    writes = writes_of(requests)
    return [
        shown([write for at, write in enumerate(writes) if at not in lost], sift)
        for count in (0, 1, 2, 3)
        for lost in combinations(range(len(writes)), count)
    ]


def believe_all(
    standing: LogStanding, copies: Sequence[tuple[Record, None]], ends: Ends
) -> Sifted[None]:
    return Sifted(standing, [])


HOLES = {make(1, 3), make(1, 4)}


@pytest.mark.parametrize("requests", [TOOK_PART, WAS_AWAY])
def test_no_copy_is_shown_that_became_a_hole(requests: Sequence[NodeRequest]) -> None:
    for found in all_shown(requests, sift):
        assert HOLES.isdisjoint(found)


@pytest.mark.parametrize("requests", [TOOK_PART, WAS_AWAY])
def test_one_would_be_if_all_that_is_left_were_believed(requests: Sequence[NodeRequest]) -> None:
    assert any(not HOLES.isdisjoint(found) for found in all_shown(requests, believe_all))


def test_nothing_is_dropped_without_a_reason() -> None:
    writes = writes_of(TOOK_PART)
    whole = [make(1, 1), make(1, 2), make(1, 5), make(2, 1)]
    assert shown(writes, sift) == whole
    assert shown(writes[1:], sift) == whole[1:]
    assert shown(writes[:-2] + writes[-1:], sift) == whole[:-1]


def test_what_is_left_of_an_epoch_whose_end_nobody_knew_stays() -> None:
    end = EpochEnd(1, lng=0, last=2, seal=1, wave=1, exact=False)
    copies = [(store.record._replace(batch=b""), None) for store in COPIES]
    standing = LogStanding(last_clean=1, released=make(2, 0))
    assert sift(standing, copies, {1: end}) == (standing, [])

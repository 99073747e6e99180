"""A node mends a damaged copy only with the batch that was stored there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from copyset_node import MemoryRecords

from loomlog.core.copyset.log_state import first_state, take_epoch
from loomlog.core.copyset.messages import Delivered, LogState, Mend, NotHere, Stored
from loomlog.core.copyset.nodeset import Member
from loomlog.core.copyset.procedures import Answer, Mending, mend
from loomlog.core.copyset.record import Kind, Lsn, Record, make
from loomlog.core.copyset.storage import Decision, LogStanding, Put, decide
from loomlog.core.requests import Lost, Service
from loomlog.errors import Corrupt

LOG, ME = 1, 2


class Damaged(MemoryRecords):
    def __init__(self, *records: Record, damaged: tuple[Lsn, ...] = ()) -> None:
        super().__init__()
        self.damaged = damaged
        for record in records:
            self.apply(Put(record))

    def load(self, head: Record) -> Record:
        if head.first in self.damaged:
            raise Corrupt("damaged")
        return super().load(head)


def record(offset: int = 5, *, wave: int = 1, batch: bytes = b"batch", count: int = 2) -> Record:
    return Record(make(3, offset), count, Kind.DATA, 0, (1, 2, 3), wave, 0, 0, batch)


def mended(records: Damaged, sent: Record, *, trimmed: Lsn = 0) -> Decision:
    sealed = LogStanding(seal=9, last_clean=9, trimmed=trimmed)
    return decide(Mend(LOG, sent), sealed, records, ME)


def test_a_damaged_copy_gets_its_batch_back_and_keeps_the_rest() -> None:
    own = record(wave=4)
    answer, changes = mended(Damaged(own, damaged=(own.first,)), record(wave=1))
    assert answer == Stored()
    assert changes == [Put(own)], "an older copy brings only its batch, whatever is sealed"


def test_another_batch_is_not_taken() -> None:
    own = record()
    found = mended(Damaged(own, damaged=(own.first,)), record(batch=b"other"))
    assert found == (NotHere(), [])


def test_a_sound_copy_stays_as_it_is() -> None:
    assert mended(Damaged(record()), record(wave=7, batch=b"other")) == (Stored(), [])


def test_nothing_is_added() -> None:
    assert mended(Damaged(), record()) == (NotHere(), [])
    longer = Damaged(record(count=3), damaged=(record().first,))
    assert mended(longer, record()) == (NotHere(), [])


def test_what_is_trimmed_needs_no_mending() -> None:
    own = record()
    damaged = Damaged(own, damaged=(own.first,))
    assert mended(damaged, own, trimmed=own.last) == (Stored(), [])


# ---- whether anybody has it


NODESET = (Member(1), Member(2), Member(3), Member(4))
OPEN = take_epoch(first_state(NODESET, 3, make(2, 1)), 1, NODESET)
RECOVERED = replace(take_epoch(OPEN, 1, NODESET), last_clean=3)
HEAD = record()
LACKS = Delivered((), HEAD.last + 1, 0, HEAD.last)
WAITS = Delivered((), HEAD.first, 0, HEAD.first - 1)
HAS_LOST = replace(LACKS, lost_through=3)
DAMAGED = replace(LACKS, damaged=((HEAD.first, HEAD.last),))
SENDS = replace(LACKS, records=(HEAD,))


def result(
    answers: Mapping[int | Service, Answer],
    state: LogState | None,
    gone: Mapping[int, int] | None = None,
) -> Mending:
    """Return the result for the copy on shard 2 of a record that is on 1, 2 and 3."""
    steps = mend(LOG, HEAD, ME, state, gone or {})
    try:
        asked = next(steps)
        while True:
            found = [
                Stored() if isinstance(ask.request, Mend) else answers.get(ask.target, Lost())
                for ask in asked.asks
            ]
            asked = steps.send(found)
    except StopIteration as end:
        outcome: Mending = end.value
        return outcome


def test_it_is_lost_if_all_others_lost_it() -> None:
    assert result({1: HAS_LOST, 3: DAMAGED}, None) is Mending.LOST
    assert result({1: HAS_LOST, 3: LACKS}, None) is Mending.NOT_NOW, "it may get it later"
    assert result({1: HAS_LOST}, None) is Mending.NOT_NOW


def test_also_if_they_are_away_and_lost_what_they_had() -> None:
    """The nodes lost it one after the other, and cannot say so."""
    assert result({3: DAMAGED}, None, gone={1: 3}) is Mending.LOST
    assert result({3: DAMAGED}, None, gone={1: 2}) is Mending.NOT_NOW, "it lost older ones"


@pytest.mark.parametrize("last", [LACKS, HAS_LOST, DAMAGED])
def test_of_a_recovered_epoch_it_is_lost_if_nobody_has_it(last: Delivered) -> None:
    """There is no copy that could still be made from another one."""
    assert result({1: LACKS, 3: LACKS, 4: last}, RECOVERED) is Mending.LOST
    assert result({1: LACKS, 3: LACKS, 4: last}, OPEN) is Mending.NOT_NOW
    assert result({1: LACKS, 3: WAITS, 4: last}, RECOVERED) is Mending.NOT_NOW
    assert result({1: LACKS, 4: last}, RECOVERED) is Mending.NOT_NOW


def test_of_a_recovered_epoch_any_shard_of_its_nodeset_may_have_it() -> None:
    assert result({1: LACKS, 3: LACKS, 4: SENDS}, RECOVERED) is Mending.MENDED
    assert result({1: LACKS, 3: LACKS}, RECOVERED) is Mending.NOT_NOW


def test_a_shard_that_left_the_nodeset_is_not_waited_for() -> None:
    """The copies that it had are on others."""
    smaller = tuple(metadata._replace(nodeset=NODESET[1:]) for metadata in RECOVERED.history)
    narrowed = replace(RECOVERED, history=smaller)
    assert result({3: LACKS, 4: LACKS}, narrowed) is Mending.LOST
    assert result({1: SENDS, 3: LACKS, 4: LACKS}, narrowed) is Mending.MENDED

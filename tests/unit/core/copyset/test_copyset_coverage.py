"""Nodes that crashed are checked: which have to be, and whether something is on no shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from loomlog.core.copyset.comparison import Compared, Comparison, Missing, compare_all
from loomlog.core.copyset.coverage import lost_epochs
from loomlog.core.copyset.log_state import checked, set_clean, take_epoch, trim, unchecked
from loomlog.core.copyset.messages import (
    Delivered,
    EpochEnd,
    Life,
    LogState,
    Read,
    SetClean,
    Stored,
)
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.procedures import Answer, Exchange
from loomlog.core.copyset.record import Epoch, Kind, Record, make
from loomlog.core.requests import Lost, Steps

LOG = 7
NODESET = tuple(map(Member, (1, 2, 3)))
ONE = EpochEnd(1, lng=2, last=5, seal=1, wave=1, found=((4, 5),))  # 3 is a hole


def recovered(end: EpochEnd = ONE) -> LogState:
    history = (EpochMetadata(1, NODESET, 2),)
    lives = tuple(Life(1, node, 1) for node in (1, 2, 3))
    state = LogState(2, 1, history, last_clean=0, tail=0, lives=lives)
    return set_clean(state, SetClean(LOG, 2, end))


def record(offset: int, count: int = 1) -> Record:
    return Record(make(1, offset), count, Kind.DATA, 0, (1, 2), 1, 0)


def drive(steps: Steps[Exchange, list[Answer], object], have: Mapping[int, list[Record]]) -> object:
    """Let nodes answer with what they have; one that is not named does not answer."""

    def answer(shard: object, request: object) -> Answer:
        if not isinstance(request, Read):
            return Stored()
        if shard not in have:
            return Lost()
        assert isinstance(shard, int)
        found = [r for r in have[shard] if request.first <= r.last and r.first <= request.until]
        return Delivered(found, request.until + 1, 0, request.until)

    try:
        asked = next(steps)
        while True:
            asked = steps.send([answer(ask.target, ask.request) for ask in asked.asks])
    except StopIteration as stop:
        return stop.value


@pytest.mark.parametrize(
    ("have", "lost"),
    [
        ({1: [record(1, 2)], 2: [record(1, 2), record(4, 2)], 3: []}, []),
        ({1: [record(1)], 2: [record(2), record(4, 2)], 3: []}, []),
        ({1: [record(1, 2)], 2: [record(4)], 3: []}, [1]),
        ({1: [record(2)], 2: [record(4, 2)], 3: []}, [1]),
        ({1: [record(1, 2)], 2: [record(4, 2)]}, None),
    ],
)
def test_an_entry_that_no_shard_has_is_lost(
    have: dict[int, list[Record]], lost: list[Epoch] | None
) -> None:
    assert drive(lost_epochs(LOG, recovered(), [1]), have) == lost


def test_shards_that_are_gone_need_not_tell_and_count_if_they_do() -> None:
    have = {1: [record(1, 2)], 2: [record(4, 2)]}
    assert drive(lost_epochs(LOG, recovered(), [1], gone=[3]), have) == []
    have = {1: [record(1, 2)], 2: [record(4)]}
    assert drive(lost_epochs(LOG, recovered(), [1], gone=[3]), have) == [1]
    assert drive(lost_epochs(LOG, recovered(), [1], gone=[3]), have | {3: [record(5)]}) == []


def test_only_epochs_are_looked_at_that_are_asked_for() -> None:
    assert drive(lost_epochs(LOG, recovered(), []), {}) == []


def test_what_is_trimmed_is_not_looked_for() -> None:
    have = {1: [], 2: [record(4, 2)], 3: []}
    assert drive(lost_epochs(LOG, trim(recovered(), make(1, 2)), [1]), have) == []


def test_a_shard_gives_others_what_they_lack() -> None:
    this = Comparison(LOG, 1, recovered(), frozenset({2}), 0)
    have = {1: [record(1)], 2: [], 3: []}
    result = drive(compare_all(this), have)
    assert isinstance(result, Compared)
    assert (result.missing, result.left) == ([Missing(2, make(1, 1), restored=True)], 0)


def test_it_gives_them_what_is_released_of_newer_epochs_too_if_it_is_asked_to() -> None:
    this = Comparison(LOG, 1, recovered(), frozenset({2}), 0)
    new = Record(make(2, 1), 1, Kind.DATA, 0, (1, 2), 1, 0)
    have = {1: [record(1), new], 2: [record(1)], 3: []}
    for newest, missing in ((False, []), (True, [Missing(2, new.first, restored=True)])):
        result = drive(compare_all(this, newest=newest), have)
        assert isinstance(result, Compared)
        assert (result.missing, result.left) == (missing, 0)


# ---- which nodes


def test_a_node_that_crashed_after_an_epoch_ended_has_to_be_checked() -> None:
    state = recovered()
    assert state.witnesses_of(1) == {1: 1, 2: 1, 3: 1}
    assert unchecked(state, {1: 1, 2: 1, 3: 1}) == {}
    assert unchecked(state, {1: 1, 2: 4, 3: 1}) == {2: 4}


def test_a_node_that_crashed_before_has_to_be_checked_too() -> None:
    state = recovered(replace(ONE, crashed=(2,)))
    done = checked(state, {2: 2}, through=1)
    assert unchecked(state, {1: 1, 2: 2, 3: 1}) == {2: 2}
    assert unchecked(done, {1: 1, 2: 2, 3: 1}) == {}
    assert [end.crashed for end in done.ends] == [()]


def test_epochs_that_were_not_checked_stay_so() -> None:
    state = recovered()
    state = take_epoch(state, 1, NODESET, lives={1: 1, 2: 1, 3: 1})
    state = replace(state, lives=tuple(Life(2, node, 1) for node in (1, 2, 3)))
    state = set_clean(state, SetClean(LOG, 3, replace(ONE, epoch=2)))
    done = checked(state, {2: 2}, through=1)
    assert (done.witnesses_of(1)[2], done.witnesses_of(2)[2]) == (2, 1)
    assert unchecked(done, {1: 1, 2: 2, 3: 1}) == {2: 2}


def test_lives_are_kept_where_they_change() -> None:
    state = replace(recovered(), epoch=3, lives=(Life(2, 1, 1), Life(2, 2, 2), Life(2, 3, 1)))
    state = set_clean(state, SetClean(LOG, 3, replace(ONE, epoch=2)))
    assert [life for life in state.witnesses if life.epoch == 2] == [Life(2, 2, 2)]
    trimmed = trim(state, make(2, 1))
    assert trimmed.witnesses_of(2) == {1: 1, 2: 2, 3: 1}
    assert {life.epoch for life in trimmed.witnesses} == {2}


def test_an_epoch_without_records_needs_no_check() -> None:
    state = recovered(EpochEnd(1, 0, 0, 1, 1))
    assert unchecked(state, {1: 9, 2: 9, 3: 9}) == {}

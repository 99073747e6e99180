"""Answers of nodes tell where a time begins, whether a log is empty, and where it ends."""

from __future__ import annotations

import random

from copyset_reader_rig import metadata, state

from loomlog.core.copyset.landmarks import (
    Ages,
    SequencerTail,
    is_enough,
    last_to_go,
    tail,
)
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import Authority
from loomlog.core.copyset.record import LSN_MAX, last_of, make

FOUR = state(metadata(1, 2, 3, 4, replication=2))


def test_enough_nodes_are_those_that_have_a_copy_of_every_record() -> None:
    assert not is_enough(FOUR, [1, 2], {})
    assert is_enough(FOUR, [1, 2, 3], {})


def test_each_nodeset_of_the_log_needs_enough() -> None:
    moved = state(metadata(1, 2), metadata(3, 4, since=5), epoch=6)
    assert not is_enough(moved, [1, 2], {})
    assert is_enough(moved, [1, 3], {})


def test_nodesets_of_which_all_is_trimmed_do_not_matter() -> None:
    moved = state(metadata(1, 2), metadata(3, 4, since=5), epoch=6, trimmed=last_of(4))
    assert is_enough(moved, [3], {})


def test_nodes_that_may_miss_records_do_not_count() -> None:
    assert not is_enough(FOUR, [1, 2, 3], {1: Authority.UNDERREPLICATED})
    assert is_enough(FOUR, [2, 3], {1: Authority.EMPTY})
    assert not is_enough(FOUR, [4], {1: Authority.EMPTY, 2: Authority.EMPTY, 3: Authority.EMPTY})


NOTHING_YOUNG = LSN_MAX


def kept(state: LogState, ages: dict[int, Ages], released: int = LSN_MAX) -> int | None:
    return last_to_go(state, ages, dict.fromkeys(ages, released), {})


def test_what_is_older_on_enough_nodes_may_go() -> None:
    ages = {
        1: Ages(make(1, 4), make(1, 9)),
        2: Ages(make(1, 7), NOTHING_YOUNG),
        3: Ages(0, LSN_MAX),
    }
    assert kept(FOUR, ages) == make(1, 7)


def test_nothing_goes_unless_enough_nodes_answer() -> None:
    old = Ages(make(1, 7), NOTHING_YOUNG)
    assert kept(FOUR, {1: old, 2: old}) is None
    assert kept(FOUR, {1: old, 2: old, 3: old}) == make(1, 7)


def test_a_young_copy_on_any_node_stops_trimming_before_it() -> None:
    """Timestamps may fall: the next sequencer's clock is an hour behind, say."""
    by_a_slow_clock = Ages(make(2, 1), NOTHING_YOUNG)
    young_before = Ages(0, make(1, 3))
    two_epochs = state(metadata(1, 2, 3, 4, replication=2), epoch=2)
    assert kept(two_epochs, {1: by_a_slow_clock, 2: young_before, 3: by_a_slow_clock}) == make(1, 2)


def test_what_may_still_be_acknowledged_stops_trimming() -> None:
    """A record may be on none of the nodes that answered, and be younger than those behind it."""
    old = dict.fromkeys((1, 2, 3), Ages(make(2, 8), NOTHING_YOUNG))
    recovering = state(metadata(1, 2, 3, 4, replication=2), epoch=2, last_clean=0)
    assert kept(recovering, old, released=make(1, 5)) == make(1, 5)
    recovered = state(metadata(1, 2, 3, 4, replication=2), epoch=2, last_clean=1)
    assert kept(recovered, old, released=make(1, 5)) == last_of(1)
    assert kept(recovered, old, released=make(2, 6)) == make(2, 6)


def test_a_node_that_nobody_tells_of_releases_any_more_holds_nothing_back() -> None:
    moved = state(metadata(3, 4, since=5), epoch=6, trimmed=last_of(4), last_clean=5)
    old = {node: Ages(make(6, 8), NOTHING_YOUNG) for node in (1, 3, 4)}
    released = {1: make(2, 3), 3: make(6, 8), 4: make(6, 8)}
    assert last_to_go(moved, old, released, {}) == make(6, 8)


def test_whoever_answers_no_young_record_goes() -> None:
    """Whatever the clocks did."""
    for seed in range(300):
        pick = random.Random(seed)
        times = {make(1, offset): pick.randint(0, 9) for offset in range(1, 20)}
        copies = {lsn: pick.sample([1, 2, 3, 4], 2) for lsn in times}
        before = pick.randint(0, 10)
        ages = {}
        for node in pick.sample([1, 2, 3, 4], 3):
            mine = [lsn for lsn in times if node in copies[lsn]]
            young = min((lsn for lsn in mine if times[lsn] >= before), default=LSN_MAX)
            ages[node] = Ages(max((lsn for lsn in mine if lsn < young), default=0), young)
        last = kept(FOUR, ages)
        assert last is not None
        assert all(at < before for lsn, at in times.items() if lsn <= last)
        following = times.get(last + 1)
        assert following is None or following >= before, "it could have gone, too"


def test_the_tail_is_the_sequencers() -> None:
    known = state(metadata(1, 2), epoch=3, last_clean=1, tail=make(1, 9))
    assert tail(known, SequencerTail(3, make(3, 4))) == make(3, 4)


def test_a_sequencer_that_was_replaced_does_not_know_the_tail() -> None:
    known = state(metadata(1, 2), epoch=3, last_clean=2, tail=make(1, 9))
    assert tail(known, SequencerTail(2, make(2, 4))) is None
    assert tail(known, None) is None


def test_a_new_sequencer_knows_the_tail_when_all_before_is_recovered() -> None:
    recovering = state(metadata(1, 2), epoch=3, last_clean=1, tail=make(1, 9))
    assert tail(recovering, SequencerTail(3, 0)) is None
    recovered = state(metadata(1, 2), epoch=3, last_clean=2, tail=make(2, 5))
    assert tail(recovered, SequencerTail(3, 0)) == make(2, 5)


def test_the_tail_of_a_closed_log_is_what_was_recovered() -> None:
    closing = state(metadata(1, 2), epoch=3, last_clean=1, tail=make(1, 9), closed=True)
    assert tail(closing, None) is None
    closed = state(metadata(1, 2), epoch=3, last_clean=2, tail=make(2, 5), closed=True)
    assert tail(closed, None) == make(2, 5)

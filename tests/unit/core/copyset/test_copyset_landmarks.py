"""Where a time begins, whether a log is empty, where it ends: from answers of nodes."""

from __future__ import annotations

import random

from copyset_reader_rig import metadata, state

from loomlog.core.copyset.authority import Authority
from loomlog.core.copyset.landmarks import (
    SequencerTail,
    find_time,
    is_empty,
    is_enough,
    last_to_go,
    tail,
)
from loomlog.core.copyset.lsn import last_of, make

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


def test_a_time_begins_behind_all_that_is_older() -> None:
    olders = {1: make(1, 4), 2: make(1, 7), 3: 0}
    assert find_time(FOUR, olders, {}) == make(1, 8)
    assert find_time(FOUR, {1: make(1, 4)}, {}) is None


def test_a_time_before_all_that_is_left_begins_behind_what_is_trimmed() -> None:
    trimmed = state(metadata(1, 2, 3, 4), trimmed=make(1, 5))
    assert find_time(trimmed, {1: 0, 2: 0, 3: 0}, {}) == make(1, 6)


def test_whatever_enough_nodes_answer_the_time_that_begins_is_the_same() -> None:
    for seed in range(100):
        pick = random.Random(seed)
        records = [(make(1, offset), offset // 3) for offset in range(1, 20)]
        copies = {lsn: pick.sample([1, 2, 3, 4], 2) for lsn, _ in records}
        time = pick.randint(0, 8)
        answered = pick.sample([1, 2, 3, 4], 3)
        olders = {
            node: max([0, *(lsn for lsn, at in records if at < time and node in copies[lsn])])
            for node in answered
        }
        expected = next((lsn for lsn, at in records if at >= time), make(1, 20))
        found = find_time(FOUR, olders, {})
        assert found is not None
        assert [lsn for lsn, _ in records if lsn >= found][:1] == [expected][
            : expected < make(1, 20)
        ]


def test_what_one_node_knows_to_be_too_old_may_go_everywhere() -> None:
    assert last_to_go({1: 0, 2: make(1, 7), 3: make(1, 4)}) == make(1, 7)
    assert last_to_go({}) == 0


def test_one_node_with_a_batch_is_enough_to_know_that_a_log_is_not_empty() -> None:
    assert is_empty(FOUR, {1: True, 2: False}, {}) is False
    assert is_empty(FOUR, {1: True, 2: True}, {}) is None
    assert is_empty(FOUR, {1: True, 2: True, 3: True}, {}) is True


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

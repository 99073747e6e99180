"""The table by which a replica recognises repeated appends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loomlog.errors import AppendUnknown, Unavailable
from loomlog.limits import APPENDS_IN_FLIGHT_MAX as WINDOW
from loomlog.node.appends import ProducerTable
from loomlog.types import ProducerMark


def test_a_batch_is_found_by_its_producer_and_number() -> None:
    table = ProducerTable()
    table.note(7, 1, 10)
    table.note(8, 1, 11)
    table.note(7, 2, 12)
    assert [table.find(7, 1), table.find(8, 1), table.find(7, 2)] == [10, 11, 12]
    assert [table.find(7, 3), table.find(8, 2), table.find(9, 1)] == [0, 0, 0]


def test_nobody_is_never_recognised() -> None:
    table = ProducerTable()
    table.note(0, 1, 10)
    assert table.find(0, 1) == 0


def test_as_many_are_remembered_as_may_be_under_way() -> None:
    table = ProducerTable()
    for number in range(1, WINDOW + 3):
        table.note(7, number, number)
    assert [table.find(7, number) for number in range(3, WINDOW + 3)] == list(range(3, WINDOW + 3))
    for number in (1, 2):
        with pytest.raises(AppendUnknown, match="too old"):
            table.find(7, number)


def test_a_number_that_was_left_out_is_new_while_that_is_certain() -> None:
    """A batch that was refused, and sent again after others."""
    table = ProducerTable()
    for number in (1, 2, 4, 5):
        table.note(7, number, number)
    assert table.find(7, 3) == 0
    table.note(7, 3, 6)
    assert table.find(7, 3) == 6


def test_a_seal_drops_what_was_not_committed() -> None:
    table = ProducerTable()
    for llsn in range(1, 11):
        table.note(7 + llsn % 2, llsn, llsn)
    table.note(99, 1, 11)
    table.cut(8)
    assert [table.find(7, 8), table.find(8, 7)] == [8, 7]
    assert [table.find(7, 10), table.find(8, 9), table.find(99, 1)] == [0, 0, 0]
    table.note(7, 10, 9)
    table.cut(8)
    assert [table.find(7, 10), table.find(7, 8)] == [0, 8]


def test_who_was_silent_for_longest_is_forgotten_first() -> None:
    table = ProducerTable(marks_max=4)
    for llsn, producer in enumerate((1, 2, 1, 3, 4), 1):
        table.note(producer, llsn, llsn)
    assert table.find(2, 2) == 0
    assert [table.find(1, 1), table.find(1, 3), table.find(3, 4), table.find(4, 5)] == [1, 3, 4, 5]


def test_one_producer_alone_is_never_forgotten() -> None:
    table = ProducerTable(marks_max=4)
    for llsn in range(1, 11):
        table.note(1, llsn, llsn)
    assert table.find(1, 10) == 10


def test_what_is_read_from_disk_is_known_as_before() -> None:
    marks = [ProducerMark(7, number, number * 10, 10) for number in range(50, 50 + WINDOW)]
    table = ProducerTable([*marks, ProducerMark(8, 1, 5, 1)])
    assert [table.find(7, 50), table.find(8, 1)] == [500, 5]
    with pytest.raises(AppendUnknown):  # there may have been one before
        table.find(7, 49)


def test_after_a_trim_only_what_is_certain_is_told() -> None:
    """A batch that is not in what is left may have been trimmed."""
    table = ProducerTable([ProducerMark(7, 5, 100, 1)], known_from=100)
    assert [table.find_certain(7, 5), table.find_certain(7, 6)] == [100, 0]
    for producer, number in ((7, 4), (8, 1)):
        with pytest.raises(Unavailable, match="trimmed"):
            table.find_certain(producer, number)
    assert table.find(8, 1) == 0  # for an append it is a new producer
    assert ProducerTable().find_certain(8, 1) == 0


def test_a_cut_below_an_earlier_one_forgets_all_above_it() -> None:
    table = ProducerTable()
    for llsn, (producer, number) in enumerate([(1, 1), (2, 1), (1, 2)], 1):
        table.note(producer, number, llsn)
    table.cut(2)
    table.cut(1)
    assert [table.find(1, 1), table.find(2, 1), table.find(1, 2)] == [1, 0, 0]


@given(
    st.lists(
        st.one_of(st.tuples(st.integers(1, 3), st.integers(1, 60)), st.integers(0, 80)),
        max_size=120,
    )
)
def test_it_never_says_no_wrongly(steps: list[tuple[int, int] | int]) -> None:
    """This holds for every order of numbers and every cut."""
    table = ProducerTable()
    stored: dict[tuple[int, int], int] = {}
    llsn = 1
    for step in steps:
        if isinstance(step, int):
            table.cut(step)
            stored = {batch: first for batch, first in stored.items() if first <= step}
            llsn = min(llsn, step + 1)
        elif step not in stored:
            table.note(*step, llsn)
            stored[step] = llsn
            llsn += 1
    for producer in (1, 2, 3):
        for number in range(1, 62):
            try:
                assert table.find(producer, number) == stored.get((producer, number), 0)
            except AppendUnknown:
                assert number < 61

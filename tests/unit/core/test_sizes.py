"""Deciding how far a log may be trimmed because of its size."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import TypeVar

import pytest

from loomlog.core.sizes import (
    MARKS_MAX,
    PIECES_MAX,
    STEPS,
    AskSizes,
    Measured,
    SizeMark,
    SizeMarks,
    corrected,
    last_surplus,
    measure,
    noted,
    piece_of,
    refine,
)

Question = TypeVar("Question")
Reply = TypeVar("Reply")
Outcome = TypeVar("Outcome")


def test_the_newest_bytes_stay() -> None:
    marks = (SizeMark(10, 100), SizeMark(20, 50), SizeMark(30, 60))
    assert last_surplus(marks, 110) == 10
    assert last_surplus(marks, 111) == 0, "less than that is stored behind 10"
    assert last_surplus(marks, 60) == 20
    assert last_surplus(marks, 61) == 10
    assert last_surplus((), 1) == 0
    assert last_surplus(marks[:1], 1) == 0, "how much is behind it is not known"


def test_marks_of_what_is_trimmed_go() -> None:
    marks = (SizeMark(10, 100), SizeMark(20, 50))
    assert noted(marks, SizeMark(30, 60), 20) == (SizeMark(30, 60),)
    assert noted(marks, SizeMark(30, 60), 15) == (SizeMark(20, 50), SizeMark(30, 60))


def test_no_more_marks_than_needed_and_no_byte_is_forgotten() -> None:
    random, marks = Random(1), SizeMarks()
    sizes = [random.randrange(1000) for _ in range(3 * MARKS_MAX)]
    for last, size in enumerate(sizes, 1):
        marks = noted(marks, SizeMark(last, size), 0)
    assert len(marks) == MARKS_MAX
    assert sum(mark.size for mark in marks) == sum(sizes)
    assert [mark.last for mark in marks] == sorted({mark.last for mark in marks})


class Parts:
    """Batches of several streams or chains, each of which examines a few at once."""

    def __init__(self, random: Random, parts: int) -> None:
        self.batches: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
        self.at_once = random.choice((1, 3, 1000))
        position = 1
        for _ in range(random.randrange(1, 80)):
            random.choice(self.batches).append((position, random.randrange(200)))
            position += random.choice((1, 1, 5, 40))
        self.last = position

    def ask(self, asked: AskSizes) -> list[Measured]:
        return [self._part(batches, asked) for batches in self.batches]

    def _part(self, batches: list[tuple[int, int]], asked: AskSizes) -> Measured:
        begun = [each for each in batches if asked.first <= each[0] <= asked.last]
        through = asked.last if len(begun) <= self.at_once else begun[self.at_once][0] - 1
        return Measured(through, sum(size for _, size in begun[: self.at_once]))

    def size(self, first: int, last: int) -> int:
        return sum(s for part in self.batches for at, s in part if first <= at <= last)


def drive(
    steps: Generator[Question, Reply, Outcome], answer: Callable[[Question], Reply]
) -> Outcome:
    try:
        question = next(steps)
        while True:
            question = steps.send(answer(question))
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome


def size_of(parts: Parts, asked: AskSizes) -> Measured:
    """Measure a whole range."""
    through, size = asked.first - 1, 0
    while through < asked.last:
        piece = drive(measure(through + 1, asked.last), parts.ask)
        assert through < piece.through <= asked.last
        assert piece.size == parts.size(through + 1, piece.through)
        through, size = piece.through, size + piece.size
    return Measured(through, size)


def marks_of(parts: Parts, kept: int, looks: Sequence[int] = ()) -> SizeMarks:
    """Measure a growing log, which has a later end each time."""
    marks = SizeMarks()
    for last in (*looks, parts.last):
        first = marks[-1].last + 1 if marks else 1
        if first <= last:
            marks = noted(marks, SizeMark(*size_of(parts, AskSizes(first, last))), 0)
        marks = refined(parts, marks, kept)
        lasts = [mark.last for mark in marks]
        assert lasts == sorted(set(lasts))
        assert lasts[-1] == last
        firsts = [1, *(each + 1 for each in lasts)]
        for at, mark in enumerate(marks):
            assert mark.size == parts.size(firsts[at], mark.last)
    return marks


def refined(parts: Parts, marks: SizeMarks, kept: int, trimmed: int = 0) -> SizeMarks:
    def ask(ranges: list[AskSizes]) -> list[Measured]:
        assert len(ranges) <= PIECES_MAX
        return [size_of(parts, range_) for range_ in ranges]

    return drive(refine(marks, trimmed, kept), ask)


def test_what_is_behind_a_cut_is_never_less_than_a_log_keeps() -> None:
    for seed in range(300):
        random = Random(seed)
        parts = Parts(random, random.randrange(1, 4))
        looks = sorted(random.choices(range(1, parts.last + 1), k=random.randrange(4)))
        for kept in (1, 100, 1000, 3000):
            cut = last_surplus(marks_of(parts, kept, looks), kept)
            assert not cut or parts.size(cut + 1, parts.last) >= kept, (seed, kept)


def test_no_more_stays_than_a_step_and_a_batch() -> None:
    for seed in range(300):
        random = Random(seed)
        parts = Parts(random, 2)
        looks = sorted(random.choices(range(1, parts.last + 1), k=random.randrange(4)))
        cut = last_surplus(marks_of(parts, 1000, looks), 1000)
        assert parts.size(cut + 1, parts.last) < 1000 + 1000 // STEPS + 200 * 2, seed


def test_a_log_that_grew_much_costs_few_questions() -> None:
    """However much it is: else looking takes longer the longer it took before."""
    for entries in (1_000, 1_000_000, 1 << 40):
        asked = 0

        def ask(ranges: list[AskSizes]) -> list[Measured]:
            nonlocal asked
            asked += len(ranges)
            return [Measured(last, 100 * (last - first + 1)) for first, last in ranges]

        whole = SizeMarks([SizeMark(entries, 100 * entries)])
        kept = 30_000
        marks = drive(refine(whole, 0, kept), ask)
        cut = last_surplus(marks, kept)
        assert kept <= 100 * (entries - cut) <= kept + kept // STEPS + 100
        assert asked <= PIECES_MAX * 12, "a few for each power of ten"
        assert len(marks) < MARKS_MAX


def test_what_is_not_counted_any_more_may_be_anywhere_in_its_piece() -> None:
    """Rows that were staged may be in front of the place where the log is cut."""
    steps = refine((SizeMark(10, 50), SizeMark(20, 500), SizeMark(30, 100)), 0, 200)
    ranges = next(steps)
    assert ranges == [AskSizes(position, position) for position in range(11, 21)]
    with pytest.raises(StopIteration) as end:
        steps.send([Measured(last, 20) for _, last in ranges])
    marks: SizeMarks = end.value.value
    assert marks[:3] == (SizeMark(10, 50), SizeMark(11, 320), SizeMark(12, 20))
    assert last_surplus(marks, 200) == 15


def test_what_was_being_written_when_it_was_measured_counts_later() -> None:
    marks = (SizeMark(10, 50), SizeMark(20, 100), SizeMark(30, 100))
    assert piece_of(marks, 20, 0) == AskSizes(11, 20)
    assert piece_of(marks, 20, 15) == AskSizes(16, 20)
    assert piece_of(marks, 20, 20) is None
    assert piece_of(marks, 25, 0) is None, "it was merged or cut"
    more = corrected(marks, [Measured(20, 150), Measured(30, 70), Measured(9, 1000)])
    assert more == (SizeMark(10, 50), SizeMark(20, 150), SizeMark(30, 100))


def test_a_piece_is_left_as_it_is_if_not_all_of_it_is_known() -> None:
    marks = (SizeMark(100, 5000),)
    steps = refine(marks, 0, 1000)
    ranges = next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send([Measured(last - 1, 7) for _, last in ranges])
    assert end.value.value == marks


def test_a_part_that_does_not_know_where_it_ends_stops_the_measurement() -> None:
    steps = measure(5, 100)
    assert next(steps) == AskSizes(5, 100)
    with pytest.raises(StopIteration) as end:
        steps.send([Measured(100, 7), Measured(4, 0)])
    assert end.value.value == Measured(4, 0)


def test_a_rule_that_counts_the_mark_itself_cuts_too_much() -> None:
    """A control: what the tests above would find."""

    def wrong(marks: SizeMarks, kept_bytes: int) -> int:
        newer = 0
        for mark in reversed(marks):
            newer += mark.size
            if newer >= kept_bytes:
                return mark.last
        return 0

    def cuts_too_much(seed: int) -> bool:
        parts = Parts(Random(seed), 2)
        cut = wrong(marks_of(parts, 1000), 1000)
        return bool(cut) and parts.size(cut + 1, parts.last) < 1000

    assert any(map(cuts_too_much, range(300)))

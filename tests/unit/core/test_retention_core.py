"""The position up to which a log may be trimmed because of its retention."""

from __future__ import annotations

from loomlog.core.retention import FindTime, last_expired
from loomlog.core.segments import Segment, Settings

ORDERED = Settings("any", 1, 1)
SEGMENTS = [Segment(1, ORDERED, 1, 10), Segment(2, ORDERED, 11, 20), Segment(3, ORDERED, 21, None)]


def expired(*answers: int | None, trimmed: int = 0) -> tuple[int, list[tuple[int, int]]]:
    """Return the position and the (loglet, first) of each question."""
    asked: list[tuple[int, int]] = []
    told = iter(answers)
    steps = last_expired(SEGMENTS, trimmed)
    try:
        question: FindTime = next(steps)
        while True:
            asked.append((question.segment.loglet, question.first))
            question = steps.send(next(told))
    except StopIteration as end:
        return int(end.value), asked


def test_the_first_segment_that_keeps_something_ends_the_search() -> None:
    assert expired(4) == (3, [(1, 1)])


def test_a_segment_that_is_too_old_as_a_whole_goes_and_the_next_is_asked() -> None:
    assert expired(11, 15) == (14, [(1, 1), (2, 11)])
    assert expired(11, 21, 30) == (29, [(1, 1), (2, 11), (3, 21)])


def test_trimmed_segments_are_not_asked() -> None:
    assert expired(15, trimmed=12) == (14, [(2, 13)])


def test_a_segment_that_cannot_tell_is_kept_with_all_behind_it() -> None:
    assert expired(None) == (0, [(1, 1)])
    assert expired(11, None) == (10, [(1, 1), (2, 11)])

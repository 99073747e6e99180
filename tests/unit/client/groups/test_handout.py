"""The entries that a consumer gets, its progress, and how it is stopped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loomlog.client.groups.handout import Handout
from loomlog.types import Entry


def entries(count: int) -> list[Entry]:
    return [Entry(position, 1, position, 0, None, b"") for position in range(1, count + 1)]


@given(st.integers(0, 450), st.data())
def test_it_tells_how_far_the_consumer_is_and_stops_behind_that(
    count: int, data: st.DataObject
) -> None:
    stop_at = data.draw(st.integers(0, count))
    handout, got = Handout(iter(entries(count))), list[int]()
    if not stop_at:
        handout.stop()
    for chunk in handout.chunks():
        for entry in chunk:
            got.append(entry.position)
            assert handout.note() == entry.position
            if entry.position == stop_at:
                handout.stop()
                assert handout.note() == stop_at
    assert got == list(range(1, stop_at + 1))
    assert handout.note() == (stop_at or None)


def test_the_first_entry_of_a_chunk_is_not_reached_before_it_is_asked_for() -> None:
    handout = Handout(entries(250))
    chunks = handout.chunks()
    assert handout.note() is None
    first = list(next(chunks))
    second = next(chunks)
    assert handout.note() == len(first)
    assert next(second).position == handout.note() == len(first) + 1

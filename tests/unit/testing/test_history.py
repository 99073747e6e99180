"""The checker must be able to fail: for every rule, a history that breaks it and no other."""

from __future__ import annotations

import pytest

from loomlog.testing.history import History, Rule, check
from loomlog.types import Entry, Gap, Position

Sight = tuple[int, int, int, bytes]  # position, stream, LLSN, value

GOOD: list[Sight] = [(1, 1, 1, b"a"), (2, 2, 1, b"b"), (3, 2, 2, b"c"), (4, 1, 2, b"d")]


def appended() -> History:
    """a alone, b and c together, d alone; on two streams; all acknowledged."""
    history = History()
    history.invoke("alice", 1, [b"a"])
    history.invoke("bob", 2, [b"b", b"c"])
    history.ack(1, [Position(1, 1, 1)])
    history.ack(2, [Position(2, 2, 1), Position(3, 2, 2)])
    history.invoke("alice", 3, [b"d"])
    history.ack(3, [Position(4, 1, 2)])
    return history


def read(history: History, name: str, sights: list[Sight], *, start: int = 1) -> None:
    history.reader(name, start)
    for sight in sights:
        history.see(name, *sight)


def finally_read(history: History, sights: list[Sight], *, start: int = 1) -> None:
    read(history, "final", sights, start=start)
    history.final("final")


def broken(history: History) -> set[Rule]:
    return {violation.rule for violation in check(history)}


def test_a_history_of_one_log_has_no_violations() -> None:
    history = appended()
    read(history, "early", GOOD[:2])
    read(history, "late", GOOD[2:], start=3)
    finally_read(history, GOOD)
    assert check(history) == []


def test_a_log_nobody_appended_to_is_fine() -> None:
    assert check(History()) == []


def test_an_acknowledged_value_that_nobody_sees_is_lost() -> None:
    history = appended()
    history.invoke("carol", 4, [b"e"])
    history.ack(4, [Position(5, 1, 3)])
    history.invoke("carol", 5, [b"f"])
    history.ack(5, [Position(6, 1, 4)])
    finally_read(history, [*GOOD, (6, 1, 4, b"f")])
    assert broken(history) == {Rule.ACKED_LOST, Rule.READER_ORDER}


def test_an_acknowledged_value_must_stand_where_it_was_acknowledged() -> None:
    history = History()
    history.invoke("alice", 1, [b"a"])
    history.invoke("bob", 2, [b"b"])
    history.ack(1, [Position(1, 1, 1)])
    history.ack(2, [Position(2, 1, 2)])
    finally_read(history, [(1, 1, 1, b"b"), (2, 1, 2, b"a")])
    assert broken(history) == {Rule.ACKED_PLACE}


def test_an_acknowledged_value_must_have_the_acknowledged_stream_and_llsn() -> None:
    history = History()
    history.invoke("alice", 1, [b"a"])
    history.ack(1, [Position(1, 2, 1)])
    finally_read(history, [(1, 1, 1, b"a")])
    assert broken(history) == {Rule.ACKED_PLACE}


def test_no_position_is_acknowledged_twice() -> None:
    history = History()
    history.invoke("alice", 1, [b"a"])
    history.invoke("bob", 2, [b"b"])
    history.ack(1, [Position(1, 1, 1)])
    history.ack(2, [Position(1, 1, 1)])
    finally_read(history, [(1, 1, 1, b"a")])
    assert Rule.ACK_CLASH in broken(history)


@pytest.mark.parametrize(
    "positions",
    [
        [Position(1, 1, 1), Position(3, 1, 2)],
        [Position(1, 1, 1), Position(2, 1, 3)],
        [Position(1, 1, 1), Position(2, 2, 2)],
        [Position(1, 1, 1)],
        [Position(0, 1, 0), Position(1, 1, 1)],
        [],
    ],
)
def test_one_append_many_gets_consecutive_positions(positions: list[Position]) -> None:
    history = History()
    history.invoke("alice", 1, [b"a", b"b"])
    history.ack(1, positions)
    finally_read(history, [(1, 1, 1, b"a"), (2, 1, 2, b"b")])
    assert Rule.ACK_SHAPE in broken(history)


def test_a_value_is_seen_once() -> None:
    history = appended()
    finally_read(history, [*GOOD, (5, 1, 3, b"a")])
    assert broken(history) == {Rule.ONCE}


def test_an_append_of_unknown_outcome_may_appear_once_but_not_twice() -> None:
    history = appended()
    history.invoke("carol", 4, [b"e"])
    history.unknown(4)
    history.invoke("carol", 5, [b"f"])  # and this one was never answered
    finally_read(history, [*GOOD, (5, 1, 3, b"e"), (6, 1, 4, b"f")])
    assert check(history) == []
    read(history, "later", [(7, 1, 5, b"e")], start=7)
    assert broken(history) == {Rule.ONCE}


def test_an_append_of_unknown_outcome_may_be_missing() -> None:
    history = appended()
    history.invoke("carol", 4, [b"e"])
    history.unknown(4)
    finally_read(history, GOOD)
    assert check(history) == []


def test_a_failed_append_is_never_seen() -> None:
    history = appended()
    history.invoke("carol", 4, [b"e"])
    history.fail(4)
    finally_read(history, [*GOOD, (5, 1, 3, b"e")])
    assert broken(history) == {Rule.FAILED_SEEN}


def test_nobody_sees_what_nobody_appended() -> None:
    history = appended()
    finally_read(history, [*GOOD, (5, 1, 3, b"ghost")])
    assert broken(history) == {Rule.INVENTED}


def test_all_readers_see_the_same() -> None:
    history = appended()
    history.invoke("carol", 4, [b"e"])
    history.invoke("carol", 5, [b"f"])
    finally_read(history, [*GOOD, (5, 1, 3, b"e")])
    read(history, "other", [*GOOD, (5, 1, 3, b"f")])
    assert broken(history) == {Rule.AGREEMENT}


@pytest.mark.parametrize(
    "order",
    [[1, 3, 4], [2, 3, 4], [1, 2, 2, 3], [1, 3, 2, 4]],
    ids=["hole", "late", "twice", "back"],
)
def test_a_reader_sees_positions_one_after_the_other(order: list[int]) -> None:
    history = appended()
    finally_read(history, GOOD)
    read(history, "other", [GOOD[position - 1] for position in order])
    assert broken(history) == {Rule.READER_ORDER}


@pytest.mark.parametrize("llsns", [(1, 3), (2, 1), (2, 3), (1, 1)])
def test_llsns_of_a_stream_are_dense_and_grow_with_the_position(llsns: tuple[int, int]) -> None:
    history = History()
    history.invoke("alice", 1, [b"a"])
    history.invoke("alice", 2, [b"b"])
    finally_read(history, [(1, 1, llsns[0], b"a"), (2, 1, llsns[1], b"b")])
    assert broken(history) == {Rule.STREAM_ORDER}


def test_a_batch_is_seen_whole_or_not_at_all() -> None:
    history = appended()
    history.invoke("carol", 4, [b"e", b"f"])
    finally_read(history, [*GOOD, (5, 1, 3, b"f")])
    assert broken(history) == {Rule.WHOLE}


def test_a_batch_is_seen_in_order() -> None:
    history = appended()
    history.invoke("carol", 4, [b"e", b"f"])
    finally_read(history, [*GOOD, (5, 1, 3, b"f"), (6, 1, 4, b"e")])
    assert broken(history) == {Rule.WHOLE}


def test_a_reader_that_stops_in_the_middle_of_a_batch_is_no_contradiction() -> None:
    history = History()
    history.invoke("carol", 1, [b"e", b"f"])
    read(history, "impatient", [(1, 1, 1, b"e")])
    assert check(history) == []


def test_an_append_that_began_after_an_acknowledgement_stands_behind_it() -> None:
    history = History()
    history.invoke("alice", 1, [b"a"])
    history.ack(1, [Position(2, 1, 2)])
    history.invoke("bob", 2, [b"b"])
    history.ack(2, [Position(1, 1, 1)])
    finally_read(history, [(1, 1, 1, b"b"), (2, 1, 2, b"a")])
    assert broken(history) == {Rule.REAL_TIME}


def test_without_a_final_read_nothing_is_proved() -> None:
    history = appended()
    read(history, "other", GOOD)
    assert broken(history) == {Rule.COMPLETE}


def test_a_final_read_reaches_the_last_acknowledged_position() -> None:
    history = appended()
    read(history, "other", GOOD)
    finally_read(history, GOOD[:3])
    assert broken(history) == {Rule.COMPLETE}


def test_a_final_read_begins_at_the_head() -> None:
    history = appended()
    read(history, "other", GOOD)
    finally_read(history, GOOD[1:], start=2)
    assert broken(history) == {Rule.COMPLETE}


def test_what_was_trimmed_need_not_be_seen() -> None:
    history = appended()
    history.trim(2)  # in the middle of b and c
    finally_read(history, GOOD[2:], start=1)
    assert check(history) == []


def test_a_trim_excuses_no_hole_above_it() -> None:
    history = appended()
    history.trim(2)
    finally_read(history, GOOD[3:], start=1)
    assert Rule.READER_ORDER in broken(history)
    assert Rule.ACKED_LOST in broken(history)


def test_a_recording_that_makes_no_sense_is_refused() -> None:
    history = appended()
    with pytest.raises(ValueError, match="invoked before"):
        history.invoke("alice", 1, [b"x"])
    with pytest.raises(ValueError, match="make values unique"):
        history.invoke("alice", 9, [b"a"])
    with pytest.raises(ValueError, match="has ended before"):
        history.fail(1)
    with pytest.raises(ValueError, match="never began"):
        history.unknown(77)
    with pytest.raises(ValueError, match="no values"):
        history.invoke("alice", 10, [])
    history.reader("r")
    with pytest.raises(ValueError, match="begun before"):
        history.reader("r")


def test_a_history_travels_as_text_and_is_judged_the_same() -> None:
    history = appended()
    history.invoke("carol", "op-4", [b"\x00\xff"])
    history.fail("op-4")
    history.invoke("carol", "op-5", [b"g"])
    history.unknown("op-5")
    history.trim(1)
    history.reader("final")
    history.see_entries("final", [Entry(p, s, n, 0, None, v) for p, s, n, v in GOOD])
    history.see("final", 5, 1, 3, b"\x00\xff")
    history.final("final")
    loaded = History.load(history.dump())
    assert loaded.dump() == history.dump()
    assert check(loaded) == check(history)
    assert broken(loaded) == {Rule.FAILED_SEEN}
    assert "op-4" in str(check(loaded)[0])


def with_gap() -> tuple[History, list[Entry | Gap]]:
    """One value, positions that nobody wrote, another value: of a stream that counts positions."""
    history = History()
    history.invoke("alice", 1, [b"a"])
    history.ack(1, [Position(1, 1, 1)])
    history.invoke("alice", 2, [b"b"])
    history.ack(2, [Position(5, 1, 5)])
    seen: list[Entry | Gap] = [
        Entry(1, 1, 1, 0, None, b"a"),
        Gap(2, 4, "hole"),
        Entry(5, 1, 5, 0, None, b"b"),
    ]
    return history, seen


def test_a_gap_that_readers_are_told_of_is_no_violation() -> None:
    history, seen = with_gap()
    history.reader("final", 1)
    history.see_entries("final", seen)
    history.final("final")
    assert check(history) == []
    assert check(History.load(history.dump())) == []


def test_what_is_a_gap_for_one_reader_is_one_for_all() -> None:
    history = History()
    history.invoke("bob", 0, [b"late"])
    history.invoke("alice", 1, [b"a"])
    history.ack(1, [Position(1, 1, 1)])
    history.reader("final", 1)
    history.see_entries("final", [Entry(1, 1, 1, 0, None, b"a"), Gap(2, 4, "hole")])
    history.final("final")
    read(history, "other", [(1, 1, 1, b"a"), (2, 1, 2, b"late")])
    assert broken(history) == {Rule.AGREEMENT}


@pytest.mark.parametrize(("trimmed", "found"), [(1, set()), (0, {Rule.AGREEMENT})])
def test_what_was_trimmed_is_a_gap_for_who_comes_later(trimmed: int, found: set[Rule]) -> None:
    history, seen = with_gap()
    history.reader("early", 1)
    history.see_entries("early", seen)
    history.final("early")
    history.trim(trimmed)
    history.reader("late", 1)
    history.see_entries("late", [Gap(1, 1, "trim"), *seen[1:]])
    assert broken(history) == found


def test_an_acknowledged_value_is_in_no_gap() -> None:
    history, seen = with_gap()
    history.invoke("bob", 3, [b"c"])
    history.ack(3, [Position(6, 1, 6)])
    history.reader("final", 1)
    history.see_entries("final", [*seen, Gap(6, 6, "hole")])
    history.final("final")
    assert broken(history) == {Rule.ACKED_LOST}


def conditional(expected: int, place: int) -> History:
    """Alice appends to 1 and 2, and Bob somewhere, expecting a tail."""
    history = History()
    history.invoke("alice", 1, [b"a", b"b"])
    history.ack(1, [Position(1, 1, 1), Position(2, 1, 2)])
    history.invoke("bob", 2, [b"c"], expected)
    history.ack(2, [Position(place, 1, place)])
    history.reader("final", 1)
    found = {1: b"a", 2: b"b", place: b"c"}
    seen: list[Entry | Gap] = [Entry(at, 1, at, 0, None, found[at]) for at in sorted(found)]
    if place > 3:
        seen.insert(2, Gap(3, place - 1, "hole"))
    history.see_entries("final", seen)
    history.final("final")
    return history


@pytest.mark.parametrize(
    ("expected", "place", "found"), [(2, 3, set()), (2, 5, set()), (1, 3, {Rule.EXPECTED})]
)
def test_behind_an_expected_tail_nothing_else_comes_first(
    expected: int, place: int, found: set[Rule]
) -> None:
    history = conditional(expected, place)
    assert broken(history) == found
    assert broken(History.load(history.dump())) == found


@pytest.mark.parametrize(("expected", "found"), [(1, set()), (2, {Rule.CONFLICT})])
def test_a_conflict_has_a_cause_that_came_before(expected: int, found: set[Rule]) -> None:
    history = conditional(2, 3)
    history.invoke("carol", 3, [b"d"], expected if expected == 1 else 3)
    history.conflict(3)
    history.invoke("alice", 4, [b"e"])
    history.ack(4, [Position(4, 1, 4)])
    history.reader("later", 4)
    history.see_entries("later", [Entry(4, 1, 4, 0, None, b"e")])
    history.final("later")
    assert broken(history) - {Rule.COMPLETE} == found
    assert broken(History.load(history.dump())) - {Rule.COMPLETE} == found

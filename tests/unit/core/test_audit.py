"""The audit trail is bounded in memory and in rate, and says what it leaves out."""

from __future__ import annotations

from loomlog.core.audit import ENTRIES_MAX, RATE_MAX, TEXT_CHARS_MAX, AuditTrail


def denials(trail: AuditTrail, count: int, who: str = "mallory", time_s: float = 1.5) -> None:
    for _ in range(count):
        trail.note(time_s, who, "there", "append", "denied", denied=True)


def test_entries_are_taken_in_their_order() -> None:
    trail = AuditTrail()
    calls: list[None] = []
    trail.noted = lambda: calls.append(None)
    for number in range(3):
        trail.note(number, "alice", "here", f"deed {number}", "done", denied=number == 1)
    assert [entry.what for entry in trail.take()] == ["deed 0", "deed 1", "deed 2"]
    assert trail.take() == []
    assert len(calls) == 3


def test_what_is_too_much_in_a_second_is_counted_in_an_entry_of_its_own() -> None:
    trail = AuditTrail()
    denials(trail, RATE_MAX + 7)
    *kept, last = trail.take()
    assert len(kept) == RATE_MAX
    assert not any(entry.dropped for entry in kept)
    assert (last.time_s, last.who, last.what, last.outcome) == (
        1.5,
        "",
        "entries that were left out",
        "dropped: 7 denials",
    )
    assert last.dropped == trail.dropped == 7
    assert trail.take() == []
    denials(trail, 1, time_s=2.0)
    [entry] = trail.take()
    assert entry.dropped == 0


def test_who_waits_for_entries_learns_of_those_that_were_left_out() -> None:
    trail = AuditTrail()
    denials(trail, RATE_MAX)
    trail.take()
    calls: list[None] = []
    trail.noted = lambda: calls.append(None)
    denials(trail, 3)
    assert len(calls) == 1
    [entry] = trail.take()
    assert entry.dropped == 3


def test_a_flood_of_denials_hides_neither_actions_nor_denials_of_others() -> None:
    trail = AuditTrail()
    denials(trail, 10 * ENTRIES_MAX)
    trail.note(1.5, "mallory", "there", "delete_log", "done", denied=False)
    trail.note(1.5, "carol", "here", "create_log", "done", denied=False)
    denials(trail, 1, "bob")
    found = {(entry.who, entry.what) for entry in trail.take()}
    assert found >= {("mallory", "delete_log"), ("carol", "create_log"), ("bob", "append")}


def test_one_who_is_busy_does_not_hide_the_actions_of_others() -> None:
    trail = AuditTrail()
    for _ in range(10 * RATE_MAX):
        trail.note(1.5, "mallory", "there", "create_log", "done", denied=False)
    trail.note(1.5, "carol", "here", "delete_log", "done", denied=False)
    *kept, last = trail.take()
    assert kept[-1].who == "carol"
    assert last.outcome == f"dropped: {9 * RATE_MAX} actions"


def test_it_holds_a_bounded_number_of_short_entries() -> None:
    trail = AuditTrail()
    for second in range(2 * ENTRIES_MAX):
        for denied in (True, False):
            trail.note(second, "x" * 10_000, "there", "append", "y" * 10_000, denied=denied)
    *entries, left_out, also = trail.take()
    assert len(entries) == 2 * ENTRIES_MAX
    assert (left_out.dropped, also.dropped) == (ENTRIES_MAX, ENTRIES_MAX)
    assert len(entries[0].who) == len(entries[0].outcome) == TEXT_CHARS_MAX


def test_a_text_that_was_cut_says_so() -> None:
    trail = AuditTrail()
    trail.note(1, "w" * TEXT_CHARS_MAX, "here", "z" * (TEXT_CHARS_MAX + 1), "done", denied=False)
    [entry] = trail.take()
    assert entry.who == "w" * TEXT_CHARS_MAX
    assert len(entry.what) == TEXT_CHARS_MAX
    assert entry.what.endswith(f"z… [cut: {TEXT_CHARS_MAX + 1} characters]")

"""The audit trail is bounded in memory and in rate."""

from __future__ import annotations

from loomlog.core.audit import ENTRIES_MAX, RATE_MAX, TEXT_CHARS_MAX, AuditTrail


def test_entries_are_taken_in_their_order() -> None:
    trail = AuditTrail()
    calls: list[None] = []
    trail.noted = lambda: calls.append(None)
    for number in range(3):
        trail.note(number, "alice", "here", f"deed {number}", "denied")
    assert [entry.what for entry in trail.take()] == ["deed 0", "deed 1", "deed 2"]
    assert trail.take() == []
    assert len(calls) == 3


def test_what_is_too_much_in_a_second_is_counted() -> None:
    trail = AuditTrail()
    for _ in range(RATE_MAX + 7):
        trail.note(1.5, "mallory", "there", "append", "denied")
    assert len(trail.take()) == RATE_MAX
    trail.note(2.0, "mallory", "there", "append", "denied")
    [entry] = trail.take()
    assert entry.dropped == trail.dropped == 7


def test_it_holds_a_bounded_number_of_short_entries() -> None:
    trail = AuditTrail()
    for second in range(2 * ENTRIES_MAX):
        trail.note(second, "x" * 10_000, "there", "append", "y" * 10_000)
    entries = trail.take()
    assert len(entries) == ENTRIES_MAX
    assert len(entries[0].who) == len(entries[0].outcome) == TEXT_CHARS_MAX

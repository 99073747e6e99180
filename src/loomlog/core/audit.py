"""The audit trail of a server: what it denied, and what operators did. Pure.

It is bounded in memory and in rate. Denials and actions have separate budgets, and so has every
name: a flood of denied requests hides neither what others do nor other actions of its sender.
Entries that do not fit are counted, and the count becomes an entry. The writer of the audit log
takes the entries from here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

ENTRIES_MAX: Final = 1000  # waiting to be written: this many denials, and this many actions
RATE_MAX: Final = 50  # in a second, for one name: this many denials, and this many actions
TEXT_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the audit log."""

    time_s: float  # since 1970
    who: str
    where: str  # the address of the peer
    what: str
    outcome: str
    dropped: int = 0  # if this entry stands for entries that did not fit: how many


class AuditTrail:
    """Entries that wait to be written. `noted` is called when there are some."""

    def __init__(self) -> None:
        self._entries: list[AuditEntry] = []
        self._second = 0
        self._in_second: Counter[tuple[bool, str]] = Counter()  # noted, by kind and name
        self._waiting: Counter[bool] = Counter()  # entries, by kind: whether they are denials
        self._left_out: Counter[bool] = Counter()  # by kind, since the last `take`
        self._left_out_s = 0.0  # when the last one was left out
        self.dropped = 0
        self.noted: Callable[[], None] = lambda: None

    def note(
        self, time_s: float, who: str, where: str, what: str, outcome: str, *, denied: bool
    ) -> None:
        """Record a denial, or the outcome of an action."""
        if int(time_s) != self._second:
            self._second = int(time_s)
            self._in_second.clear()
        who = _cut(who)
        self._in_second[denied, who] += 1
        if self._in_second[denied, who] > RATE_MAX or self._waiting[denied] >= ENTRIES_MAX:
            self._leave_out(time_s, denied)
            return
        self._waiting[denied] += 1
        self._entries.append(AuditEntry(time_s, who, _cut(where), _cut(what), _cut(outcome)))
        self.noted()

    def _leave_out(self, time_s: float, denied: bool) -> None:
        self.dropped += 1
        self._left_out_s = time_s
        self._left_out[denied] += 1
        if self._left_out.total() == 1:
            self.noted()

    def take(self) -> list[AuditEntry]:
        """Return all entries, oldest first, and forget them."""
        entries, self._entries = self._entries, []
        for denied, count in sorted(self._left_out.items()):
            outcome = f"dropped: {count} {'denials' if denied else 'actions'}"
            what = "entries that were left out"
            entries.append(AuditEntry(self._left_out_s, "", "", what, outcome, count))
        self._waiting.clear()
        self._left_out.clear()
        return entries


def _cut(text: str) -> str:
    """Return the text, shortened if it is too long, with a note that says so."""
    if len(text) <= TEXT_CHARS_MAX:
        return text
    mark = f"… [cut: {len(text)} characters]"
    return text[: TEXT_CHARS_MAX - len(mark)] + mark

"""The audit trail of a server: what was denied and what operators did. Pure.

It is bounded in memory and in rate: what does not fit is counted, and the count is noted with the
next entry. Whoever writes the trail to the audit log takes its entries from here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

ENTRIES_MAX: Final = 1000  # that wait to be written
RATE_MAX: Final = 50  # a second
TEXT_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the audit log."""

    time_s: float  # since 1970
    who: str
    where: str  # the address of the peer
    what: str
    outcome: str
    dropped: int = 0  # entries before this one that did not fit


class AuditTrail:
    """Entries that wait to be written. `noted` is called when there are some."""

    def __init__(self) -> None:
        self._entries: deque[AuditEntry] = deque()
        self._second = 0
        self._count = 0  # noted in this second
        self._unsaid = 0  # dropped since the last entry
        self.dropped = 0
        self.noted: Callable[[], None] = lambda: None

    def note(self, time_s: float, who: str, where: str, what: str, outcome: str) -> None:
        if int(time_s) != self._second:
            self._second, self._count = int(time_s), 0
        self._count += 1
        if self._count > RATE_MAX or len(self._entries) >= ENTRIES_MAX:
            self._unsaid += 1
            self.dropped += 1
            return
        who, where, what = who[:TEXT_CHARS_MAX], where[:TEXT_CHARS_MAX], what[:TEXT_CHARS_MAX]
        entry = AuditEntry(time_s, who, where, what, outcome[:TEXT_CHARS_MAX], self._unsaid)
        self._entries.append(entry)
        self._unsaid = 0
        self.noted()

    def take(self) -> list[AuditEntry]:
        """Return all entries, oldest first, and forget them."""
        entries, self._entries = list(self._entries), deque()
        return entries

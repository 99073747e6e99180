"""A leader's knowledge of a member: plain facts; leader.py decides. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from loomlog.core.quorum.takeover import Sealed

RECORD_BYTES: Final = 64  # what a record takes in a file besides its content, about


class Seal(NamedTuple):
    """A seal, answered by Sealed."""


class Read(NamedTuple):
    """A request for the records of the member's file."""


class Install(NamedTuple):
    """An installation, answered by how far the member has stored."""

    last_index: int
    records: list[bytes]


class Append(NamedTuple):
    """An append, answered like an installation. Without records it only confirms the epoch."""

    first_index: int
    records: list[bytes]


Message = Seal | Read | Install | Append


class Sent(NamedTuple):
    """A message that is not answered yet."""

    confirm: int  # the newest question whether the epoch holds, when it was sent
    last_index: int  # that its answer should name; 0: none
    install: bool


def bytes_of(records: list[bytes]) -> int:
    """Return about how many bytes the records take in a file."""
    return sum(map(len, records)) + RECORD_BYTES * len(records)


@dataclass(slots=True)
class Progress:
    """The leader's knowledge of a member. Messages in flight are answered in order."""

    connected: bool = False
    asked: bool = False  # sealed over this connection, or about to be
    sealed: Sealed | None = None  # its answer over this connection
    following: bool = False  # takes appends: what it has is what its leader installed
    installed: bool = False  # by this leader some time, perhaps without an answer
    installing: bool = False
    heal_when_confirmed: int = 0  # of one that lost what it had; 0: not yet known
    next_index: int = 0  # the first that was not sent
    stored_index: int = 0  # durable there
    confirmed: int = 0  # the newest question whether the epoch holds that it answered
    asked_confirm: int = 0  # ... that it was asked
    file_bytes: int = 0
    file_bytes_max: int = 0
    in_flight: deque[Sent] = field(default_factory=deque)

    def disconnected(self) -> None:
        """Forget all but what the member has stored: it must be asked again."""
        self.connected = self.asked = self.following = self.installing = False
        self.sealed = None
        self.heal_when_confirmed = 0
        self.asked_confirm = self.confirmed
        self.in_flight.clear()

    def sent(self, message: Message, confirm: int) -> None:
        takes = isinstance(message, Install | Append)
        last_index = self.next_index - 1 if takes else 0
        self.in_flight.append(Sent(confirm, last_index, isinstance(message, Install)))
        if takes:
            self.asked_confirm = confirm

    def install_sent(self, message: Install, file_bytes_max: int) -> None:
        self.following = self.installed = self.installing = True
        self.next_index = message.last_index + 1
        self.file_bytes = bytes_of(message.records)
        self.file_bytes_max = max(file_bytes_max, 2 * self.file_bytes)

    def append_sent(self, message: Append) -> None:
        self.next_index = message.first_index + len(message.records)
        self.file_bytes += bytes_of(message.records)

"""The leader's side of the round log, for one epoch. Pure.

The driver reports events (a connection, an answer, a record to append) and then asks, for each
member, what to send now (`next_message`) until there is nothing more. Unanswered messages are
bounded; a slow or absent member is left behind and filled again later: nothing waits for it.

    takeover:   seal each member → a majority answered: read the best → install → a majority: open
    open:       append to all; done when a majority has stored it, in order

A takeover learns what was decided. What an older leader got acknowledged is in one of the files
that were asked for, of that leader's epoch or of a newer one that began with it; so the newest
epoch decides, and then the length. The new leader installs only on members whose answer it took
into account. A member that answers late may know more than what was chosen. That was never
acknowledged, and it is overwritten, but not before the log is open, so that it never stands in for
those that were asked.

An installation carries a snapshot of what is done and all records that are under way, so it never
takes from a member what it had stored before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from loomlog.core.quorum.member import Configuration, MemberId
from loomlog.errors import Unavailable
from loomlog.limits import MIB


class Sealed(NamedTuple):
    """The answer of a member that was sealed."""

    file_epoch: int
    last_index: int
    lost: bool = False
    record_format: int = 0  # the newest that it reads

    @property
    def knows(self) -> tuple[int, int]:
        return self.file_epoch, self.last_index


class RoundsLost(Unavailable):
    """A majority has lost what was decided: no takeover can succeed."""


class Choice(NamedTuple):
    member: MemberId
    knows: tuple[int, int]


def choose(configuration: Configuration, answers: Mapping[MemberId, Sealed]) -> Choice | None:
    """Return the member whose tail to take, once a majority, without lost members, has answered."""
    counting = {member: answer for member, answer in answers.items() if not answer.lost}
    if not configuration.has_majority(counting):
        return None
    best = max(sorted(counting), key=lambda member: counting[member].knows)
    return Choice(best, counting[best].knows)


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
    record_format: int = 0  # according to its last answer
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


IN_FLIGHT_MAX: Final = 16  # messages per member: enough to keep its disk busy
APPEND_BYTES_MAX: Final = MIB  # in one message

Snapshot = Callable[[], Iterable[bytes]]


class LeaderLog:
    """The round log as the leader of one epoch knows it."""

    def __init__(self, epoch: int, configuration: Configuration, file_bytes: int) -> None:
        self.epoch = epoch
        self.configuration = configuration
        self.members = {member: Progress() for member in configuration.everybody}
        self.snapshot: Snapshot = tuple  # what a start would need of all that is done
        self.tail: list[bytes] | None = None  # what earlier leaders decided, once it is read
        self.open = False
        self.last_index = 0
        self.done_index = 0
        self.confirmed = 0  # a majority has answered this question since it was asked
        self._file_bytes = file_bytes
        self._choice: Choice | None = None
        self._reading = False
        self._records: deque[bytes] = deque()  # up to last_index; the older ones may be gone
        self._records_bytes = 0
        self._confirm = 0  # the newest question whether the epoch still holds

    # ---- events

    def connected(self, member: MemberId) -> None:
        self.members[member].connected = True

    def disconnected(self, member: MemberId) -> None:
        self.members[member].disconnected()
        if self.tail is None and self._choice is not None and self._choice.member == member:
            self._choose()

    def sealed(self, member: MemberId, answer: Sealed) -> None:
        """Take the answer to a seal. Unavailable: this epoch cannot be opened; take a new one.
        RoundsLost: none can."""
        progress = self.members[member]
        progress.in_flight.popleft()
        progress.sealed = answer
        progress.record_format = answer.record_format
        if answer.lost:
            progress.stored_index = 0
            self._heal_later(progress)
        elif self._goes_on(progress, answer):
            progress.following = True
            progress.next_index = answer.last_index + 1
            self._stored(progress, answer.last_index)
        if self.tail is None:
            self._check_not_lost()
        if self.tail is None and self._choice is None:
            self._choose()
        elif not self.open:
            self._check_eligible()

    def tail_read(self, member: MemberId, records: list[bytes]) -> None:
        assert self._choice is not None
        self.members[member].in_flight.popleft()
        self.tail = records
        self.snapshot = lambda: records
        # The takeover has an index of its own: nothing of this epoch is ever at index 0.
        self.last_index = self.done_index = self._choice.knows[1] + 1

    def stored(self, member: MemberId, index: int) -> None:
        """Take the answer to an installation or an append."""
        progress = self.members[member]
        sent = progress.in_flight.popleft()
        progress.confirmed = max(progress.confirmed, sent.confirm)
        progress.installing = progress.installing and not sent.install
        if index < sent.last_index and not progress.installing:
            progress.following = False  # it did not follow on
        self._stored(progress, index)
        reached = {member: progress.confirmed for member, progress in self.members.items()}
        self.confirmed = max(self.confirmed, self.configuration.agreed(reached))

    def why_not_open(self) -> str:
        """Return what a takeover waits for."""
        away = [member for member in self.members if member not in self._answers()]
        lost = self._lost()
        if self._choice is not None or not away:
            return "metadata repositories take long to store what was decided: look at their disks"
        is_away = "is" if len(away) == 1 else "are"
        says = f"{_repositories(away)} {is_away} away"
        if lost:
            says += f", and {_and(lost)} {_lost_rounds(lost)}"
        return (
            f"{says}: start {_and(away)}; if that is not possible, stop all and see `loom metadata "
            "rebuild`"
        )

    @property
    def record_format(self) -> int:
        """The newest format that every member reads; 0 until all of them have answered once."""
        return min(progress.record_format for progress in self.members.values())

    def append(self, record: bytes) -> int:
        """Append a record and return its index. It is done when `done_index` has reached that."""
        assert self.open
        self.last_index += 1
        self._records.append(record)
        self._records_bytes += bytes_of([record])
        return self.last_index

    def confirm(self) -> int:
        """Ask whether this epoch still holds. It did once `confirmed` has reached the result."""
        self._confirm += 1
        return self._confirm

    # ---- messages

    def next_message(self, member: MemberId) -> Message | None:
        """Return what to send to the member now, and count it as sent."""
        progress = self.members[member]
        if not progress.connected or len(progress.in_flight) >= IN_FLIGHT_MAX:
            return None
        message = self._next_message(member, progress)
        if message is not None:
            progress.sent(message, self._confirm)
        return message

    def _next_message(self, member: MemberId, progress: Progress) -> Message | None:
        if not progress.asked:
            progress.asked = True
            return Seal()
        if progress.sealed is None or progress.installing:
            return None
        if self.tail is None:
            return self._read(member)
        if not progress.following:
            return self._install(progress) if self._may_install(progress) else None
        if progress.next_index < self._first_index or self._is_to_trim(member, progress):
            return self._install(progress)
        if progress.next_index <= self.last_index or progress.asked_confirm < self._confirm:
            return self._append(progress)
        return None

    def _read(self, member: MemberId) -> Read | None:
        if self._choice is None or self._choice.member != member or self._reading:
            return None
        self._reading = True
        return Read()

    def _install(self, progress: Progress) -> Install:
        message = Install(self.last_index, [*self.snapshot(), *self._under_way()])
        progress.install_sent(message, self._file_bytes)
        return message

    def _append(self, progress: Progress) -> Append:
        first = progress.next_index
        records: list[bytes] = []
        size = 0
        for record in islice(self._records, first - self._first_index, None):
            size += len(record)
            if records and size > APPEND_BYTES_MAX:
                break
            records.append(record)
        message = Append(first, records)
        progress.append_sent(message)
        return message

    # ---- internals

    @property
    def _first_index(self) -> int:
        """The index of the first record that is still here."""
        return self.last_index - len(self._records) + 1

    def _under_way(self) -> Iterable[bytes]:
        return islice(self._records, self.done_index + 1 - self._first_index, None)

    def _choose(self) -> None:
        self._choice = choose(self.configuration, self._answers())
        self._reading = False

    def _answers(self) -> dict[MemberId, Sealed]:
        return {m: p.sealed for m, p in self.members.items() if p.sealed is not None}

    def _lost(self) -> list[MemberId]:
        return [member for member, answer in self._answers().items() if answer.lost]

    def _check_not_lost(self) -> None:
        lost = self._lost()
        if not self.configuration.has_majority(self.members.keys() - lost):
            raise RoundsLost(
                f"{_repositories(lost)} {_lost_rounds(lost)}: restore the --data of enough of them "
                "as it was last, or stop all and see `loom metadata rebuild`"
            )

    def _goes_on(self, progress: Progress, answer: Sealed) -> bool:
        """Return whether a member that is back still has what this leader installed."""
        return progress.installed and answer.file_epoch == self.epoch

    def _may_install(self, progress: Progress) -> bool:
        assert progress.sealed is not None
        if progress.sealed.lost:
            return 0 < progress.heal_when_confirmed <= self.confirmed
        return self.open or self._eligible(progress.sealed)

    def _eligible(self, answer: Sealed) -> bool:
        """Return whether its answer was taken into account."""
        assert self._choice is not None
        return answer.file_epoch == self.epoch or answer.knows <= self._choice.knows

    def _check_eligible(self) -> None:
        """Raise if a member that knows more would stand in for members that are gone."""
        answers = {m: a for m, a in self._answers().items() if not a.lost}
        eligible = [member for member, answer in answers.items() if self._eligible(answer)]
        has_majority = self.configuration.has_majority
        if has_majority(answers) and not has_majority(eligible):
            raise Unavailable(
                f"members came and went while epoch {self.epoch} was opened: take a new epoch"
            )

    def _heal_later(self, progress: Progress) -> None:
        """Put off filling a member that lost its disk, and perhaps its promise to a newer leader,
        until a majority without it has said that there is none."""
        if self.open:
            progress.heal_when_confirmed = self.confirm()

    def _stored(self, progress: Progress, index: int) -> None:
        progress.stored_index = max(progress.stored_index, index)
        reached = {m: p.stored_index for m, p in self.members.items()}
        agreed = self.configuration.agreed(reached)
        if not self.open:
            self._open_if(agreed)
        else:
            self.done_index = max(self.done_index, agreed)
            self._forget()

    def _open_if(self, agreed: int) -> None:
        if self.tail is not None and agreed >= self.last_index:
            self.open = True
            for progress in self.members.values():
                if progress.sealed is not None and progress.sealed.lost:
                    self._heal_later(progress)

    def _forget(self) -> None:
        """Drop old records that are done. Some are kept for members that were away for a moment."""
        while self._records_bytes > 2 * self._file_bytes and self._first_index <= self.done_index:
            self._records_bytes -= bytes_of([self._records.popleft()])

    def _is_to_trim(self, member: MemberId, progress: Progress) -> bool:
        """Return whether its file is too large. A new file takes a while, so a majority is left to
        continue with, unless it becomes urgent."""
        if progress.file_bytes < progress.file_bytes_max:
            return False
        at_work = [m for m, p in self.members.items() if p.following and not p.installing]
        at_work.remove(member)
        return (
            self.configuration.has_majority(at_work)
            or progress.file_bytes >= 2 * progress.file_bytes_max
        )


def _repositories(members: Collection[MemberId]) -> str:
    return f"metadata {'repository' if len(members) == 1 else 'repositories'} {_and(members)}"


def _lost_rounds(members: Collection[MemberId]) -> str:
    return f"lost {'its' if len(members) == 1 else 'their'} rounds"


def _and(members: Iterable[MemberId]) -> str:
    return " and ".join(map(str, members))

"""The leader's side of the round log, for one epoch. Pure.

The driver reports events (a connection, an answer, a record to append) and then calls
`next_message` for each member until it returns None. Unanswered messages are bounded. A slow or
absent member is left behind and installed again later; nothing waits for it.

    takeover:   seal each member → a majority answered: read the best → install → a majority: open
    open:       append to all; done when a majority has stored it, in order

A takeover reads what earlier leaders decided. Records that an older leader acknowledged are in one
of the answering members' files, with that leader's epoch or a newer one that began with them; so
the file with the newest epoch is the best, and among those the longest. Until the log is open, the
new leader installs only on members whose answer was considered. A member that answers late may have
records beyond the chosen file. Those were never acknowledged and are overwritten, but only after
the log is open: otherwise that member could stand in for one whose answer was considered.

An installation carries a snapshot of the records that are done and all records that are not, so it
never removes records that a member had stored.
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
    """The answer of a member to a seal."""

    file_epoch: int
    last_index: int
    lost: bool = False
    record_format: int = 0  # the newest that the member can read

    @property
    def knows(self) -> tuple[int, int]:
        return self.file_epoch, self.last_index


class RoundsLost(Unavailable):
    """A majority has lost its rounds: no takeover can succeed."""


class Choice(NamedTuple):
    member: MemberId
    knows: tuple[int, int]


def choose(configuration: Configuration, answers: Mapping[MemberId, Sealed]) -> Choice | None:
    """Return the member whose file to read, or None until a majority has answered. Members that
    lost their files do not count."""
    counting = {member: answer for member, answer in answers.items() if not answer.lost}
    if not configuration.has_majority(counting):
        return None
    best = max(sorted(counting), key=lambda member: counting[member].knows)
    return Choice(best, counting[best].knows)


RECORD_BYTES: Final = 64  # approximate overhead of a record in a file


class Seal(NamedTuple):
    """A seal. The answer is Sealed."""


class Read(NamedTuple):
    """A request for the records of the member's file."""


class Install(NamedTuple):
    """An installation. The answer is the last index that the member has stored."""

    last_index: int
    records: list[bytes]


class Append(NamedTuple):
    """An append. The answer is that of an installation. Without records it only confirms the
    epoch."""

    first_index: int
    records: list[bytes]


Message = Seal | Read | Install | Append


class Sent(NamedTuple):
    """A message that has not been answered yet."""

    confirm: int  # the newest `confirm` when it was sent
    last_index: int  # the answer expected; 0: none
    install: bool


def bytes_of(records: list[bytes]) -> int:
    """Return approximately how many bytes the records take in a file."""
    return sum(map(len, records)) + RECORD_BYTES * len(records)


@dataclass(slots=True)
class Progress:
    """The leader's view of a member. Messages in flight are answered in order."""

    connected: bool = False
    asked: bool = False  # a seal was sent over this connection
    sealed: Sealed | None = None  # the answer to it
    record_format: int = 0  # according to its last answer
    following: bool = False  # takes appends: it has exactly what this leader installed
    installed: bool = False  # this leader has sent an installation, perhaps without an answer
    installing: bool = False
    heal_when_confirmed: int = 0  # if it lost its file: install after this confirm; 0: not yet set
    next_index: int = 0  # the first that was not sent
    stored_index: int = 0  # durable on the member
    confirmed: int = 0  # the newest `confirm` that it answered
    asked_confirm: int = 0  # the newest `confirm` that was sent to it
    file_bytes: int = 0
    file_bytes_max: int = 0
    in_flight: deque[Sent] = field(default_factory=deque)

    def disconnected(self) -> None:
        """Forget everything but what the member has stored: it must be sealed again."""
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
    """The round log, from the point of view of the leader of one epoch."""

    def __init__(self, epoch: int, configuration: Configuration, file_bytes: int) -> None:
        self.epoch = epoch
        self.configuration = configuration
        self.members = {member: Progress() for member in configuration.everybody}
        self.snapshot: Snapshot = tuple  # the records that a start needs of those that are done
        self.tail: list[bytes] | None = None  # the records of earlier leaders, once read
        self.open = False
        self.last_index = 0
        self.done_index = 0
        self.confirmed = 0  # the newest `confirm` that a majority has answered
        self._file_bytes = file_bytes
        self._choice: Choice | None = None
        self._reading = False
        self._records: deque[bytes] = deque()  # up to last_index; older ones may be dropped
        self._records_bytes = 0
        self._confirm = 0  # counts the calls of `confirm`

    # ---- events

    def connected(self, member: MemberId) -> None:
        self.members[member].connected = True

    def disconnected(self, member: MemberId) -> None:
        self.members[member].disconnected()
        if self.tail is None and self._choice is not None and self._choice.member == member:
            self._choose()

    def sealed(self, member: MemberId, answer: Sealed) -> None:
        """Process the answer to a seal. Raise Unavailable if this epoch cannot be opened and a new
        one is needed, RoundsLost if none can be."""
        progress = self.members[member]
        progress.in_flight.popleft()
        progress.sealed = answer
        progress.record_format = answer.record_format
        if answer.lost:
            progress.stored_index = 0
            self._heal_later(progress)
        elif self._has_kept_file(progress, answer):
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
        # The takeover takes an index itself, so that no record of this epoch has index 0.
        self.last_index = self.done_index = self._choice.knows[1] + 1

    def stored(self, member: MemberId, index: int) -> None:
        """Process the answer to an installation or an append."""
        progress = self.members[member]
        sent = progress.in_flight.popleft()
        progress.confirmed = max(progress.confirmed, sent.confirm)
        progress.installing = progress.installing and not sent.install
        if index < sent.last_index and not progress.installing:
            progress.following = False  # it lacks records: install again
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
        """The newest format that every member can read; 0 until all have answered once."""
        return min(progress.record_format for progress in self.members.values())

    def append(self, record: bytes) -> int:
        """Append a record and return its index. It is done when `done_index` has reached it."""
        assert self.open
        self.last_index += 1
        self._records.append(record)
        self._records_bytes += bytes_of([record])
        return self.last_index

    def confirm(self) -> int:
        """Ask a majority whether this epoch is still the newest. It was, at the time of this call,
        once `confirmed` has reached the returned number."""
        self._confirm += 1
        return self._confirm

    # ---- messages

    def next_message(self, member: MemberId) -> Message | None:
        """Return the next message to a member, or None. It counts as sent."""
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

    def _has_kept_file(self, progress: Progress, answer: Sealed) -> bool:
        """Return whether a reconnected member still has the file that this leader installed."""
        return progress.installed and answer.file_epoch == self.epoch

    def _may_install(self, progress: Progress) -> bool:
        assert progress.sealed is not None
        if progress.sealed.lost:
            return 0 < progress.heal_when_confirmed <= self.confirmed
        return self.open or self._eligible(progress.sealed)

    def _eligible(self, answer: Sealed) -> bool:
        """Return whether a member's answer was considered, or would not have changed the choice."""
        assert self._choice is not None
        return answer.file_epoch == self.epoch or answer.knows <= self._choice.knows

    def _check_eligible(self) -> None:
        """Raise if the answers are a majority only because of members that are not eligible."""
        answers = {m: a for m, a in self._answers().items() if not a.lost}
        eligible = [member for member, answer in answers.items() if self._eligible(answer)]
        has_majority = self.configuration.has_majority
        if has_majority(answers) and not has_majority(eligible):
            raise Unavailable(
                f"members came and went while epoch {self.epoch} was opened: take a new epoch"
            )

    def _heal_later(self, progress: Progress) -> None:
        """Postpone installing on a member that lost its disk. It may have forgotten a promise to a
        newer leader, so a majority without it has to confirm first that there is none."""
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
        """Drop old records that are done. Some are kept for members that were briefly absent."""
        while self._records_bytes > 2 * self._file_bytes and self._first_index <= self.done_index:
            self._records_bytes -= bytes_of([self._records.popleft()])

    def _is_to_trim(self, member: MemberId, progress: Progress) -> bool:
        """Return whether to install a new, smaller file on a member. That takes a while, so a
        majority of other members must be following, unless the file has become far too large."""
        if progress.file_bytes < progress.file_bytes_max:
            return False
        working = [m for m, p in self.members.items() if p.following and not p.installing]
        working.remove(member)
        return (
            self.configuration.has_majority(working)
            or progress.file_bytes >= 2 * progress.file_bytes_max
        )


def _repositories(members: Collection[MemberId]) -> str:
    return f"metadata {'repository' if len(members) == 1 else 'repositories'} {_and(members)}"


def _lost_rounds(members: Collection[MemberId]) -> str:
    return f"lost {'its' if len(members) == 1 else 'their'} rounds"


def _and(members: Iterable[MemberId]) -> str:
    return " and ".join(map(str, members))

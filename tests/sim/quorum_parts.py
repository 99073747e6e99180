"""The parts of a simulated quorum round log: members with a disk, leaders, and channels."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from loomlog.core.quorum import member as rules
from loomlog.core.quorum.leader import Append, Install, LeaderLog, Message, Read, Seal, Sealed
from loomlog.core.quorum.member import Configuration, Leader, MemberId, MemberState
from loomlog.errors import LoomError, NotLeader, Unavailable

Stored = int
Answer = Sealed | list[bytes] | Stored | LoomError


class QuorumJudge(Protocol):
    """Whoever looks at what leaders do."""

    newest_open: int
    zombies: list[Channel]

    def opened(self, leader: LeaderProcess) -> None: ...

    def acknowledged(self, leader: LeaderProcess) -> None: ...

    def confirmed(self, leader: LeaderProcess, newest_when_asked: int) -> None: ...

    def end(self, leader: LeaderProcess) -> None: ...


# ---- what the log is about: values in an order; a snapshot is one record that holds them all


def snapshot_of(values: list[int]) -> bytes:
    return b"S" + b",".join(b"%d" % value for value in values)


def values_in(records: list[bytes]) -> list[int]:
    values: list[int] = []
    for record in records:
        if record.startswith(b"S"):
            values = [int(value) for value in record[1:].split(b",") if value]
        else:
            values.append(int(record))
    return values


# ---- members


class Request(NamedTuple):
    channel: Channel
    message: Message


@dataclass
class Member:
    """A member; `state` and `records` are what is on its disk."""

    state: MemberState = field(default_factory=MemberState)
    records: list[bytes] = field(default_factory=list)
    queue: deque[Request] = field(default_factory=deque)
    job: tuple[Request, MemberState, list[bytes], Answer] | None = None
    up: bool = True

    def begin_job(self) -> None:
        request = self.queue.popleft()
        state, records, answer = self._decide(request.channel.leader.identity, request.message)
        self.job = request, state, records, answer

    def _decide(self, leader: Leader, message: Message) -> tuple[MemberState, list[bytes], Answer]:
        state, records = self.state, self.records
        try:
            match message:
                case Seal():
                    state = rules.seal(state, leader)
                    return state, records, Sealed(state.file_epoch, state.last_index, state.lost)
                case Read():
                    rules.check_leader(state, leader.epoch)
                    return state, records, list(records)
                case Install(last_index, installed):
                    state = rules.install(state, leader.epoch, last_index)
                    records = records if state is self.state else list(installed)
                case Append(first_index, added):
                    state = rules.append(state, leader.epoch, first_index, len(added))
                    records = records if state is self.state else [*records, *added]
            return state, records, rules.stored_index(state, leader.epoch)
        except LoomError as error:
            return state, records, error

    def finish_job(self) -> None:
        assert self.job is not None
        request, self.state, self.records, answer = self.job
        self.job = None
        request.channel.answers.append(answer)

    def crash(self, random: Random) -> None:
        """Crash; a write in progress is lost, or a part of it is stored."""
        if self.job is not None:
            request, state, records, _ = self.job
            kept = random.random()
            if isinstance(request.message, Append) and len(records) > len(self.records):
                count = int(kept * (len(records) - len(self.records) + 1))
                self.records = records[: len(self.records) + count]
                self.state = self.state._replace(last_index=self.state.last_index + count)
            elif kept < 0.5:
                self.state, self.records = state, records
        self.job = None
        self.queue.clear()
        self.up = False

    def lose_disk(self) -> None:
        self.state, self.records = MemberState(lost=True), []


# ---- leaders


class Channel:
    """A connection between a leader and a member."""

    def __init__(self, leader: LeaderProcess, member: MemberId) -> None:
        self.leader = leader
        self.member = member
        self.requests: deque[Message] = deque()
        self.answers: deque[Answer] = deque()
        self.broken = False  # the member's process is gone; its leader has not noticed yet


class LeaderProcess:
    def __init__(
        self, judge: QuorumJudge, identity: Leader, configuration: Configuration, file_bytes: int
    ) -> None:
        self.judge = judge
        self.identity = identity
        self.core = LeaderLog(identity.epoch, configuration, file_bytes)
        self.channels: dict[MemberId, Channel] = {}
        self.values: list[int] = []  # that are done
        self.undone: deque[int] = deque()
        self.confirms: list[tuple[int, int]] = []  # question, the newest open epoch when asked
        self.began = False

    def connect(self, member: MemberId) -> None:
        self.channels[member] = Channel(self, member)
        self.core.connected(member)
        self.flush()

    def disconnect(self, member: MemberId) -> None:
        channel = self.channels.pop(member, None)
        if channel is not None:
            self.judge.zombies.append(channel)
            self.core.disconnected(member)
            self.flush()

    def notice_broken(self) -> bool:
        """Disconnect a broken connection; return whether there was one."""
        for member, channel in self.channels.items():
            if channel.broken:
                self.disconnect(member)
                return True
        return False

    def append(self, value: int) -> None:
        self.core.append(b"%d" % value)
        self.undone.append(value)
        self.flush()

    def confirm(self) -> None:
        self.confirms.append((self.core.confirm(), self.judge.newest_open))
        self.flush()

    def take_answer(self, channel: Channel) -> None:
        answer = channel.answers.popleft()
        member = channel.member
        try:
            match answer:
                case NotLeader():
                    self.judge.end(self)
                    return
                case LoomError():
                    self.disconnect(member)
                    return
                case Sealed():
                    self.core.sealed(member, answer)
                case list():
                    self.core.tail_read(member, answer)
                case _:
                    self.core.stored(member, answer)
        except Unavailable:
            self.judge.end(self)
            return
        self._look()
        self.flush()

    def _look(self) -> None:
        core = self.core
        if core.open and not self.began:
            self.began = True
            assert core.tail is not None
            self.values = values_in(core.tail)
            core.snapshot = lambda: [snapshot_of(self.values)]
            self.judge.opened(self)
        while len(self.undone) > core.last_index - core.done_index:
            self.values.append(self.undone.popleft())
            self.judge.acknowledged(self)
        while self.confirms and self.confirms[0][0] <= core.confirmed:
            self.judge.confirmed(self, self.confirms.pop(0)[1])

    def flush(self) -> None:
        for member, channel in list(self.channels.items()):
            while (message := self.core.next_message(member)) is not None:
                channel.requests.append(message)

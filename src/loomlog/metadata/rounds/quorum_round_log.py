"""The RoundLog of a leader among several metadata repositories (docs/design/metadata.md).

core.quorum.leader decides; this module has the connections and callbacks: records appended in one
iteration of the loop are sent together, and answers call `done` in the order of the appends.
Opening the log is the takeover. A newer epoch, reported by any member, ends it: `lost`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from loomlog.core.quorum.leader import LeaderLog, Sealed
from loomlog.core.quorum.member import Configuration, Leader, MemberId
from loomlog.errors import Corrupt, LoomError, NotLeader, Unavailable
from loomlog.metadata.rounds import Done, Snapshot
from loomlog.metadata.rounds.quorum_member import QuorumMember, frame_of, records_in
from loomlog.metadata.rounds.round_files import FILE_BYTES
from loomlog.net.connection import Connection as AnyConnection
from loomlog.types import Buffer
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame, Handler, OnReply

logger = logging.getLogger(__name__)

ANSWER_S: Final = 2.0  # a member that does not answer for longer is away
CONNECT_AGAIN_S: Final = 0.05
LONG_S: Final = 1.0  # for a takeover: most take some milliseconds

Connect = Callable[[str, Handler], Awaitable[Connection]]


class MemberStanding(NamedTuple):
    """A member as its leader sees it, for the status."""

    member: MemberId
    reachable: bool
    lag: int  # records that it lacks
    connected_s: float  # for how long; of the leader itself: since it took over


class QuorumRoundLog:
    """The round log of a leader with a quorum of members. Created by `open`."""

    def __init__(
        self, leader: Leader, configuration: Configuration, local: QuorumMember, file_bytes: int
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._leader = leader
        self._core = LeaderLog(leader.epoch, configuration, file_bytes)
        self._links = {member: MemberLink(member, self) for member in configuration.everybody}
        self._tasks: list[asyncio.Task[None]] = []
        self._undone: deque[Done] = deque()  # of the newest records, oldest first
        self._confirming: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._flush_scheduled = False
        self._connected_at = dict.fromkeys(configuration.everybody, self._loop.time())
        self._end: LoomError | None = None
        self._unwatch = local.watch(self._sealed_by)
        self.lost: asyncio.Future[LoomError] = self._loop.create_future()

    @classmethod
    async def open(
        cls,
        leader: Leader,
        configuration: Configuration,
        addresses: Mapping[MemberId, str],
        local: QuorumMember,
        connect: Connect,
        *,
        waits_for: Callable[[str], None] = lambda reason: None,
        file_bytes: int = FILE_BYTES,
    ) -> QuorumRoundLog:
        """Take over: seal a majority, read what was decided, install it on a majority.

        An epoch can be opened once; after a failure, take a new one. It waits for a majority
        without a limit; `waits_for` is called if that takes long. NotLeader: there is a newer
        epoch. Unavailable: try again with a new epoch. RoundsLost: a new epoch does not help."""
        log = cls(leader, configuration, local, file_bytes)
        log._connect(addresses, local, connect)
        look = log._loop.call_later(LONG_S, lambda: waits_for(log._core.why_not_open()))
        try:
            await log._opened
        except BaseException:
            log.close()
            raise
        finally:
            look.cancel()
        return log

    def _connect(
        self, addresses: Mapping[MemberId, str], local: QuorumMember, connect: Connect
    ) -> None:
        async def call_local() -> MemberConnection:
            return LocalMember(local)

        for member, link in self._links.items():
            way: Callable[[], Awaitable[MemberConnection]] = call_local
            if member != self._leader.member:
                way = partial(connect, addresses[member], link)
            task = self._loop.create_task(link.run(way))
            task.add_done_callback(partial(self._link_ended, member))
            self._tasks.append(task)

    # ---- the RoundLog interface

    @property
    def epoch(self) -> int:
        return self._leader.epoch

    @property
    def is_doubtful(self) -> bool:
        return False  # a majority has stored everything that was durable

    @property
    def record_format(self) -> int:
        return self._core.record_format

    def trust(self) -> None:
        """Do nothing, because this log is never doubtful."""

    def read(self) -> list[bytes]:
        assert self._core.tail is not None
        return self._core.tail

    def begin(self, snapshot: Snapshot) -> None:
        self._core.snapshot = snapshot
        self._core.tail = []

    def append(self, epoch: int, record: bytes, done: Done) -> None:
        if self._end is not None:
            raise self._end
        if epoch != self.epoch:
            raise NotLeader(f"epoch {epoch} is over: the round log is in epoch {self.epoch}")
        self._core.append(record)
        self._undone.append(done)
        self._schedule_flush()

    def close(self) -> None:
        """Close the connections at once; appends in flight may or may not become durable."""
        self._finish(NotLeader(f"epoch {self.epoch} is over: its leader closed the log"))

    # ---- beyond the interface

    async def confirm(self) -> None:
        """Return when a majority has answered, after this call, that no newer leader sealed it.

        NotLeader: one did. Calls in one iteration of the loop share one request."""
        if self._end is not None:
            raise self._end
        confirmed: asyncio.Future[None] = self._loop.create_future()
        question = self._core.confirm()
        self._confirming.append((question, confirmed))
        self._schedule_flush()
        await confirmed

    def tell(self, frame: pb.Frame) -> None:
        """Send a message without an answer to every other member that is connected."""
        for link in self._links.values():
            link.tell(frame)

    def standing(self) -> list[MemberStanding]:
        last, now = self._core.last_index, self._loop.time()
        return [
            MemberStanding(
                member,
                bool(progress.sealed),
                last - min(progress.stored_index, last),
                now - self._connected_at[member],
            )
            for member, progress in self._core.members.items()
        ]

    # ---- called by links

    def connected(self, member: MemberId) -> None:
        self._core.connected(member)
        self._connected_at[member] = self._loop.time()
        self._schedule_flush()

    def disconnected(self, member: MemberId) -> None:
        self._core.disconnected(member)
        self._schedule_flush()

    def replaced(self, error: NotLeader) -> None:
        """End this log, because a member reported a newer epoch."""
        if self._end is None:
            logger.info("the round log has a newer leader: %s", error)
            self._lose(error)

    def _link_ended(self, member: MemberId, task: asyncio.Task[None]) -> None:
        """End this log if a link failed, because its member would appear to be away forever."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        logger.error("the link to member %d of the round log failed", member, exc_info=error)
        self._lose(LoomError(f"internal error on the link to member {member}: see the log"))

    def _lose(self, error: LoomError) -> None:
        if self._end is None:
            self.lost.set_result(error)
            self._finish(error)

    def answered(self, member: MemberId, frame: pb.Frame, payload: memoryview) -> None:
        if self._end is not None:
            return
        try:
            self._take(member, frame, payload)
        except Corrupt as error:
            logger.warning("member %d of the round log: %s", member, error)
            self._links[member].hang_up()
        except Unavailable as error:  # this epoch cannot be opened
            self._finish(error)
        self._call_back()
        self._schedule_flush()

    def _take(self, member: MemberId, frame: pb.Frame, payload: memoryview) -> None:
        match frame.WhichOneof("body"):
            case "round_sealed":
                sealed = frame.round_sealed
                knows = sealed.file_epoch, sealed.last_index
                self._core.sealed(member, Sealed(*knows, sealed.lost, sealed.record_format))
            case "round_tail":
                self._core.tail_read(member, records_in(frame.round_tail, payload))
            case "round_stored":
                self._core.stored(member, frame.round_stored.last_index)

    def _sealed_by(self, leader: Leader) -> None:
        """End this log, because the member of this process has a newer leader."""
        if leader.epoch > self.epoch:
            self.replaced(
                NotLeader(
                    f"epoch {self.epoch} is over: member {leader.member} at {leader.address} "
                    f"leads, or tries to, in epoch {leader.epoch}",
                    leader.address,
                )
            )

    # ---- internals

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        for member, link in self._links.items():
            while self._end is None:
                message = self._core.next_message(member)
                if message is None:
                    break
                link.ask(*frame_of(message, self._leader, member))

    def _call_back(self) -> None:
        if self._core.open and not self._opened.done():
            self._opened.set_result(None)
        while len(self._undone) > self._core.last_index - self._core.done_index:
            self._undone.popleft()(None)
        while self._confirming and self._confirming[0][0] <= self._core.confirmed:
            _, confirmed = self._confirming.popleft()
            if not confirmed.done():
                confirmed.set_result(None)

    def _finish(self, error: LoomError) -> None:
        if self._end is not None:
            return
        self._end = error
        self._unwatch()
        for task in self._tasks:
            task.cancel()
        for link in self._links.values():
            link.hang_up()
        self._tell_waiting(error)

    def _tell_waiting(self, error: LoomError) -> None:
        waiting = [confirmed for _, confirmed in self._confirming]
        for future in [self._opened, *waiting]:
            if not future.done():
                future.set_exception(error)
        self._confirming.clear()
        undone, self._undone = self._undone, deque()
        for done in undone:
            done(error)


class MemberConnection(Protocol):
    """A connection to a member, or the member in this process."""

    def call(self, frame: Frame, payload: Sequence[Buffer], on_reply: OnReply) -> object: ...


class MemberLink:
    """A leader's link to one member: a connection that is reopened if it breaks, or a direct call.

    It carries messages and answers, as core.quorum.leader decides.
    """

    def __init__(self, member: MemberId, owner: QuorumRoundLog) -> None:
        self._member = member
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._caller: MemberConnection | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._unanswered = 0
        self._trouble = ""  # as last logged
        self._heard_at = 0.0  # or the first of those without an answer was sent

    async def run(self, connect: Callable[[], Awaitable[MemberConnection]]) -> None:
        """Keep it connected, until cancelled."""
        while True:
            try:
                caller = await connect()
            except LoomError as error:
                logger.debug("member %d of the round log is away: %s", self._member, error)
            else:
                await self._serve(caller)
            await asyncio.sleep(CONNECT_AGAIN_S)

    async def _serve(self, caller: MemberConnection) -> None:
        self._caller, self._unanswered = caller, 0
        self._over = self._loop.create_future()
        self._owner.connected(self._member)
        try:
            while not self._over.done() and not self._silent():
                await asyncio.wait([self._over], timeout=ANSWER_S / 2)
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        caller, self._caller = self._caller, None
        if caller is None:
            return
        if isinstance(caller, AnyConnection):
            caller.abort(Unavailable("the leader of the round log hung up"))
        if not self._over.done():
            self._over.set_result(None)
        self._owner.disconnected(self._member)

    def _silent(self) -> bool:
        return bool(self._unanswered) and self._loop.time() - self._heard_at > ANSWER_S

    def ask(self, frame: pb.Frame, payload: Sequence[Buffer]) -> None:
        """Send a message; the answer goes to the owner."""
        caller = self._caller
        assert caller is not None
        if not self._unanswered:
            self._heard_at = self._loop.time()
        self._unanswered += 1

        def on_reply(reply: pb.Frame | LoomError, content: memoryview) -> None:
            if caller is not self._caller:
                return  # that connection is over
            self._unanswered -= 1
            self._heard_at = self._loop.time()
            if isinstance(reply, NotLeader):
                self._owner.replaced(reply)
            elif isinstance(reply, LoomError):
                self._note(reply)
                self.hang_up()
            else:
                self._owner.answered(self._member, reply, content)

        caller.call(frame, payload, on_reply)

    def _note(self, error: LoomError) -> None:
        if str(error) != self._trouble:  # it is retried
            self._trouble = str(error)
            logger.warning("member %d of the round log: %s", self._member, error)

    def tell(self, frame: pb.Frame) -> None:
        """Send a message without an answer; it is dropped if the member is away, or is this
        process."""
        if isinstance(self._caller, AnyConnection):
            self._caller.send(frame)

    # called by the connection

    def frame_received(
        self, connection: Connection, kind: str, frame: Frame, payload: memoryview
    ) -> None:
        """Refuse requests, because a member sends none to its leader over this connection."""

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        if connection is self._caller:
            self.hang_up()


class LocalMember:
    """The member of this process."""

    def __init__(self, member: QuorumMember) -> None:
        self._member = member
        self._loop = asyncio.get_running_loop()

    def call(self, frame: Frame, payload: Sequence[Buffer], on_reply: OnReply) -> None:
        def answer(reply: pb.Frame | LoomError, records: Sequence[bytes]) -> None:
            self._loop.call_soon(on_reply, reply, memoryview(b"".join(records)))

        self._member.take(frame, memoryview(b"".join(payload)), answer)

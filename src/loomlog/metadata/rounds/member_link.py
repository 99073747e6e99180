"""A leader's link to one member: a connection that is reopened when it breaks, or a direct call.

It carries messages and answers; core.quorum.leader decides which. The connection to a member that
leaves a message without an answer for ANSWER_S is closed: the member counts as away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from loomlog.core.quorum.majority import MemberId
from loomlog.errors import LoomError, NotLeader, Unavailable
from loomlog.metadata.rounds.quorum_member import QuorumMember
from loomlog.net.connection import Connection as AnyConnection
from loomlog.types import Buffer
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame, Handler, OnReply

logger = logging.getLogger(__name__)

ANSWER_S: Final = 2.0
CONNECT_AGAIN_S: Final = 0.05

Connect = Callable[[str, Handler], Awaitable[Connection]]


class Caller(Protocol):
    """A connection to a member, or the member in this process."""

    def call(self, frame: Frame, payload: Sequence[Buffer], on_reply: OnReply) -> object: ...


class Owner(Protocol):
    """The leader's side of a link."""

    def connected(self, member: MemberId) -> None: ...

    def disconnected(self, member: MemberId) -> None: ...

    def answered(self, member: MemberId, frame: pb.Frame, payload: memoryview) -> None: ...

    def replaced(self, error: NotLeader) -> None: ...


class MemberLink:
    """The link to one member, for as long as the leader leads."""

    def __init__(self, member: MemberId, owner: Owner) -> None:
        self._member = member
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._caller: Caller | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._unanswered = 0
        self._trouble = ""  # as last logged
        self._heard_at = 0.0  # or the first of those without an answer was sent

    async def run(self, connect: Callable[[], Awaitable[Caller]]) -> None:
        """Keep it connected, until cancelled."""
        while True:
            try:
                caller = await connect()
            except LoomError as error:
                logger.debug("member %d of the round log is away: %s", self._member, error)
            else:
                await self._serve(caller)
            await asyncio.sleep(CONNECT_AGAIN_S)

    async def _serve(self, caller: Caller) -> None:
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
        if str(error) != self._trouble:  # it is tried again and again
            self._trouble = str(error)
            logger.warning("member %d of the round log: %s", self._member, error)

    def tell(self, frame: pb.Frame) -> None:
        """Send a message without an answer; it is lost if the member is away or this process."""
        if isinstance(self._caller, AnyConnection):
            self._caller.send(frame)

    # called by the connection

    def frame_received(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        """Refuse requests: a member asks its leader nothing over this connection."""

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        if connection is self._caller:
            self.hang_up()


class LocalCaller:
    """The member of this process."""

    def __init__(self, member: QuorumMember) -> None:
        self._member = member
        self._loop = asyncio.get_running_loop()

    def call(self, frame: Frame, payload: Sequence[Buffer], on_reply: OnReply) -> None:
        def answer(reply: pb.Frame | LoomError, records: Sequence[bytes]) -> None:
            self._loop.call_soon(on_reply, reply, memoryview(b"".join(records)))

        self._member.take(frame, memoryview(b"".join(payload)), answer)

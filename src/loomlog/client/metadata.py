"""Talking to the metadata repository, and what a client remembers of it.

Several addresses are tried in turn; a repository that does not lead names the one that does, and
more addresses are learnt on the way. Of several, one that is slow is waited for, and one that is
silent is left: it is asked beside the request whether it is there. A request without side effects
is repeated until it is answered or its time is over; one with side effects only while it certainly
did nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias

from loomlog import limits
from loomlog.client import backoff
from loomlog.client.nodes import Connections
from loomlog.errors import LoomError, NotLeader, Retryable, SwapUnknown, Timeout, Unavailable
from loomlog.net.calls import Call
from loomlog.net.connection import Connection, OnReply
from loomlog.wire import loomlog_pb2 as pb

REFRESH_INTERVAL_S: Final = 0.02  # many appends fail at once when a stream is sealed: ask once
_CONNECT_S: Final = 0.5  # then another one of several is asked; the attempt goes on beside it
_SILENCE_S_MIN: Final = 0.5
_ASKED_PER_SILENCE: Final = 4  # times


class Metadata:
    """Requests to the metadata repository, whoever leads it."""

    def __init__(
        self,
        addresses: Sequence[str],
        connections: Connections,
        rng: random.Random,
        request_timeout_s: float,
    ) -> None:
        self._addresses = list(addresses)
        self._connections = connections
        self._rng = rng
        self.timeout_s = request_timeout_s
        self._chosen = 0
        self._leader_epoch = 0  # the highest one that answered

    async def reach(self) -> None:
        """Connect to one of the repositories; one try each."""
        for _ in self._addresses[1:]:
            try:
                await self._connect(asyncio.get_running_loop().time() + limits.LEADER_SILENCE_S)
                return
            except Retryable as error:
                self._turn(error)
        await self._connections.connect(self._address)

    async def request(
        self, frame: pb.Frame, *, repeatable: bool = True, timeout_s: float | None = None
    ) -> pb.Frame:
        """The answer. `repeatable`: doing it twice is the same as doing it once."""
        deadline_s = asyncio.get_running_loop().time() + (timeout_s or self.timeout_s)
        attempts = 0
        reason: Retryable | None = None  # that tells most
        while True:
            try:
                return await self._attempt(frame, deadline_s, repeatable)
            except Retryable as error:
                self._turn(error)
                attempts += 1
                if reason is None or _tells(error) >= _tells(reason):
                    reason = error
                await self._pause(reason, attempts, deadline_s)

    def call(self, frame: pb.Frame, on_reply: OnReply) -> Call | None:
        """Ask only once, and only who is connected; None: nobody is. For what is in the way of
        every append: no task, no Future. Who hears an error may `request` the same."""
        connection = self._connections.get(self._address)
        return None if connection is None else Attempt(self, connection, frame, on_reply)

    async def _attempt(self, frame: pb.Frame, deadline_s: float, repeatable: bool) -> pb.Frame:
        now_s = asyncio.get_running_loop().time
        connect_s = _CONNECT_S if len(self._addresses) > 1 else self.timeout_s
        connection = await self._connect(min(deadline_s, now_s() + connect_s))
        left_s = max(deadline_s - now_s(), 0.001)
        answered = False
        try:
            answer: pb.Frame
            with self.watch(connection, repeatable=repeatable):
                answer, _ = await connection.request(frame, timeout_s=left_s)
            answered = True
            self.check_leader(answer)
        except SwapUnknown as error:
            if repeatable:
                raise Unavailable(str(error)) from error
            raise
        except Retryable as error:
            unknown = answered or connection.closed or isinstance(error, Timeout)
            if unknown and not repeatable:
                raise LoomError(
                    f"{error}; the {frame.WhichOneof('body')} request may or may not have been "
                    "carried out: look before you repeat it"
                ) from error
            raise
        return answer

    def watch(self, connection: Connection, *, repeatable: bool) -> Watch:
        """Of several repositories: hang up if it falls silent."""
        watch = Watch()
        if len(self._addresses) == 1:
            return watch
        silence_s = limits.LEADER_SILENCE_S
        if repeatable:  # with little time somebody else is worth asking
            share_s = self.timeout_s / len(self._addresses)
            silence_s = min(silence_s, max(share_s, _SILENCE_S_MIN))
        watch.begin(connection, silence_s)
        return watch

    def check_leader(self, answer: pb.Frame) -> None:
        """Of several, who was replaced as the leader may not know it yet: it counts no more."""
        epoch = answer.leader_epoch
        if 0 < epoch < self._leader_epoch and len(self._addresses) > 1:
            raise NotLeader(f"{self._address} does not lead any more")
        self._leader_epoch = max(self._leader_epoch, epoch)

    async def _connect(self, deadline_s: float) -> Connection:
        connection = self._connections.get(self._address)
        if connection is not None:
            return connection
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self._connections.connect(self._address)
        except TimeoutError:
            raise Timeout(f"{self._address} did not answer in time") from None

    async def _pause(self, error: Retryable, attempts: int, deadline_s: float) -> None:
        """Between rounds over all addresses; raises `error` when the time is over."""
        everyone_asked = attempts % len(self._addresses) == 0
        wait_s = backoff.delay_s(attempts, self._rng) if everyone_asked else 0.0
        too_late = asyncio.get_running_loop().time() + wait_s >= deadline_s
        if too_late or self._connections.closed:
            raise error
        await asyncio.sleep(wait_s)

    @property
    def _address(self) -> str:
        return self._addresses[self._chosen]

    def _turn(self, error: Retryable) -> None:
        """To who is said to lead, or to the next one."""
        leader = error.leader if isinstance(error, NotLeader) else ""
        if leader and leader != self._address:
            self.learn([leader])
            self._chosen = self._addresses.index(leader)
        else:
            self._chosen = (self._chosen + 1) % len(self._addresses)

    def learn(self, addresses: Iterable[str]) -> None:
        """Further metadata repositories, to be asked when those known do not answer."""
        self._addresses += [address for address in addresses if address not in self._addresses]


def _tells(error: Retryable) -> int:
    """Of why nothing can be done: that another one leads, the least, then silence; why nobody
    leads, the most."""
    if isinstance(error, NotLeader):
        return 0 if error.leader else 3
    return 1 if isinstance(error, Timeout) else 2


class Attempt(Call):
    """A request to one repository, of which nobody knows yet whether it leads."""

    def __init__(
        self, metadata: Metadata, connection: Connection, frame: pb.Frame, on_reply: OnReply
    ) -> None:
        self._metadata = metadata
        self._watch: Watch | None = None
        super().__init__(connection, frame, (), metadata.timeout_s, on_reply)
        if not self.ended:
            self._watch = metadata.watch(connection, repeatable=True)

    def cancel(self) -> None:
        super().cancel()
        self._end_watch()

    def _replied(self, reply: pb.Frame | LoomError, content: memoryview) -> None:
        if not isinstance(reply, LoomError):
            try:
                self._metadata.check_leader(reply)
            except NotLeader as error:
                reply = error
        super()._replied(reply, content)
        self._end_watch()

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.end()


class Watch:
    """Hangs up on who falls silent, so that everything that waits for it fails. Nothing is asked as
    long as nobody waits long."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    def begin(self, connection: Connection, silence_s: float) -> None:
        every_s = silence_s / _ASKED_PER_SILENCE
        loop = asyncio.get_running_loop()

        def ask() -> None:
            self._asking = loop.create_task(_hang_up_when_silent(connection, silence_s, every_s))

        self._timer = loop.call_later(every_s, ask)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.end()


async def _hang_up_when_silent(connection: Connection, silence_s: float, every_s: float) -> None:
    while not connection.closed:
        question = pb.Frame(ask_leader=pb.AskLeader())
        try:
            await connection.request(question, timeout_s=silence_s - every_s)
        except Timeout as error:
            connection.abort(Unavailable(str(error)))
        except LoomError:
            pass  # closed, or it does not know the question: an answer, too
        await asyncio.sleep(every_s)


CompleteTail: TypeAlias = Callable[[pb.Log], Awaitable[pb.Log]]
"""Gives the log as it is now, whose active segment had such a protocol; with its tail, if it still
has."""


class CachedLog:
    """What the client knows of one log: who holds which stream."""

    def __init__(self, name: str, metadata: Metadata) -> None:
        self.name = name
        self.current: pb.Log | None = None
        self._metadata = metadata
        self._refreshing: asyncio.Task[pb.Log] | None = None
        self._refreshed_s = float("-inf")
        self.tails: dict[str, CompleteTail] = {}  # by protocol, where the repository does not know

    async def get(self) -> pb.Log:
        return self.current or await self.refresh()

    async def refresh(self) -> pb.Log:
        """Ask the metadata repository; who asks meanwhile shares the answer, which may then be a
        little older than the question: good for streams and addresses, not for the tail."""
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
            self._refreshing.add_done_callback(_retrieve)
        return await asyncio.shield(self._refreshing)

    async def describe(self) -> pb.Log:
        """The log as it is now: everything acknowledged before this call is in it."""
        known = self.current
        if known is None or _protocol(known) not in self.tails:
            known = await self.look()
        while (complete := self.tails.get(protocol := _protocol(known))) is not None:
            known = await complete(known)
            if _protocol(known) == protocol:
                break
        return known

    async def look(self) -> pb.Log:
        """The log as the metadata repository has it now; its tail may be too low."""
        frame = pb.Frame(describe_log=pb.DescribeLog(name=self.name))
        log = (await self._metadata.request(frame)).log
        self._metadata.learn(log.metadata)
        self._update(log)
        return log

    def _update(self, log: pb.Log) -> None:
        """Take newer knowledge; a repository that lags behind does not turn it back."""
        known = self.current
        if known is None or known.log_id != log.log_id or known.version <= log.version:
            self.current = log

    async def close(self) -> None:
        task = self._refreshing
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _refresh(self) -> pb.Log:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(max(0.0, self._refreshed_s + REFRESH_INTERVAL_S - loop.time()))
            log = await self.look()
            return self.current or log
        except LoomError as error:
            if not isinstance(error, Retryable):
                self.current = None
            raise
        finally:
            self._refreshed_s = loop.time()
            self._refreshing = None


def _protocol(log: pb.Log) -> str:
    """Of the active segment."""
    return log.segments[-1].protocol if log.segments else log.protocol


def _retrieve(task: asyncio.Task[pb.Log]) -> None:
    """Whoever waited was told; with nobody left waiting the Task's own warning would be noise."""
    if not task.cancelled():
        task.exception()

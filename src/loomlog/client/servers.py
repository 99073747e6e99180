"""Servers as a client sees them: connections, requests to the metadata repository, and the cached
metadata of a log.

There is one connection per address, shared and opened on demand. Concurrent callers share one
attempt. After a failed attempt, callers get the same error at once for a short time, so that they
can turn to another server.

Metadata repositories are tried in turn; a follower names the leader, and answers bring further
addresses. With several repositories, one that is slow but alive is waited for, and one that does
not respond to pings is abandoned. Idempotent requests are retried until they are answered or time
out, others only while they certainly had no effect.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any, Final, NamedTuple

from loomlog import limits
from loomlog.client.context import BACKOFF
from loomlog.core.backoff import Backoff
from loomlog.errors import (
    LoomError,
    NotLeader,
    Retryable,
    SwapUnknown,
    Timeout,
    Unauthorized,
    Unavailable,
    seconds,
)
from loomlog.net import endpoints
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Codec, Connection, OnReply

logger = logging.getLogger(__name__)

REFRESH_INTERVAL_S: Final = 0.02  # appends that fail together share a refresh
_CONNECT_S: Final = 0.15  # then the next repository is tried; connecting continues
_SILENCE_S_MIN: Final = 0.5
_STALL_S: Final = 1.0  # requests that took longer are logged
_LOOKS: Final = Backoff(0.1, 0.5)  # while a request takes long, the others are asked who leads
_LOOKED_S: Final = 0.5  # for an answer of one of them
_ASKED_PER_SILENCE: Final = 4  # pings in the time after which a repository counts as silent


class _Failure(NamedTuple):
    error: LoomError
    since_s: float
    until_s: float


class Connections:
    """All connections of one client."""

    def __init__(self, codec: Codec, rng: random.Random, connect_timeout_s: float) -> None:
        self._codec = codec
        self._rng = rng
        self._connect_timeout_s = connect_timeout_s
        self._open: dict[str, Connection] = {}
        self._attempts: dict[str, asyncio.Task[Connection]] = {}
        self._failures: dict[str, _Failure] = {}
        self.closed = False

    def get(self, address: str) -> Connection | None:
        """Return the open connection; None if there is none."""
        connection = self._open.get(address)
        return None if connection is None or connection.closed else connection

    async def connect(self, address: str) -> Connection:
        """Return an open or a new connection; raise Unavailable, Timeout or VersionMismatch."""
        connection = self.get(address)
        if connection is not None:
            return connection
        attempt = self._attempts.get(address) or self._start(address)
        return await asyncio.shield(attempt)

    async def close(self) -> None:
        self.closed = True
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for connection in list(self._open.values()):
            connection.close(Unavailable("this client was closed"))
        self._open.clear()
        if self._codec.credentials is not None:
            await self._codec.credentials.wait_closed()

    def _start(self, address: str) -> asyncio.Task[Connection]:
        loop = asyncio.get_running_loop()
        if self.closed:
            raise Unavailable("this client was closed")
        failure = self._failures.get(address)
        if failure is not None and loop.time() < failure.until_s:
            raise type(failure.error)(*failure.error.args)
        attempt = loop.create_task(self._attempt(address))
        self._attempts[address] = attempt
        attempt.add_done_callback(_retrieve)
        return attempt

    async def _attempt(self, address: str) -> Connection:
        try:
            connection = await endpoints.connect(
                address, self._codec, self, self._connect_timeout_s
            )
        except LoomError as error:
            self._remember(address, error)
            raise
        finally:
            self._attempts.pop(address, None)
        self._failures.pop(address, None)
        self._open[address] = connection
        logger.info("connected to %s", address)
        return connection

    def _remember(self, address: str, error: LoomError) -> None:
        before = self._failures.get(address)
        level = logging.DEBUG if before else logging.WARNING  # once until it is reached again
        logger.log(level, "%s cannot be used now: %s", address, error)
        now_s = asyncio.get_running_loop().time()
        since_s = before.since_s if before else now_s
        until_s = now_s + BACKOFF.late_s(now_s - since_s, self._rng)
        self._failures[address] = _Failure(error, since_s, until_s)

    # Handler

    def frame_received(self, connection: Connection, frame: Any, payload: memoryview) -> None:
        """Ignore the frame: servers send clients no requests, unless they are newer."""

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]
            level = logging.DEBUG if self.closed else logging.INFO
            logger.log(level, "disconnected from %s: %s", connection.peer, error)


class Metadata:
    """Sends requests to the leading metadata repository."""

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
        self._leader_epoch = 0  # the highest one seen in an answer
        self._looking: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Ask nobody any more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def reach(self) -> None:
        """Connect to any of the repositories, trying each once."""
        for _ in self._addresses[1:]:
            tried = self._address
            try:
                await self._connect(asyncio.get_running_loop().time() + limits.LEADER_SILENCE_S)
                return
            except Retryable as error:
                self._turn(tried, error)
        _checked(await self._connections.connect(self._address))

    async def request(
        self, frame: pb.Frame, *, repeatable: bool = True, timeout_s: float | None = None
    ) -> pb.Frame:
        """Return the answer, retrying as needed. `repeatable`: the request is idempotent."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        deadline_s = begun_s + (timeout_s or self.timeout_s)
        attempts = 0
        reason: Retryable | None = None  # the most informative error
        while True:
            tried = self._address
            try:
                answer = await self._attempt(frame, deadline_s, repeatable)
                if attempts and loop.time() - begun_s >= _STALL_S:
                    waited = seconds(loop.time() - begun_s)
                    logger.warning("the metadata repository answered after %s: %s", waited, reason)
                return answer
            except Retryable as error:
                logger.debug("a request to %s is tried again: %s", tried, error)
                if isinstance(error, Unavailable) and error.lasting:
                    raise
                self._turn(tried, error)
                attempts += 1
                if reason is None or _tells(error) >= _tells(reason):
                    reason = error
                await self._pause(reason, attempts, loop.time() - begun_s, deadline_s)

    def call(self, frame: pb.Frame, on_reply: OnReply) -> LeaderCall | None:
        """Send a request once, without a task or Future, for the hot path of appends. Return None
        if not connected. After an error, callers may fall back to `request`."""
        connection = self._connections.get(self._addresses[self._chosen])
        return None if connection is None else LeaderCall(self, connection, frame, on_reply)

    async def _attempt(self, frame: pb.Frame, deadline_s: float, repeatable: bool) -> pb.Frame:
        now_s = asyncio.get_running_loop().time
        connect_s = _CONNECT_S if len(self._addresses) > 1 else self.timeout_s
        connection = await self._connect(min(deadline_s, now_s() + connect_s))
        left_s = max(deadline_s - now_s(), 0.001)
        answered = False
        try:
            answer: pb.Frame
            with self.watch(connection, repeatable=repeatable) or nullcontext():
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
                    "carried out: check before you repeat it"
                ) from error
            raise
        return answer

    def watch(self, connection: Connection, *, repeatable: bool) -> Watch | None:
        """Watch a connection if there is another repository to turn to."""
        if len(self._addresses) == 1:
            return None
        silence_s = limits.LEADER_SILENCE_S
        if repeatable:  # leave time to ask the others
            share_s = self.timeout_s / len(self._addresses)
            silence_s = min(silence_s, max(share_s, _SILENCE_S_MIN))
        return Watch(self, connection, silence_s)

    def look_around(self, connection: Connection) -> None:
        """Ask the others whether they know a newer leader than the one at the end of a connection,
        which takes long to answer; if so, close that connection."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_around(connection))
            self._looking.add_done_callback(_retrieve)

    async def _look_around(self, connection: Connection) -> None:
        others = [address for address in self._addresses if address != connection.peer]
        await asyncio.gather(*(self._look_at(other, connection) for other in others))

    async def _look_at(self, address: str, connection: Connection) -> None:
        try:
            async with asyncio.timeout(_LOOKED_S):
                other = _checked(await self._connections.connect(address))
                answer, _ = await other.request(pb.Frame(ask_leader=pb.AskLeader()))
        except (LoomError, TimeoutError):
            return
        beat: pb.LeaderBeat = answer.leader_beat
        is_newer = beat.heard and beat.epoch > self._leader_epoch
        if is_newer and beat.address not in ("", connection.peer):
            error = NotLeader(f"{beat.address} leads now", beat.address)
            self._turn(connection.peer, error)
            connection.abort(error)

    def check_leader(self, answer: pb.Frame) -> None:
        """Raise NotLeader for an answer of a leader that was replaced and may not know it."""
        epoch = answer.leader_epoch
        if 0 < epoch < self._leader_epoch and len(self._addresses) > 1:
            raise NotLeader(f"{self._address} is no longer the leader")
        self._leader_epoch = max(self._leader_epoch, epoch)

    async def _connect(self, deadline_s: float) -> Connection:
        connection = self._connections.get(self._address)
        if connection is not None:
            return connection
        try:
            async with asyncio.timeout_at(deadline_s):
                return _checked(await self._connections.connect(self._address))
        except TimeoutError:
            raise Timeout(f"{self._address} did not answer in time") from None

    async def _pause(
        self, error: Retryable, attempts: int, waited_s: float, deadline_s: float
    ) -> None:
        """Back off after each round over all addresses; raise `error` once the time is up."""
        everyone_asked = attempts % len(self._addresses) == 0
        wait_s = BACKOFF.late_s(waited_s, self._rng) if everyone_asked else 0.0
        too_late = asyncio.get_running_loop().time() + wait_s >= deadline_s
        if too_late or self._connections.closed:
            raise error
        await asyncio.sleep(wait_s)

    @property
    def _address(self) -> str:
        return self._addresses[self._chosen]

    def _turn(self, tried: str, error: Retryable) -> None:
        """Choose the leader named by the error, or the next address, unless another request did so
        since this one tried an address: many fail at once, and would skip those that answer."""
        if self._address != tried:
            return
        leader = error.leader if isinstance(error, NotLeader) else ""
        if leader and leader != self._address:
            logger.info("the metadata repository at %s leads now", leader)
            self.learn([leader])
            self._chosen = self._addresses.index(leader)
        else:
            self._chosen = (self._chosen + 1) % len(self._addresses)

    def learn(self, addresses: Iterable[str]) -> None:
        """Add addresses of further metadata repositories."""
        self._addresses += [address for address in addresses if address not in self._addresses]


def _checked(connection: Connection) -> Connection:
    """Return a connection to a metadata repository. Close it if its certificate is of another
    server."""
    try:
        connection.require("metadata")
    except Unauthorized as error:
        failure = Unavailable(f"{connection.peer} is no metadata repository: {error}")
        connection.close(failure)
        raise failure from error
    return connection


def _tells(error: Retryable) -> int:
    """Rank errors by how much they explain: a redirect least, then a timeout; a reason why there
    is no leader most."""
    if isinstance(error, NotLeader):
        return 0 if error.leader else 3
    return 1 if isinstance(error, Timeout) else 2


class LeaderCall:
    """A request to one repository, which may turn out not to lead. `on_reply` is called once, with
    the answer or the error."""

    def __init__(
        self, metadata: Metadata, connection: Connection, frame: pb.Frame, on_reply: OnReply
    ) -> None:
        self._metadata = metadata
        self._connection = connection
        self._on_reply: OnReply | None = on_reply
        self._watch: Watch | None = None
        self._request_id = connection.call(frame, (), self._replied, timeout_s=metadata.timeout_s)
        if self._on_reply is not None:
            self._watch = metadata.watch(connection, repeatable=True)

    def cancel(self) -> None:
        """Drop the callback. Does nothing if the request was answered."""
        self._on_reply = None
        self._connection.forget(self._request_id)
        if self._watch is not None:
            self._watch.end()

    def _replied(self, reply: pb.Frame | LoomError, content: memoryview) -> None:
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is None:
            return
        if not isinstance(reply, LoomError):
            try:
                self._metadata.check_leader(reply)
            except NotLeader as error:
                reply = error
        on_reply(reply, content)
        if self._watch is not None:
            self._watch.end()


class Watch:
    """Closes a connection whose server falls silent or does not lead any more, so that pending
    requests fail. The server and the others are asked only when a request takes long."""

    def __init__(self, metadata: Metadata, connection: Connection, silence_s: float) -> None:
        every_s = silence_s / _ASKED_PER_SILENCE
        loop = asyncio.get_running_loop()
        self._asking: asyncio.Task[None] | None = None
        begun_s = loop.time()

        def look() -> None:
            if connection.closed:
                return
            metadata.look_around(connection)
            waited_s = loop.time() - begun_s
            if self._asking is None and waited_s >= every_s:
                asking = _hang_up_when_silent(connection, silence_s, every_s)
                self._asking = loop.create_task(asking)
            self._timer = loop.call_later(_LOOKS.late_s(waited_s), look)

        self._timer = loop.call_later(_LOOKS.first_s, look)

    def end(self) -> None:
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
            pass  # closed, or an error: that is an answer, too
        await asyncio.sleep(every_s)


class CachedLog:
    """The cached metadata of one log: its segments, its streams and their replicas."""

    def __init__(self, name: str, metadata: Metadata) -> None:
        self.name = name
        self.last_known: pb.Log | None = None
        self.reached: Glsn = 0  # the highest position delivered to a subscription
        self._metadata = metadata
        self._refreshing: asyncio.Task[pb.Log] | None = None
        self._refreshed_s = float("-inf")

    async def cached(self) -> pb.Log:
        """Return the metadata known, however old; fetch it if there is none."""
        return self.last_known or await self.refresh()

    async def refresh(self) -> pb.Log:
        """Ask the metadata repository. Concurrent callers share an answer that may be slightly
        older than their call: good for streams and addresses, not for the tail."""
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
            self._refreshing.add_done_callback(_retrieve)
        return await asyncio.shield(self._refreshing)

    async def fetch(self, verb: str = "") -> pb.Log:
        """Return the log as the metadata repository has it now; its tail may be too low. A denial
        names the permission with this `verb`, which is needed next."""
        frame = pb.Frame(describe_log=pb.DescribeLog(name=self.name, verb=verb))
        log = (await self._metadata.request(frame)).log
        self._metadata.learn(log.metadata)
        self._update(log)
        return log

    async def bounds(self) -> pb.Bounds:
        """Return the head and the tail; wait, and raise an error, if the tail is not known."""
        frame = pb.Frame(get_bounds=pb.GetBounds(name=self.name))
        return (await self._metadata.request(frame)).bounds

    def _update(self, log: pb.Log) -> None:
        """Cache a log unless a newer version of it is known."""
        known = self.last_known
        if known is not None and known.log_id != log.log_id:
            self.reached = 0
            known = None
        if known is None or known.version <= log.version:
            self.last_known = log

    async def close(self) -> None:
        task = self._refreshing
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _refresh(self) -> pb.Log:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(max(0.0, self._refreshed_s + REFRESH_INTERVAL_S - loop.time()))
            log = await self.fetch()
            return self.last_known or log
        except LoomError as error:
            if not isinstance(error, Retryable):
                self.last_known = None
            raise
        finally:
            self._refreshed_s = loop.time()
            self._refreshing = None


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Mark the exception as retrieved: callers that still wait get it, and if none does, a
    warning of asyncio would be noise."""
    if not task.cancelled():
        task.exception()

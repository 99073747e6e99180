"""The connections of a client, and its requests to the metadata repository.

There is one connection per address, which is shared and opened on demand. Concurrent callers share
one attempt to connect. After it has failed, callers get the same error at once for a short time, so
that they can try another server.

Metadata repositories are tried in turn; a follower names the leader, and responses contain further
addresses. With several repositories, the client waits for one that is slow but alive, and abandons
one that does not answer pings. Idempotent requests are retried until they succeed or time out,
others only while they certainly had no effect.
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
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Codec, Connection, OnReply

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 0.15  # then the next repository is tried, while connecting continues
_SILENCE_S_MIN: Final = 0.5
_STALL_S: Final = 1.0  # requests that took longer are logged
_LEADER_CHECKS: Final = Backoff(0.1, 0.5)  # of the other repositories, during a slow request
_LEADER_CHECK_S: Final = 0.5  # for one of them to answer
_PINGS_PER_SILENCE: Final = 4  # pings in the time after which a repository counts as silent


class _Failure(NamedTuple):
    error: LoomError
    since_s: float
    until_s: float


class Connections:
    """The connections of one client, one per address."""

    def __init__(self, codec: Codec, rng: random.Random, connect_timeout_s: float) -> None:
        self._codec = codec
        self._rng = rng
        self._connect_timeout_s = connect_timeout_s
        self._open: dict[str, Connection] = {}
        self._attempts: dict[str, asyncio.Task[Connection]] = {}
        self._failures: dict[str, _Failure] = {}
        self.closed = False

    def get(self, address: str) -> Connection | None:
        """Return the open connection to an address, or None."""
        connection = self._open.get(address)
        return None if connection is None or connection.closed else connection

    async def connect(self, address: str) -> Connection:
        """Return the open connection, or open one; raise Unavailable, Timeout or VersionMismatch if
        that fails."""
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
        attempt.add_done_callback(mark_retrieved)
        return attempt

    async def _attempt(self, address: str) -> Connection:
        try:
            connection = await endpoints.connect(
                address, self._codec, self, self._connect_timeout_s
            )
        except LoomError as error:
            self._record_failure(address, error)
            raise
        finally:
            self._attempts.pop(address, None)
        self._failures.pop(address, None)
        self._open[address] = connection
        logger.info("connected to %s", address)
        return connection

    def _record_failure(self, address: str, error: LoomError) -> None:
        before = self._failures.get(address)
        level = logging.DEBUG if before else logging.WARNING  # warn once until it is reached again
        logger.log(level, "%s cannot be used now: %s", address, error)
        now_s = asyncio.get_running_loop().time()
        since_s = before.since_s if before else now_s
        until_s = now_s + BACKOFF.late_s(now_s - since_s, self._rng)
        self._failures[address] = _Failure(error, since_s, until_s)

    # ---- Handler

    def frame_received(
        self, connection: Connection, kind: str, frame: Any, payload: memoryview
    ) -> None:
        """Ignore a request: only a server of a newer version might send one to a client."""

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
        self._leader_epoch = 0  # the highest one in any response
        self._leader_check: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop the leader check, if one is running."""
        if self._leader_check is not None:
            self._leader_check.cancel()
            await asyncio.gather(self._leader_check, return_exceptions=True)

    async def reach(self) -> None:
        """Connect to any repository, trying each of them once; raise the last error if none can be
        reached."""
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
        """Send a request, retry it as needed, and return the response. `repeatable` says whether
        the request is idempotent; if not, LoomError is raised if its outcome is unknown."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        deadline_s = began_s + (timeout_s or self.timeout_s)
        attempts = 0
        reason: Retryable | None = None  # the most informative error
        while True:
            tried = self._address
            try:
                answer = await self._attempt(frame, deadline_s, repeatable)
                if attempts and loop.time() - began_s >= _STALL_S:
                    waited = seconds(loop.time() - began_s)
                    logger.warning("the metadata repository answered after %s: %s", waited, reason)
                return answer
            except Retryable as error:
                logger.debug("a request to %s is tried again: %s", tried, error)
                if isinstance(error, Unavailable) and error.lasting:
                    raise
                self._turn(tried, error)
                attempts += 1
                if reason is None or _informativeness(error) >= _informativeness(reason):
                    reason = error
                await self._pause(reason, attempts, loop.time() - began_s, deadline_s)

    def call(self, frame: pb.Frame, on_reply: OnReply) -> LeaderCall | None:
        """Send a request once, without a task or future, for the hot path of appends. Return None
        if there is no connection. If it fails, callers may fall back to `request`."""
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
        """Return a watch on a connection, or None if there is no other repository."""
        if len(self._addresses) == 1:
            return None
        silence_s = limits.LEADER_SILENCE_S
        if repeatable:  # leave time to try the others
            share_s = self.timeout_s / len(self._addresses)
            silence_s = min(silence_s, max(share_s, _SILENCE_S_MIN))
        return Watch(self, connection, silence_s)

    def find_newer_leader(self, connection: Connection) -> None:
        """Ask the other repositories in the background whether they know a newer leader than the
        peer of this connection, which is slow to answer; if so, close the connection."""
        if self._leader_check is None or self._leader_check.done():
            loop = asyncio.get_running_loop()
            self._leader_check = loop.create_task(self._find_newer_leader(connection))
            self._leader_check.add_done_callback(mark_retrieved)

    async def _find_newer_leader(self, connection: Connection) -> None:
        others = [address for address in self._addresses if address != connection.peer]
        await asyncio.gather(*(self._ask_leader(other, connection) for other in others))

    async def _ask_leader(self, address: str, connection: Connection) -> None:
        try:
            async with asyncio.timeout(_LEADER_CHECK_S):
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
        """Raise NotLeader if the response is from a leader that was replaced, perhaps without
        knowing it."""
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
        all_tried = attempts % len(self._addresses) == 0
        wait_s = BACKOFF.late_s(waited_s, self._rng) if all_tried else 0.0
        too_late = asyncio.get_running_loop().time() + wait_s >= deadline_s
        if too_late or self._connections.closed:
            raise error
        await asyncio.sleep(wait_s)

    @property
    def _address(self) -> str:
        return self._addresses[self._chosen]

    def _turn(self, tried: str, error: Retryable) -> None:
        """Choose the leader that the error names, or the next address. Do nothing if another
        request has done so since `tried` was chosen: when many fail at once, each would skip a
        repository otherwise."""
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
    """Return the connection; close it and raise Unavailable if the peer's certificate is not that
    of a metadata repository."""
    try:
        connection.require("metadata")
    except Unauthorized as error:
        failure = Unavailable(f"{connection.peer} is no metadata repository: {error}")
        connection.close(failure)
        raise failure from error
    return connection


def _informativeness(error: Retryable) -> int:
    """Rank errors by how much they explain: a redirect explains least, then a timeout; the reason
    why there is no leader explains most."""
    if isinstance(error, NotLeader):
        return 0 if error.leader else 3
    return 1 if isinstance(error, Timeout) else 2


class LeaderCall:
    """A request to one repository. `on_reply` is called once, with the response or the error, which
    is NotLeader if the repository turns out not to lead."""

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
        """Drop the callback, unless it was called already."""
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
    """Watches the connection of a pending request: closes it, so that the request fails, if the
    server falls silent or no longer leads. Nothing is sent unless the request takes long."""

    def __init__(self, metadata: Metadata, connection: Connection, silence_s: float) -> None:
        every_s = silence_s / _PINGS_PER_SILENCE
        loop = asyncio.get_running_loop()
        self._pings: asyncio.Task[None] | None = None
        began_s = loop.time()

        def check() -> None:
            if connection.closed:
                return
            metadata.find_newer_leader(connection)
            waited_s = loop.time() - began_s
            if self._pings is None and waited_s >= every_s:
                pings = _close_when_silent(connection, silence_s, every_s)
                self._pings = loop.create_task(pings)
            self._timer = loop.call_later(_LEADER_CHECKS.late_s(waited_s), check)

        self._timer = loop.call_later(_LEADER_CHECKS.first_s, check)

    def end(self) -> None:
        self._timer.cancel()
        if self._pings is not None:
            self._pings.cancel()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.end()


async def _close_when_silent(connection: Connection, silence_s: float, every_s: float) -> None:
    while not connection.closed:
        ping = pb.Frame(ask_leader=pb.AskLeader())
        try:
            await connection.request(ping, timeout_s=silence_s - every_s)
        except Timeout as error:
            connection.abort(Unavailable(str(error)))
        except LoomError:
            pass  # the connection was closed, or the server is alive and answered with an error
        await asyncio.sleep(every_s)


def mark_retrieved(task: asyncio.Task[Any]) -> None:
    """Mark the exception as retrieved. Callers that still wait get it; if there are none, the
    warning of asyncio would only be noise."""
    if not task.cancelled():
        task.exception()

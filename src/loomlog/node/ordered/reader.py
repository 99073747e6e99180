"""Reads from replicas, and subscriptions.

Data in the page cache is read on the loop without blocking, other data in a worker. Only committed
entries are read. A subscription sends while it has credit, which its reader renews; so a slow
reader does not slow down others.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

from loomlog import limits
from loomlog.errors import (
    AppendUnknown,
    Busy,
    Corrupt,
    InvalidArgument,
    LoomError,
    NotFound,
    Trimmed,
    Unavailable,
)
from loomlog.node.ordered.copy_destination import CopyDestination
from loomlog.node.ordered.repairer import Repairer
from loomlog.node.ordered.replica import ReplicaDriver
from loomlog.node.workers import off_loop
from loomlog.storage.files import NotCached, Read, Worker, from_cache, from_disk
from loomlog.storage.ordered.stream_reader import Beginning, Chunk, ReplicaPart
from loomlog.types import CommitContext, Glsn, Llsn, ReplicaState, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame, Route, Service

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Range: TypeAlias = tuple[int, int]  # first and last, both inclusive


class Unreadable(NamedTuple):
    """A range of entries that are broken in this replica, in both numberings."""

    llsns: Range
    glsns: Range


class ReplicaReader:
    """Reads committed entries of one replica, from memory if possible."""

    def __init__(self, driver: ReplicaDriver, worker: Worker, repairer: Repairer) -> None:
        self._driver = driver
        self._store = driver.store
        self._worker = worker
        self._repairer = repairer

    def _check_whole(self) -> None:
        """Refuse to read from a replica that is damaged or has left: others have the data."""
        if not self._store.context.readable:
            raise Unavailable(f"this replica of stream {self._driver.stream_id} is damaged")
        if self._driver.closed:
            raise Unavailable(f"this replica of stream {self._driver.stream_id} has left this node")

    async def _from_disk(self, work: Callable[[], Result]) -> Result:
        """Read in a worker. Raise Unavailable if the replica leaves or restarts meanwhile."""
        try:
            return await off_loop(self._worker, work)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            raise Unavailable(
                f"this replica of stream {self._driver.stream_id} has just gone: ask another"
            ) from error

    async def _look(self, look: Callable[[Read], Result]) -> Result:
        """Read from the page cache if possible, otherwise from the disk."""
        try:
            return look(from_cache)
        except NotCached:
            return await self._from_disk(lambda: look(from_disk))

    async def find(self, glsn: Glsn) -> CommitContext | None:
        """Return the commit that holds `glsn`, or the first one after it."""
        self._check_whole()
        return await self._look(lambda read: self._store.find(glsn, read))

    async def commits_after(self, high_watermark: Glsn, count_max: int) -> list[CommitContext]:
        """Return the commits with entries above a high watermark, oldest first."""
        return await self._from_disk(lambda: self._store.commits_after(high_watermark, count_max))

    async def position_of(self, llsn: Llsn) -> Glsn:
        """Return the position of a committed entry. Raise Trimmed if it was trimmed."""
        self._check_whole()
        commit = await self._look(lambda read: self._store.find_llsn(llsn, read))
        if commit is None:
            raise Trimmed(f"stream {self._driver.stream_id}: LLSN {llsn} was trimmed")
        return commit.glsn + llsn - commit.llsn

    async def appended(self, first_llsn: Llsn) -> Frame:
        """Return the answer to a committed append. Raise AppendUnknown if its entries were
        trimmed."""
        try:
            first_glsn = await self.position_of(first_llsn)
        except Trimmed as error:
            raise AppendUnknown(f"{error}; it was appended, where is not known any more") from None
        return pb.Frame(appended=pb.Appended(first_glsn=first_glsn, first_llsn=first_llsn))

    async def chunk(self, first: Llsn, bytes_max: int) -> Chunk:
        """Return batches, beginning with the one that holds this LLSN, repaired if necessary."""
        self._check_whole()
        try:
            return await self._chunk(first, bytes_max)
        except Corrupt:
            if not await self._repairer.repair(first, bytes_max):
                raise
            return await self._chunk(first, bytes_max)

    async def before_damage(self, first: Llsn, bytes_max: int) -> Chunk | Unreadable:
        """Return batches up to the first broken one. If that is the first one, return the broken
        range, up to the end of its commit."""
        last = self._driver.core.last_committed_llsn
        broken = (await self._repairer.examine(first, last)).broken
        while broken is not None and broken.next_llsn <= first:
            broken = (await self._repairer.examine(broken.next_llsn, last)).broken
        if broken is None or broken.llsn > first:
            return await self._chunk(first, bytes_max, broken.llsn - 1 if broken else last)
        end, distance = broken.next_llsn - 1, 0
        commit = await self._from_disk(lambda: self._store.find_llsn(first))
        if commit is not None:
            end, distance = min(end, commit.last_llsn), commit.glsn - commit.llsn
        return Unreadable((first, end), (first + distance, end + distance))

    async def _chunk(self, first: Llsn, bytes_max: int, last: Llsn | None = None) -> Chunk:
        last = self._driver.core.last_committed_llsn if last is None else last
        return await self._look(lambda read: self._store.read(first, last, bytes_max, read))

    async def repair_known(self, address: str) -> None:
        """Repair known damage, from peers and from this address."""
        await self._repairer.repair_known([address])

    async def beginning(self) -> Beginning:
        """Return the start of a copy of this replica."""
        look = partial(self._from_disk, self._store.beginning)
        return await self._repaired(look, self._store.first_kept, 1)

    async def part(self, first: Llsn, bytes_max: int) -> ReplicaPart:
        """Return batches for a copy, beginning at this LLSN, repaired if necessary."""
        return await self._repaired(partial(self._part, first, bytes_max), first, bytes_max)

    async def _repaired(
        self, look: Callable[[], Awaitable[Result]], first: Llsn, bytes_max: int
    ) -> Result:
        """Return the result of `look`. If data is broken, repair it and try again."""
        try:
            return await look()
        except Corrupt:
            if not await self._repairer.repair(first, bytes_max):
                raise
            return await look()

    async def _part(self, first: Llsn, bytes_max: int) -> ReplicaPart:
        last = self._driver.core.last_committed_llsn
        return await self._look(lambda read: self._store.read_part(first, last, bytes_max, read))

    async def stored(self, first: Llsn, last: Llsn) -> memoryview:
        """Return batches as stored, without repairing them, for a peer that repairs its own."""
        last = min(last, self._driver.core.last_committed_llsn)
        if first > last:
            raise Unavailable(
                f"this replica of stream {self._driver.stream_id} has no entries from {first} to "
                f"{last}"
            )
        size = limits.READ_CHUNK_BYTES
        return await self._from_disk(lambda: self._store.read_stored(first, last, size))

    async def read(self, glsn: Glsn) -> Chunk:
        """Return the batch with this position. Raise an error that says why there is none."""
        driver = self._driver
        driver.check_kept(glsn)
        high = driver.core.context.high_watermark
        if glsn > high:
            raise Unavailable(
                f"this replica of stream {driver.stream_id} knows positions up to {high} only"
            )
        commit = await self.find(glsn)
        if commit is None or commit.glsn > glsn:
            raise NotFound(f"position {glsn} is not in stream {driver.stream_id}")
        return await self.chunk(commit.llsn + glsn - commit.glsn, 1)

    async def locate(self, glsn: Glsn) -> Llsn:
        """Return the first LLSN of this stream at or after `glsn`, which may be the next one."""
        high = self._driver.core.context.high_watermark
        if glsn > high + 1:  # entries below it may still be committed, and change the answer
            raise Unavailable(
                f"this replica of stream {self._driver.stream_id} knows positions up to {high} only"
            )
        return await self.first_llsn(glsn)

    async def find_time(self, timestamp_us: int, first_glsn: Glsn) -> Glsn:
        """Return the position of the first batch at or after `first_glsn` with an entry of that
        time or later; 0 if there is none."""
        first = await self.first_llsn(first_glsn)
        llsn = await self._from_disk(lambda: self._store.find_time(timestamp_us, first))
        return await self.position_of(llsn) if llsn is not None else 0

    async def size(self, first_glsn: Glsn, last_glsn: Glsn) -> int:
        """Return the total size of the batches that begin in this range of positions."""
        first, end = await self.first_llsn(first_glsn), await self.first_llsn(last_glsn + 1)
        return await self._from_disk(lambda: self._store.size(first, end))

    async def first_llsn(self, glsn: Glsn) -> Llsn:
        """Return the LLSN at which a subscription from this position begins."""
        self._driver.check_kept(glsn)
        end = self._driver.core.last_committed_llsn + 1
        commit = await self.find(glsn)
        if commit is None:
            return end
        return commit.llsn + max(0, glsn - commit.glsn)


class StreamSubscription:
    """Sends a stream's committed batches to one reader, in order, until it cancels."""

    def __init__(
        self,
        driver: ReplicaDriver,
        reader: ReplicaReader,
        connection: Connection,
        request: pb.Frame,
    ) -> None:
        self._driver = driver
        self._reader = reader
        self._connection = connection
        self._request_id = request.id
        self._wanted = request.subscribe
        self._credit = int(request.subscribe.credit_bytes)
        self._reported: Glsn = 0
        self._reported_sealed = False
        self._wake = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run())

    def add_credit(self, count: int) -> None:
        self._credit += count
        self._wake.set()

    def cancel(self) -> None:
        self._driver.unwatch(self)
        self.task.cancel()

    async def _run(self) -> None:
        try:
            await self._send_all()
        except LoomError as error:
            self._end(error)
        except Exception as error:
            logger.error(
                "a subscription of stream %d failed", self._driver.stream_id, exc_info=error
            )
            self._end(LoomError("internal error in a subscription: see the server's log"))

    async def _send_all(self) -> None:
        wanted = self._wanted
        next_llsn = wanted.first_llsn or await self._reader.first_llsn(wanted.first_glsn)
        self._driver.watch(self, self._wake.set)
        while not self._driver.closed:
            self._wake.clear()
            if self._credit > 0 and next_llsn <= self._driver.core.last_committed_llsn:
                try:
                    next_llsn = await self._send_chunk(next_llsn)
                except Trimmed:
                    next_llsn = await self._skip_trimmed(next_llsn)
                    continue
                await asyncio.sleep(0)  # let others run between two chunks
            else:
                await self._connection.drain()
                if next_llsn > self._driver.core.last_committed_llsn:  # unchanged during the drain
                    self._report_standing()
                await self._wake.wait()
        raise Unavailable(f"stream {self._driver.stream_id} left this node: ask another replica")

    async def _send_chunk(self, next_llsn: Llsn) -> Llsn:
        async with self._connection.turns:
            size = min(limits.READ_CHUNK_BYTES, self._credit)
            try:
                chunk = await self._reader.chunk(next_llsn, size)
            except Corrupt as error:
                sound = await self._reader.before_damage(next_llsn, size)
                if isinstance(sound, Unreadable):
                    numbers = sound.llsns if self._wanted.first_llsn else sound.glsns
                    raise Corrupt(str(error), *numbers) from error
                chunk = sound
            self._credit -= len(chunk.buffer)
            self._send(chunk)
        return chunk.last_llsn + 1

    async def _skip_trimmed(self, next_llsn: Llsn) -> Llsn:
        """Return where to continue after a trim. On a replica that lagged, a subscription begins
        below the wanted position; trimmed entries up to there are skipped."""
        wanted = self._wanted.first_glsn
        first = await self._reader.first_llsn(wanted) if wanted else 0
        if first <= next_llsn:
            raise Trimmed(f"stream {self._driver.stream_id}: LLSN {next_llsn} was trimmed")
        return first

    def _send(self, chunk: Chunk) -> None:
        caught_up = chunk.last_llsn == self._driver.core.last_committed_llsn
        high = self._driver.core.context.high_watermark
        self._reported = high if caught_up else chunk.last_glsn
        frame = pb.Frame(id=self._request_id, reply=True)
        frame.subscription_data.high_watermark = self._reported
        self._connection.send(frame, [chunk.buffer])

    def _report_standing(self) -> None:
        """Report the high watermark, and whether the stream is sealed. Called only when everything
        was sent, because the reader then drops entries at or below that watermark."""
        high = self._driver.core.context.high_watermark
        sealed = self._driver.core.state is not ReplicaState.RUNNING
        if self._credit > 0 and (high > self._reported or sealed != self._reported_sealed):
            self._reported, self._reported_sealed = high, sealed
            frame = pb.Frame(id=self._request_id, reply=True)
            frame.subscription_data.high_watermark = high
            frame.subscription_data.sealed = sealed
            self._connection.send(frame)

    def _end(self, error: LoomError) -> None:
        self._driver.unwatch(self)
        self._connection.refuse(self._request_id, error)


class OpenReplica(NamedTuple):
    """An open replica and the objects that work on it."""

    driver: ReplicaDriver
    reader: ReplicaReader
    repairer: Repairer
    destination: CopyDestination


class ReadRequests:
    """Requests of clients and other nodes for entries."""

    def __init__(
        self,
        holding: Callable[[StreamId], OpenReplica],
        service: Service,
        check_replica: Callable[[Connection, StreamId], Awaitable[None]],
    ) -> None:
        """`holding` returns a replica; it raises NotFound, or Unavailable if its volume failed.
        `check_replica` raises unless a peer has a replica of the stream."""
        self._check_replica = check_replica
        self._holding = holding
        self._service = service
        self._subscriptions: dict[Connection, dict[int, StreamSubscription]] = {}

    def routes(self) -> dict[str, Route]:
        return {
            "fetch_batches": self._fetch_batches,
            "read": self._read,
            "locate": self._locate,
            "find_time": self.find_time,
            "subscribe": self._subscribe,
            "subscription_credit": self._add_credit,
            "cancel_subscription": self._cancel_subscription,
        }

    def stop(self) -> None:
        for connection in list(self._subscriptions):
            self.connection_closed(connection)

    def connection_closed(self, connection: Connection) -> None:
        for subscription in self._subscriptions.pop(connection, {}).values():
            subscription.cancel()

    # ---- reads

    def _fetch_batches(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        held = self._holding(frame.fetch_batches.log_stream_id)  # now: it may leave meanwhile
        self._service.spawn(self._answer_fetch(connection, frame, held.reader))

    async def _answer_fetch(
        self, connection: Connection, frame: Frame, reader: ReplicaReader
    ) -> None:
        order = frame.fetch_batches
        async with connection.turns:
            try:
                await self._check_replica(connection, order.log_stream_id)
                batches = await reader.stored(order.first_llsn, order.last_llsn)
            except Exception as error:
                self._service.answer_error(connection, frame, "fetch_batches", error)
                return
            answer = pb.Frame(id=frame.id, reply=True, fetched_batches=pb.FetchedBatches())
            connection.send(answer, [batches])

    def _read(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        try:
            held = self._holding(frame.read.log_stream_id)
        except NotFound as error:  # a client would take it for an answer about the position
            raise Unavailable(str(error)) from None
        self._service.spawn(self._answer_read(connection, frame, held))

    async def _answer_read(self, connection: Connection, frame: Frame, held: OpenReplica) -> None:
        async with connection.turns:
            try:
                chunk = await held.reader.read(frame.read.glsn)
            except Exception as error:
                self._service.answer_error(connection, frame, "read", error)
                return
            answer = pb.Frame(id=frame.id, reply=True)
            answer.read_response.high_watermark = held.driver.core.context.high_watermark
            connection.send(answer, [chunk.buffer])

    async def _locate(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.locate
        if not order.glsn:
            raise InvalidArgument("positions begin at 1")
        held = self._holding(order.log_stream_id)
        llsn = await held.reader.locate(order.glsn)
        high = held.driver.core.context.high_watermark
        return pb.Frame(located=pb.Located(llsn=llsn, high_watermark=high))

    async def find_time(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.find_time
        held = self._holding(order.log_stream_id)
        # Read it before the search: the answer is valid up to here.
        high = held.driver.core.context.high_watermark
        position = await held.reader.find_time(order.timestamp_us, max(order.first_glsn, 1))
        return pb.Frame(found_time=pb.FoundTime(position=position, high_watermark=high))

    async def measure(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order = frame.measure_stream
        held = self._holding(order.log_stream_id)
        through = min(order.last, held.driver.core.context.high_watermark)
        size = 0
        if order.first <= through:
            size = await held.reader.size(max(order.first, 1), through)
        return pb.Frame(measured=pb.Measured(through=through, size=size))

    # ---- subscriptions

    def _subscribe(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        order = frame.subscribe
        if not order.first_glsn and not order.first_llsn:
            raise InvalidArgument("a subscription needs a first position or a first LLSN")
        held = self._holding(order.log_stream_id)
        mine = self._subscriptions.setdefault(connection, {})
        if len(mine) >= limits.SUBSCRIPTIONS_PER_CONNECTION_MAX:
            raise Busy("too many subscriptions on this connection: cancel some first")
        usage = connection.usage
        usage.subscribe()
        subscription = StreamSubscription(held.driver, held.reader, connection, frame)
        mine[frame.id] = subscription

        def ended(_: object) -> None:
            usage.unsubscribe()
            connection.end_request(frame.id)
            mine.pop(frame.id, None)

        subscription.task.add_done_callback(ended)

    def _add_credit(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        order = frame.subscription_credit
        subscription = self._subscriptions.get(connection, {}).get(order.subscription_id)
        if subscription is not None:
            subscription.add_credit(order.bytes)

    def _cancel_subscription(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> None:
        wanted = frame.cancel_subscription.subscription_id
        subscription = self._subscriptions.get(connection, {}).pop(wanted, None)
        if subscription is not None:
            subscription.cancel()

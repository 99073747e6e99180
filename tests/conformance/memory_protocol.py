"""A fourth protocol, which lives only here: a segment is a list in the memory of this process.

It shows what a protocol has to bring: a keeper for the metadata repository, a service for storage
nodes, a loglet for clients, each registered in its table. Nothing in src/ knows of it. All nodes of
a cluster share the lists, so there is nothing to replicate or to repair.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import pytest

from loomlog import batch as batches
from loomlog.client.append.appender import Attempt, Batch
from loomlog.client.append.carriers import Carrier, Outcomes
from loomlog.client.append.stream import Stream
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client
from loomlog.client.loglets.contract import Confirm, Fixed, FollowOptions, Loglet
from loomlog.client.loglets.registry import FACTORIES
from loomlog.client.subscribe import pieces
from loomlog.client.subscribe.numbering import Run
from loomlog.client.subscribe.part import FollowedPart, trimmed
from loomlog.client.subscribe.pieces import Referred, Stored
from loomlog.core.conditions import Condition
from loomlog.core.segments import Segment, Successor
from loomlog.errors import (
    Conflict,
    LoomError,
    NotFound,
    NotYetWritten,
    Retryable,
    Sealed,
    Unavailable,
)
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.protocol import KeeperContext, ProtocolKeeper
from loomlog.metadata.registry import KEEPERS
from loomlog.node.protocol import NodeContext, NodeProtocol
from loomlog.node.registry import PROTOCOLS
from loomlog.types import Buffer, Entry, Glsn, LogId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame

NAME: Final = "memory"
POLL_S: Final = 0.5  # a follower with nothing to read waits this long at a node

# ---- the lists


@dataclass
class Shelf:
    """The batches of one segment."""

    log: LogId
    stream: StreamId
    tail: Glsn = 0
    begun: bool = False
    sealed: bool = False
    batches: dict[Glsn, bytes] = field(default_factory=dict)  # by their first positions, in order
    numbers: dict[tuple[int, int], Glsn] = field(default_factory=dict)  # by producer and sequence
    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    def begin(self, start: Glsn) -> None:
        if not self.begun:
            self.begun, self.tail = True, start - 1

    def append(self, content: Buffer, expected: Glsn | None = None) -> Glsn:
        batch = bytearray(content)
        header = batches.check(batch)
        number = header.producer_id, header.sequence
        if number in self.numbers:
            return self.numbers[number]
        if self.sealed or not self.begun:
            raise Sealed(f"stream {self.stream} takes no appends")
        if expected not in (None, self.tail):
            raise Conflict(f"the tail is {self.tail}")
        first = self.numbers[number] = self.tail + 1
        batches.assign_place(batch, self.stream, 1, first)
        self.batches[first] = bytes(batch)
        self.tail += header.count
        self.wake()
        return first

    def seal(self) -> Glsn:
        self.sealed = True
        self.wake()
        return self.tail

    def find(self, position: Glsn) -> bytes:
        """Return the batch that holds a position; empty if there is none."""
        for first, batch in self.batches.items():
            if first <= position < first + batches.read_header(batch).count:
                return batch
        return b""

    def trim(self, position: Glsn) -> None:
        for first in list(self.batches):
            if first + batches.read_header(self.batches[first]).count - 1 <= position:
                del self.batches[first]

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        await asyncio.wait({future}, timeout=POLL_S)


SHELVES: Final[dict[LogId, Shelf]] = {}


@pytest.fixture
def memory_protocol(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the protocol on all sides."""
    monkeypatch.setitem(KEEPERS, NAME, MemoryKeeper.load)
    monkeypatch.setitem(PROTOCOLS, NAME, MemoryService)
    monkeypatch.setitem(FACTORIES, NAME, MemoryLoglet)
    yield
    SHELVES.clear()


# ---- the metadata repository


class MemoryKeeper(ProtocolKeeper):
    protocol: ClassVar[str] = NAME
    has_streams: ClassVar[bool] = False

    @classmethod
    async def load(cls, context: KeeperContext) -> MemoryKeeper:
        return cls(context)

    def __init__(self, context: KeeperContext) -> None:
        self._catalog = context.catalog
        self._nodes = context.nodes

    async def make(self, log: LogRecord, successor: Successor) -> None:
        if successor.loglet not in SHELVES:
            SHELVES[successor.loglet] = Shelf(log.log_id, (await self._catalog.new_streams())[0])

    async def begin(self, log: LogRecord, segment: Segment) -> bool:
        SHELVES[segment.loglet].begin(segment.start)
        return True

    async def seal(self, log: LogRecord, segment: Segment) -> Glsn:
        shelf = SHELVES[segment.loglet]
        shelf.begin(segment.start)  # if it never did
        return shelf.seal()

    async def discard(self, log: LogRecord, loglet: LogId) -> None:
        SHELVES.pop(loglet, None)

    async def deleted(self, log: LogRecord) -> None:
        for loglet in [loglet for loglet, shelf in SHELVES.items() if shelf.log == log.log_id]:
            del SHELVES[loglet]

    def log_changed(self, log: LogRecord) -> None:
        for loglet, shelf in list(SHELVES.items()):
            if shelf.log == log.log_id and log.layout.settings_of(loglet) is None:
                del SHELVES[loglet]

    async def trim(self, log: LogRecord) -> None:
        self.log_changed(log)
        for _, shelf in self._shelves(log):
            shelf.trim(log.trimmed)

    async def find_tail(self, log: LogRecord, segment: Segment) -> Glsn:
        return self.known_tail(log, segment)

    def known_tail(self, log: LogRecord, segment: Segment) -> Glsn:
        return max(SHELVES[segment.loglet].tail, segment.start - 1)

    async def find_time(
        self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
    ) -> Glsn:
        shelf = SHELVES[segment.loglet]
        for batch in shelf.batches.values():
            header = batches.read_header(batch)
            if header.last_position >= first and header.max_timestamp_us >= timestamp_us:
                return max(first, header.first_position)
        return max(first, shelf.tail + 1)

    def conditions(self, log: LogRecord) -> list[Condition]:
        return []  # what is in the memory of one process has all the copies that it ever has

    def streams(self, log: LogRecord) -> list[pb.LogStream]:
        nodes = [self._catalog.nodes[node] for node in self._nodes.all_reachable()]
        return [
            pb.LogStream(
                log_stream_id=shelf.stream,
                state=pb.STREAM_SEALED if shelf.sealed else pb.RUNNING,
                seal_epoch=1,
                replicas=[
                    pb.Replica(storage_node_id=node.node_id, address=node.address) for node in nodes
                ],
                last=self.known_tail(log, segment),
                loglet_id=segment.loglet,
                protocol=NAME,
            )
            for segment, shelf in self._shelves(log)
        ]

    def _shelves(self, log: LogRecord) -> list[tuple[Segment, Shelf]]:
        segments = [s for s in log.layout.segments if s.settings.protocol == NAME]
        return [(segment, SHELVES[segment.loglet]) for segment in segments]


# ---- a storage node


class MemoryService(NodeProtocol):
    def __init__(self, context: NodeContext) -> None:
        pass

    def request(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        return self._answer(json.loads(frame.protocol_message.body), bytes(payload))

    async def _answer(self, question: dict[str, Any], content: bytes) -> Frame:
        shelf = SHELVES.get(question["loglet"])
        if shelf is None:
            raise NotFound("that segment is gone")
        match question["what"]:
            case "append":
                body = json.dumps(shelf.append(content, question.get("expected"))).encode()
            case "tail":
                body = json.dumps(shelf.tail).encode()
            case "fetch":
                body = shelf.find(question["position"])
                if not body and question["wait"] and not shelf.sealed:
                    await shelf.wait()
                    body = shelf.find(question["position"])
        return pb.Frame(protocol_message=pb.ProtocolMessage(protocol=NAME, body=body))


# ---- a client


class MemoryLoglet(Loglet):
    finds_fixed = True

    def __init__(self, log: CachedLog, client: Client) -> None:
        super().__init__(log, client)
        self.log = log
        self.client = client

    async def ask(self, loglet: LogId, what: str, content: Buffer = b"", **more: Any) -> bytes:
        """Ask any node."""
        log = await self.log.cached()
        addresses = [r.address for s in log.streams if s.loglet_id == loglet for r in s.replicas]
        if not addresses:
            raise NotFound(f"segment {loglet} is gone")
        connection = await self.client.connections.connect(self.client.rng.choice(addresses))
        body = json.dumps({"what": what, "loglet": loglet, **more}).encode()
        frame = pb.Frame(protocol_message=pb.ProtocolMessage(protocol=NAME, body=body))
        answer, _ = await connection.request(frame, (content,), timeout_s=2.0)
        return answer.protocol_message.body

    async def loglet_of(self, stream: StreamId) -> LogId:
        log = await self.log.cached()
        found = [s.loglet_id for s in log.streams if s.log_stream_id == stream]
        return found[0] if found else 0

    def carrier(self, outcomes: Outcomes) -> MemoryCarrier:
        return MemoryCarrier(self, outcomes)

    async def read(
        self, run: Run, position: Glsn, deadline_s: float
    ) -> Entry | Referred | LoomError:
        [stream] = run.streams
        try:
            batch = await self.ask(stream.loglet_id, "fetch", position=position, wait=False)
        except (Retryable, NotFound) as error:
            return Unavailable(str(error))
        if not batch:
            tail = json.loads(await self.ask(stream.loglet_id, "tail"))
            if position > tail and run.last is None:
                raise NotYetWritten(f"position {position} is not written yet; the last is {tail}")
            return Unavailable(f"position {position} was trimmed, or is in another segment")
        index = position - batches.read_header(batch).first_position
        piece = pieces.decode(batch, batches.read_header(batch), index, 1)
        return piece if isinstance(piece, Referred) else piece.batch.entry(index)

    def follow(
        self, options: FollowOptions, log: pb.Log, start: int, stop: int | None
    ) -> MemoryPart:
        return MemoryPart(self, options, log, start, stop)

    async def tail(self, log: pb.Log, *, fresh: bool) -> pb.Log:
        return log if fresh else await self.log.fetch()

    async def reserve(self, stream: StreamId, tail: Glsn, rows: int) -> Fixed:
        return Fixed(NAME, stream, tail, place=await self.loglet_of(stream))

    async def append_fixed(self, fixed: Fixed, batch: bytearray, confirm: Confirm) -> Glsn:
        await self.log.fetch()  # what is known may be older than the place
        try:
            return int(json.loads(await self.ask(fixed.place, "append", batch)))
        except (Sealed, NotFound):
            return 0


class MemoryCarrier(Carrier):
    def __init__(self, loglet: MemoryLoglet, outcomes: Outcomes) -> None:
        self.loglet = loglet
        self.outcomes = outcomes
        self._tasks: set[asyncio.Task[None]] = set()

    def attempt(self, batch: Batch, target: Stream) -> MemoryAttempt:
        return MemoryAttempt(self, batch, target)

    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._tasks)

    def run(self, attempt: MemoryAttempt) -> asyncio.Task[None]:
        task = self.loglet.client.loop.create_task(attempt.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class MemoryAttempt(Attempt):
    def __init__(self, carrier: MemoryCarrier, batch: Batch, target: Stream) -> None:
        super().__init__(batch, target)
        self._carrier = carrier
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._carrier.run(self)

    def cancel(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def run(self) -> None:
        """Send the batch until it is answered: it is recognised by its number."""
        loglet, outcomes = self._carrier.loglet, self._carrier.outcomes
        producer, compression = loglet.client.producer, self.target.compression
        payload = self.batch.encode(producer.id, producer.next_sequence(), compression)
        while True:
            outcomes.sent(self)
            try:
                segment = await loglet.loglet_of(self.target.id)
                expected = self.batch.expected_tail
                answer = await loglet.ask(segment, "append", payload, expected=expected)
                first = int(json.loads(answer))
            except LoomError as error:
                if self.doubtful and isinstance(error, Sealed):
                    outcomes.absent(self)
                    return
                if isinstance(error, Retryable):
                    continues = outcomes.lost(self, str(error))
                else:  # it has to be sent again if an earlier answer was lost
                    continues = outcomes.refused(self, error)
                if not continues:
                    return
                await asyncio.sleep(0.05)
                with suppress(Retryable):
                    await loglet.log.fetch()  # nodes may have come and gone
            else:
                outcomes.appended(self, first, first)
                return


class MemoryPart(FollowedPart):
    def __init__(
        self,
        loglet: MemoryLoglet,
        options: FollowOptions,
        log: pb.Log,
        start: int,
        stop: int | None,
    ) -> None:
        super().__init__(start, stop)
        self._loglet = loglet
        self._numbering = options.numbering
        [stream] = options.numbering.run(log, start).streams
        self._segment = stream.loglet_id
        self._queue: deque[Stored] = deque()
        self._task = self._loop.create_task(self._fetch(start))
        self._adopt(log)

    def next_ready(self) -> Stored | None:
        if self._at_end() or not self._queue:
            return None
        piece = self._queue.popleft()
        assert isinstance(piece, pieces.Piece | Referred)
        self._next += piece.rows
        return piece

    async def _wait(self) -> None:
        await self._doze()

    def _release(self) -> None:
        self._task.cancel()

    async def _fetch(self, position: Glsn) -> None:
        try:
            while self._stop is None or position <= self._stop:
                try:
                    batch = await self._loglet.ask(
                        self._segment, "fetch", position=position, wait=True
                    )
                except (Retryable, NotFound):
                    batch = b""
                if batch:
                    position = self._take(batch, position)
                else:
                    self._adopt(await self._loglet.log.refresh())
                    await asyncio.sleep(0.01)
            self._notify()
        except Exception as error:
            self.fail(error)

    def _take(self, batch: bytes, position: Glsn) -> Glsn:
        header = batches.read_header(batch)
        last = self._clipped(header.first_position + header.count - 1)
        skip, rows = position - header.first_position, last - position + 1
        self._queue.append(pieces.decode(batch, header, skip, rows))
        self._notify()
        return last + 1

    def _adopt(self, log: pb.Log) -> None:
        if log.head > self._next:
            raise trimmed(self._numbering, self._next, log.name, log.head)
        for segment in log.segments:
            if segment.loglet_id == self._segment and segment.HasField("end"):
                self._stop = self._clipped(segment.end)

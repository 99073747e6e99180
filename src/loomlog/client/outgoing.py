"""What waits to be appended: records in batches, batches in lanes, and who hears of them.

No I/O and no decisions: appender.py and delivery.py make them. A batch is settled once, for all
its callers.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Protocol

from loomlog.client.targets import Stream
from loomlog.errors import InvalidArgument, LoomError
from loomlog.net.connection import Connection
from loomlog.types import Buffer, Glsn, Llsn, Position, StreamId


class Producer:
    """Who appends: its number, and the numbers of its batches. One per client."""

    def __init__(self, rng: random.Random, clock: Callable[[], float]) -> None:
        self.id = rng.getrandbits(63) or 1
        self._clock = clock
        self._sequence = 0

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def now_us(self) -> int:
        return int(self._clock() * 1_000_000)


class UnderWay(Protocol):
    """Work that can be ended: a task, say."""

    def cancel(self) -> object: ...


class Lane:
    """Records for one choice of stream (None: any), in the order they came."""

    __slots__ = ("flush_scheduled", "open", "queue", "stalled", "stream", "under_way")

    def __init__(self, stream: StreamId | None) -> None:
        self.stream = stream
        self.open: Records | None = None
        self.queue: deque[Batch] = deque()  # closed, waiting for a stream with room
        self.under_way = 0  # closed and not yet settled
        self.stalled = 0  # of those, on streams that others need not wait for
        self.flush_scheduled = False


class Batch:
    """What is sent as one; settled once, by `succeed` or `fail`."""

    __slots__ = (
        "attempts",
        "connection",
        "deadline_s",
        "doubtful",
        "epoch",
        "lane",
        "lost",
        "payload",
        "refusal",
        "request_id",
        "retry",
        "sequence",
        "settled",
        "size",
        "stalled",
        "target",
        "timestamp_us",
        "waiting",
        "writing",
    )

    def __init__(self, lane: Lane, size: int, deadline_s: float, timestamp_us: int) -> None:
        self.lane = lane
        self.size = size
        self.deadline_s = deadline_s
        self.timestamp_us = timestamp_us
        self.attempts = 0
        self.settled = False
        self.target: Stream | None = None  # it holds one of this stream's places
        self.connection: Connection | None = None  # where its answer is to come from
        self.request_id = 0
        self.waiting: UnderWay | None = None  # who waits for its place in the log
        self.writing: UnderWay | None = None  # who writes it, where clients do that
        self.payload: Buffer = b""  # as it was sent last: a repeat must be the same
        self.sequence = 0
        self.epoch = 0  # of the target when it was sent
        self.lost = ""  # why an answer is missing: it may or may not have been appended
        self.doubtful = False  # the same, and its target is asked about it
        self.stalled = False  # new batches need not wait for it
        self.refusal: LoomError | None = None  # the last one: certainly not appended
        self.retry: asyncio.TimerHandle | None = None

    @property
    def sent(self) -> bool:
        """It may be appended at any moment."""
        return self.connection is not None or self.writing is not None

    @property
    def count(self) -> int:
        """Its records; 0: only its header will tell."""
        return 0

    # ---- its place on a stream

    def occupy(self, target: Stream, now_s: float) -> None:
        """Take a place, or the same one again."""
        target.in_flight[self] = now_s
        self.target = target

    def doubt(self) -> None:
        """It was sent, and its answer is lost."""
        self.connection = None
        if not self.doubtful and self.target is not None:
            self.doubtful = True
            self.target.doubtful += 1

    def stall(self) -> None:
        """Nothing new waits for it any more."""
        if not self.stalled:
            self.stalled = True
            self.lane.stalled += 1

    def vacate(self) -> None:
        """Give the place back."""
        if self.target is not None:
            del self.target.in_flight[self]
            self.target.doubtful -= self.doubtful
        if self.connection is not None:
            self.connection.forget(self.request_id)
        for carrying in (self.waiting, self.writing):
            if carrying is not None:
                carrying.cancel()
        if self.stalled:
            self.stalled = False
            self.lane.stalled -= 1
        self.target = self.connection = self.waiting = self.writing = None
        self.doubtful = False
        self.sequence = 0  # what anybody still says about that number is old news

    # ---- what is sent, and who hears of it

    def encode(self, producer_id: int, sequence: int, compression: str) -> Buffer:
        raise NotImplementedError

    def succeed(self, first: Glsn, stream: StreamId, first_llsn: Llsn) -> None:
        raise NotImplementedError

    def fail(self, error: LoomError, *, quietly: bool) -> None:
        raise NotImplementedError


class Records(Batch):
    """Single appends that happen to travel together."""

    __slots__ = ("futures", "keyed", "keys", "values")

    def __init__(self, lane: Lane, deadline_s: float, timestamp_us: int) -> None:
        super().__init__(lane, 0, deadline_s, timestamp_us)
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.keyed = False
        self.futures: list[asyncio.Future[Position]] = []

    @property
    def count(self) -> int:
        return len(self.values)

    def encode(self, producer_id: int, sequence: int, compression: str) -> Buffer:
        from loomlog import columns

        return columns.encode(
            self.values,
            keys=self.keys if self.keyed else None,
            timestamps_us=self.timestamp_us,
            producer_id=producer_id,
            sequence=sequence,
            compression=compression,
        )

    def succeed(self, first: Glsn, stream: StreamId, first_llsn: Llsn) -> None:
        given: Iterable[Position] = [Position(first, stream, first_llsn)]
        if len(self.futures) > 1:
            given = positions(Position(first, stream, first_llsn), len(self.futures))
        for future, position in zip(self.futures, given, strict=True):
            if not future.done():  # a caller may have cancelled its own
                future.set_result(position)

    def fail(self, error: LoomError, *, quietly: bool) -> None:
        for future in self.futures:
            fail(future, error, quietly=quietly)


class Whole(Batch):
    """One call, one batch; the caller hears where its first record stands."""

    __slots__ = ("encoder", "future")

    def __init__(
        self,
        lane: Lane,
        size: int,
        deadline_s: float,
        timestamp_us: int,
        encoder: Callable[..., Buffer],
        future: asyncio.Future[Position],
    ) -> None:
        super().__init__(lane, size, deadline_s, timestamp_us)
        self.encoder = encoder
        self.future = future

    def encode(self, producer_id: int, sequence: int, compression: str) -> Buffer:
        return self.encoder(
            timestamps_us=self.timestamp_us,
            producer_id=producer_id,
            sequence=sequence,
            compression=compression,
        )

    def succeed(self, first: Glsn, stream: StreamId, first_llsn: Llsn) -> None:
        if not self.future.done():
            self.future.set_result(Position(first, stream, first_llsn))

    def fail(self, error: LoomError, *, quietly: bool) -> None:
        fail(self.future, error, quietly=quietly)


def records_encoder(
    values: Sequence[Buffer], keys: Sequence[Buffer | None] | None
) -> Callable[..., Buffer]:
    def encode(**stamps: Any) -> Buffer:
        from loomlog import columns

        return columns.encode(values, keys=keys, **stamps)

    return encode


def arrow_encoder(records: Any) -> Callable[..., Buffer]:
    def encode(**stamps: Any) -> Buffer:
        from loomlog import columns

        return columns.encode_arrow(records, **stamps)

    return encode


def positions(first: Position, count: int) -> Iterator[Position]:
    """Of `count` neighbours, from the first on."""
    rows = zip(
        range(first.position, first.position + count),
        repeat(first.stream),
        range(first.llsn, first.llsn + count),
        strict=False,
    )
    # What Position._make does, without a Python frame per record.
    return map(tuple.__new__, repeat(Position), rows)


def as_bytes(name: str, given: Buffer) -> bytes:
    """A copy of what the caller might change before it is sent."""
    if isinstance(given, bytes):
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise InvalidArgument(f"{name} must be bytes, not {type(given).__name__}; encode it first")


def fail(future: asyncio.Future[Any], error: LoomError, *, quietly: bool) -> None:
    if future.done():
        return
    future.set_exception(type(error)(*error.args))  # its own: tracebacks must not mix
    if quietly:
        future.exception()  # marks it as seen: nobody may be left to look at it

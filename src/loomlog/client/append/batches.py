"""Batches of records to be appended, and the lanes in which they wait.

While few batches are in flight, a lane's open batch is closed at the end of the event loop's turn;
otherwise when one of them is answered or the open one is full. So batches grow with the load.
delivery.py sends closed batches.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final

from loomlog.client.append.targets import Stream, Targets
from loomlog.core.delivery import Progress
from loomlog.errors import InvalidArgument, LoomError
from loomlog.types import Buffer, Glsn, Llsn, Position, StreamId

FEW_IN_FLIGHT: Final = 2  # per stream or replica of a chain: one being stored, one being sent


class Producer:
    """A client's producer id, and the sequence numbers of its batches."""

    def __init__(self, rng: random.Random, clock: Callable[[], float]) -> None:
        self.id = rng.getrandbits(63) or 1
        self._clock = clock
        self._sequence = 0

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def now_us(self) -> int:
        return int(self._clock() * 1_000_000)


class Lane:
    """Records for one stream (None: any), in the order of their appends."""

    __slots__ = ("flush_scheduled", "open", "queue", "stalled", "stream", "under_way")

    def __init__(self, stream: StreamId | None) -> None:
        self.stream = stream
        self.open: GatheredBatch | None = None
        self.queue: deque[Batch] = deque()  # closed, waiting for a stream with room
        self.under_way = 0  # batches closed and not settled
        self.stalled = 0  # those of them that new batches do not wait for
        self.flush_scheduled = False


class Lanes:
    """A lane for "any stream", and one for each stream that callers name."""

    def __init__(
        self, targets: Targets, closed: Callable[[Batch], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """`closed` is called with each batch that is ready to send."""
        self._targets = targets
        self._closed = closed
        self._loop = loop
        self.any = Lane(None)
        self._lanes: dict[StreamId | None, Lane] = {None: self.any}

    def __iter__(self) -> Iterator[Lane]:
        """Iterate over a copy, since lanes may be added and removed meanwhile."""
        return iter(list(self._lanes.values()))

    def get(self, stream: StreamId | None) -> Lane:
        lane = self._lanes.get(stream)
        if lane is None:
            lane = self._lanes[stream] = Lane(stream)
        return lane

    def flush_soon(self, lane: Lane) -> None:
        """Flush at the end of this turn of the event loop, to send all its appends together."""
        if not lane.flush_scheduled:
            lane.flush_scheduled = True
            self._loop.call_soon(self._flush, lane)

    def _flush(self, lane: Lane) -> None:
        lane.flush_scheduled = False
        under_way = lane.under_way - lane.stalled
        few = FEW_IN_FLIGHT  # more for wide targets, whose width is computed only if needed
        if under_way < few or under_way < few * self._targets.width(lane.stream):
            self.close_open(lane)

    def close_open(self, lane: Lane) -> None:
        batch, lane.open = lane.open, None
        if batch is not None:
            self._closed(batch)

    def settled(self, lane: Lane) -> None:
        """Called when a batch of the lane is settled: flush the open one, or drop an idle lane."""
        if lane.open is not None:
            self.flush_soon(lane)
        elif lane.stream is not None and not lane.under_way and not lane.flush_scheduled:
            self._lanes.pop(lane.stream, None)


class Batch:
    """Records sent as one batch. It is settled once, by `succeed` or `fail`."""

    __slots__ = (
        "attempt",
        "deadline_s",
        "lane",
        "progress",
        "refusal",
        "retry",
        "size",
        "stalled",
        "timestamp_us",
    )

    progress: Progress  # set when the batch is closed

    def __init__(self, lane: Lane, size: int, deadline_s: float, timestamp_us: int) -> None:
        self.lane = lane
        self.size = size
        self.deadline_s = deadline_s
        self.timestamp_us = timestamp_us
        self.attempt: Attempt | None = None  # the current one
        self.stalled = False  # new batches do not wait for it
        self.refusal: LoomError | None = None  # the last one, for the callers' error
        self.retry: asyncio.TimerHandle | None = None  # its back-off

    @property
    def count(self) -> int:
        """The number of its records."""
        raise NotImplementedError

    def stall(self) -> None:
        """Let new batches go ahead of it."""
        if not self.stalled:
            self.stalled = True
            self.lane.stalled += 1

    def end_attempt(self) -> None:
        """Cancel the attempt and free its place on the stream."""
        attempt, self.attempt = self.attempt, None
        if self.stalled:
            self.stalled = False
            self.lane.stalled -= 1
        if attempt is not None:
            attempt.target.vacate(attempt)
            attempt.cancel()

    def encode(self, producer_id: int, sequence: int, compression: str) -> Buffer:
        raise NotImplementedError

    def succeed(self, first: Glsn, stream: StreamId, first_llsn: Llsn) -> None:
        """Return the positions to the callers."""
        raise NotImplementedError

    def fail(self, error: LoomError, *, quietly: bool) -> None:
        """Raise `error` in the callers. `quietly`: asyncio does not warn if none retrieves it."""
        raise NotImplementedError


class Attempt:
    """One attempt to append a batch to one stream."""

    __slots__ = ("batch", "doubtful", "target")

    def __init__(self, batch: Batch, target: Stream) -> None:
        self.batch = batch
        self.target = target
        self.doubtful = False  # its answer was lost; set by the stream

    @property
    def current(self) -> bool:
        """Whether its batch still depends on this attempt."""
        return self.batch.attempt is self

    def start(self) -> None:
        """Start; called once. Outcomes must be reported in a later turn of the event loop, since
        settling a batch starts the next one."""

    def cancel(self) -> None:
        """Stop; called once when the attempt is over, even by its own report."""


class GatheredBatch(Batch):
    """Single appends gathered into one batch."""

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
            if not future.done():  # its caller may have cancelled it
                future.set_result(position)

    def fail(self, error: LoomError, *, quietly: bool) -> None:
        for future in self.futures:
            fail(future, error, quietly=quietly)


class CallerBatch(Batch):
    """The records of one call, which gets the position of the first."""

    __slots__ = ("_count", "_encoder", "_future")

    def __init__(
        self,
        lane: Lane,
        size: int,
        deadline_s: float,
        timestamp_us: int,
        encoder: Callable[..., Buffer],
        count: int,
        future: asyncio.Future[Position],
    ) -> None:
        super().__init__(lane, size, deadline_s, timestamp_us)
        self._encoder = encoder
        self._count = count
        self._future = future

    @property
    def count(self) -> int:
        return self._count

    def encode(self, producer_id: int, sequence: int, compression: str) -> Buffer:
        return self._encoder(
            timestamps_us=self.timestamp_us,
            producer_id=producer_id,
            sequence=sequence,
            compression=compression,
        )

    def succeed(self, first: Glsn, stream: StreamId, first_llsn: Llsn) -> None:
        if not self._future.done():
            self._future.set_result(Position(first, stream, first_llsn))

    def fail(self, error: LoomError, *, quietly: bool) -> None:
        fail(self._future, error, quietly=quietly)


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
    """Return `count` consecutive positions."""
    rows = zip(
        range(first.position, first.position + count),
        repeat(first.stream),
        range(first.llsn, first.llsn + count),
        strict=False,
    )
    # Like Position._make, without a Python frame per record.
    return map(tuple.__new__, repeat(Position), rows)


def as_bytes(name: str, given: Buffer) -> bytes:
    """Return bytes that the caller cannot change before they are sent."""
    if isinstance(given, bytes):
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise InvalidArgument(f"{name} must be bytes, not {type(given).__name__}; encode it first")


def fail(future: asyncio.Future[Any], error: LoomError, *, quietly: bool) -> None:
    if future.done():
        return
    future.set_exception(type(error)(*error.args))  # a copy, since each gets a traceback
    if quietly:
        future.exception()  # marks it as retrieved

"""Stages rows: stores them outside their log until a writer publishes them.

Rows are appended to the log's staging log in batches, several at a time. Staging rows twice does
no harm: those never published only take space until a trim deletes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import pairwise
from typing import Any, Final

from loomlog import batch as batches
from loomlog import limits
from loomlog.client.append.appender import Appender
from loomlog.client.append.options import AppendOptions
from loomlog.errors import AppendUnknown, InvalidArgument, NotFound, Retryable, Sealed, shown
from loomlog.references import Range, joined
from loomlog.types import Buffer, Glsn, Position, StreamId

PORTION_BYTES: Final = 512 * limits.KIB
PATIENCE_S: Final = 3.0  # then rows go to other streams
_IN_FLIGHT_MAX: Final = 8  # portions, to overlap encoding and writing
_UNEVEN: Final = 4  # a portion may be this many times too large if its rows differ in size


@dataclass(frozen=True, slots=True)
class Staged:
    """A small description of staged rows, to be sent to the process that publishes them. Add them
    up with `+`."""

    log: str
    parts: tuple[tuple[Range, ...], ...] = ()  # one per call of `stage`; their ranges in order
    min_timestamp_us: int = 0
    max_timestamp_us: int = 0
    first_position: Glsn = 0  # all rows are at this position of the staging log or later

    @property
    def rows(self) -> int:
        return sum(piece.rows for part in self.parts for piece in part)

    def __add__(self, other: Staged) -> Staged:
        if self.log != other.log:
            raise InvalidArgument(
                f"rows staged for {self.log!r} and for {other.log!r} cannot be published together"
            )
        if not self.parts or not other.parts:
            return self if self.parts else other
        return Staged(
            self.log,
            self.parts + other.parts,
            min(self.min_timestamp_us, other.min_timestamp_us),
            max(self.max_timestamp_us, other.max_timestamp_us),
            min(self.first_position, other.first_position),
        )

    def ranges(self) -> tuple[Range, ...]:
        """Return all rows in an order that is fast to read: each part keeps its order, and parts
        in the same stream are read in one pass over it."""
        straight = [part for part in self.parts if _is_straight(part)]
        others = [piece for part in self.parts if not _is_straight(part) for piece in part]
        return tuple(joined([*merge(*straight), *others]))

    def to_json(self) -> dict[str, Any]:
        return {
            "log": self.log,
            "parts": [[list(piece) for piece in part] for part in self.parts],
            "timestamps_us": [self.min_timestamp_us, self.max_timestamp_us],
            "first_position": self.first_position,
        }

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Staged:
        parts = tuple(tuple(Range(*piece) for piece in part) for part in fields["parts"])
        earliest, latest = fields["timestamps_us"]
        return Staged(fields["log"], parts, earliest, latest, fields["first_position"])


def _is_straight(part: tuple[Range, ...]) -> bool:
    """Return whether the part is in one stream in ascending order, as it is unless appends were
    retried."""
    return all(a.stream == b.stream and a.end <= b.first for a, b in pairwise(part))


class Stager:
    """Appends the rows of one caller, in order, to one stream of the staging log, or to any stream
    once that one fails."""

    def __init__(self, log: str, appender: Appender, stream: StreamId) -> None:
        """`log` is the log to publish to, `appender` that of its staging log."""
        self._log = log
        self._appender = appender
        self._stream: StreamId | None = stream  # None: any
        self._room = asyncio.Semaphore(_IN_FLIGHT_MAX)
        self._appends: list[asyncio.Task[tuple[Range, Glsn]]] = []
        self._times: list[tuple[int, int]] = []

    async def add(self, records: Any) -> None:
        """Stage a portion; wait for room, not for the outcome."""
        await self._room.acquire()
        for append in self._appends[-2 * _IN_FLIGHT_MAX :]:
            if append.done():
                append.result()  # raise its error, if any, before adding more
        self._appends.append(asyncio.get_running_loop().create_task(self._append(records)))

    async def finish(self) -> Staged:
        """Wait until all rows are stored and return their description."""
        if not self._appends:
            return Staged(self._log)
        ranges, places = zip(*await asyncio.gather(*self._appends), strict=True)
        begins, ends = zip(*self._times, strict=True)
        part = tuple(joined(ranges))
        return Staged(self._log, (part,), min(begins), max(ends), min(places))

    async def close(self) -> None:
        """Cancel pending appends."""
        for append in self._appends:
            append.cancel()
        await asyncio.gather(*self._appends, return_exceptions=True)

    async def _append(self, records: Any) -> tuple[Range, Glsn]:
        def encode(**stamps: Any) -> Buffer:
            from loomlog import columns

            encoded = columns.encode_arrow(records, **stamps)
            header = batches.read_header(encoded)
            self._times.append((header.min_timestamp_us, header.max_timestamp_us))
            return encoded

        try:
            first = await self._place(encode, records)
        finally:
            self._room.release()
        return Range(first.stream, first.llsn, records.num_rows), first.position

    async def _place(self, encode: Callable[..., Buffer], records: Any) -> Position:
        place = partial(self._appender.append_whole, encode, records.num_rows, records.nbytes)
        if self._stream is not None:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    return await place(AppendOptions(self._stream))
            except (TimeoutError, Retryable, Sealed, NotFound, AppendUnknown):
                self._stream = None  # rows stored there anyway are never referred to
        return await place()


def portions(records: Any) -> Iterator[Any]:
    """Yield the rows of one or more Arrow batches in batches of about PORTION_BYTES."""
    import pyarrow as pa

    given: Iterable[Any] = [records] if isinstance(records, pa.RecordBatch) else records
    if not isinstance(given, Iterable):
        raise InvalidArgument(
            f"records must be one or more pyarrow.RecordBatch, not {shown(given)}"
        )
    waiting: list[Any] = []
    size = 0
    for piece in (part for batch in given for part in _cut(_require_batch(batch))):
        full = size + piece.nbytes > PORTION_BYTES
        if waiting and (full or not piece.schema.equals(waiting[0].schema)):
            yield _together(waiting)
            waiting, size = [], 0
        waiting.append(piece)
        size += piece.nbytes
    if waiting:
        yield _together(waiting)


def _cut(batch: Any) -> Iterator[Any]:
    if not batch.num_rows:
        return
    rows = max(1, min(batch.num_rows, batch.num_rows * PORTION_BYTES // max(batch.nbytes, 1)))
    for at in range(0, batch.num_rows, rows):
        piece = batch.slice(at, rows)
        if piece.num_rows > 1 and piece.nbytes > _UNEVEN * PORTION_BYTES:
            middle = piece.num_rows // 2
            yield from _cut(piece.slice(0, middle))
            yield from _cut(piece.slice(middle))
        else:
            yield piece


def _together(pieces: list[Any]) -> Any:
    import pyarrow as pa

    return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)


def _require_batch(batch: Any) -> Any:
    import pyarrow as pa

    if not isinstance(batch, pa.RecordBatch):
        raise InvalidArgument(f"a pyarrow.RecordBatch is needed, not {type(batch).__name__}")
    return batch

"""The elementary measurements: appends, single reads and subscriptions, in a window of time."""

from __future__ import annotations

import asyncio
import os
import struct
from array import array
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from loomlog.limits import MIB

if TYPE_CHECKING:
    from loomlog import Log

T = TypeVar("T")

WARM_UP_SHARE: Final = 0.2  # of a window, before it: connections, caches, batch sizes settle
WARM_UP_S_MAX: Final = 1.0
FILL_BYTES: Final = MIB  # of a batch that is not measured
FILLS_IN_FLIGHT: Final = 8
BATCHES_IN_FLIGHT: Final = 16  # of append_many: enough to hide the round trip
ENTRIES_AT_ONCE: Final = 1024  # counted together while a log is read
PAUSE_S: Final = 0.002  # between two appends of the end-to-end run: no queue builds up
MIXED_BYTES: Final = 16 * MIB  # to be read while others append
SLICES: Final = 20  # of the time of a measurement, for charts
PERCENTILES: Final = {
    "p50_ms": 0.50,
    "p90_ms": 0.90,
    "p99_ms": 0.99,
    "p999_ms": 0.999,
    "max_ms": 1.0,
}
_STAMP = struct.Struct("<16sd")  # the owner of a record, and when its append was called


class Slice(NamedTuple):
    """A part of the time of a measurement."""

    records_per_s: float
    p99_ms: float | None  # of the calls that ended in it


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report. Latencies are of one call, in milliseconds; None: not measured."""

    scenario: str
    record_bytes: int
    batch: int
    records: int
    seconds: float
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    max_ms: float | None = None
    over_time: tuple[Slice, ...] = ()  # slices of equal length
    cpu_percent: dict[str, float] = field(default_factory=dict)  # of one core, by process

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def mb_per_s(self) -> float:
        return self.records_per_s * self.record_bytes / 1e6


class Appends(Protocol):
    """A log that takes appends, of loomlog or of another system."""

    def append(self, value: bytes, /) -> Awaitable[object]:
        """Append one record; it is stored when this ends."""


class Calls:
    """Calls that ended, with their latencies and records."""

    def __init__(self) -> None:
        self._ended = array("d")
        self._latencies_s = array("d")
        self._records = array("q")

    def add(self, ended: float, latency_s: float, records: int) -> None:
        self._ended.append(ended)
        self._latencies_s.append(latency_s)
        self._records.append(records)

    @property
    def records(self) -> int:
        return sum(self._records)

    def latencies(self) -> dict[str, Any]:
        """Return the percentiles, as fields of a Result."""
        ordered = sorted(self._latencies_s)
        return {name: percentile_ms(ordered, share) for name, share in PERCENTILES.items()}

    def over_time(self, begin: float, end: float) -> tuple[Slice, ...]:
        width_s = (end - begin) / SLICES
        counts = [0] * SLICES
        latencies: list[list[float]] = [[] for _ in counts]
        for ended, latency_s, records in zip(
            self._ended, self._latencies_s, self._records, strict=True
        ):
            at = min(int((ended - begin) / width_s), SLICES - 1)
            counts[at] += records
            latencies[at].append(latency_s)
        return tuple(
            Slice(round(count / width_s, 1), percentile_ms(sorted(some), 0.99))
            for count, some in zip(counts, latencies, strict=True)
        )


class TimeWindow:
    """Counts calls that end inside [begin, end); calls run before `begin` and until `end`."""

    def __init__(self, seconds: float) -> None:
        self.begin = perf_counter() + min(WARM_UP_S_MAX, seconds * WARM_UP_SHARE)
        self.end = self.begin + seconds
        self._calls = Calls()

    def add(self, started: float, ended: float, records: int) -> None:
        if self.begin <= ended < self.end:
            self._calls.add(ended, ended - started, records)

    def result(self, scenario: str, record_bytes: int, batch: int) -> Result:
        return Result(
            scenario,
            record_bytes,
            batch,
            self._calls.records,
            self.end - self.begin,
            over_time=self._calls.over_time(self.begin, self.end),
            **self._calls.latencies(),
        )


def percentile_ms(ordered_s: list[float], share: float) -> float | None:
    """Return a percentile, in ms, of sorted seconds."""
    if not ordered_s:
        return None
    return ordered_s[min(len(ordered_s) - 1, int(len(ordered_s) * share))] * 1e3


# ---- appends


async def append_concurrently(
    log: Appends, record_bytes: int, seconds: float, callers: int
) -> Result:
    """Measure many callers, each with one `append` in flight."""
    value = os.urandom(record_bytes)
    window = await _keep_calling(lambda: log.append(value), 1, seconds, callers)
    return window.result(f"append, {callers} callers", record_bytes, 1)


async def append_many(log: Log, record_bytes: int, seconds: float, batch: int) -> Result:
    """Measure `append_many`, with several calls in flight."""
    values = [os.urandom(record_bytes) for _ in range(batch)]
    window = await _keep_calling(lambda: log.append_many(values), batch, seconds, BATCHES_IN_FLIGHT)
    return window.result(f"append_many, {BATCHES_IN_FLIGHT} callers", record_bytes, batch)


async def append_one_at_a_time(log: Appends, record_bytes: int, seconds: float) -> Result:
    """Measure appends that each wait for the previous one, as a single writer does."""
    result = await append_concurrently(log, record_bytes, seconds, 1)
    return replace(result, scenario="append, one at a time")


async def fill(log: Log, records: int, record_bytes: int) -> None:
    """Append this many records in large batches, without measuring."""
    batch = FILL_BYTES // record_bytes
    values = [os.urandom(record_bytes) for _ in range(batch)]
    await at_once(
        FILLS_IN_FLIGHT,
        range(0, records, batch),
        lambda done: log.append_many(values[: records - done]),
    )


async def at_once(callers: int, items: Iterable[T], work: Callable[[T], Awaitable[object]]) -> None:
    """Do the work for all items, some at once."""
    left = iter(items)

    async def caller() -> None:
        for item in left:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())


async def _keep_calling(
    call: Callable[[], Awaitable[object]], records: int, seconds: float, callers: int
) -> TimeWindow:
    await call()  # the first one in a process loads Arrow and connects, which is not append latency
    window = TimeWindow(seconds)

    async def caller() -> None:
        while (started := perf_counter()) < window.end:
            await call()
            window.add(started, perf_counter(), records)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
    return window


# ---- reads


async def read_one_at_a_time(log: Log, record_bytes: int, seconds: float, first: int) -> Result:
    """Measure one `read` after the other, of entries from `first` on in random order. A read
    fetches the entry's whole batch, so this runs after a single writer has appended batches of one
    entry."""
    positions = await _positions(log, first)
    random = Random(0)  # noqa: S311 - the same order in every run
    window = await _keep_calling(lambda: log.read(random.choice(positions)), 1, seconds, 1)
    return window.result("read, one at a time", record_bytes, 1)


async def _positions(log: Log, first: int) -> list[int]:
    """Return positions of entries: logs have gaps, some of them huge."""
    last = await log.tail()
    async with aclosing(log.subscribe(start=first, stop=last, payloads=False)) as entries:
        return [entry.position async for entry in entries]


# ---- subscriptions


async def subscribe(log: Log, record_bytes: int, seconds: float, first: int) -> Result:
    """Read the existing entries from `first` on, as Python entries."""
    reading = _Reading(seconds)
    count, last = 0, await log.tail()
    async with aclosing(log.subscribe(start=first, stop=last)) as subscription:
        async for _ in subscription:
            count += 1
            if count == ENTRIES_AT_ONCE:
                if reading.add(count):
                    break
                count = 0
        else:
            reading.add(count)
    return reading.result("subscribe", record_bytes)


async def subscribe_arrow(log: Log, record_bytes: int, seconds: float, first: int) -> Result:
    """Read the existing entries from `first` on, as Arrow record batches."""
    reading = _Reading(seconds)
    last = await log.tail()
    async with aclosing(log.subscribe_arrow(start=first, stop=last)) as subscription:
        async for batch in subscription:
            if reading.add(batch.num_rows):
                break
    return reading.result("subscribe_arrow", record_bytes)


class _Reading:
    """Counts records until the log or the time ends."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun = self._last = perf_counter()
        self._calls = Calls()

    def add(self, records: int) -> bool:
        """Count records; return whether the time is over."""
        self._last = perf_counter()
        self._calls.add(self._last, 0.0, records)
        return self._last > self._begun + self._seconds

    def result(self, scenario: str, record_bytes: int) -> Result:
        slices = self._calls.over_time(self._begun, max(self._last, self._begun + 1e-9))
        return Result(
            scenario,
            record_bytes,
            1,
            self._calls.records,
            self._last - self._begun,
            over_time=tuple(one._replace(p99_ms=None) for one in slices),
        )


async def append_to_subscriber(log: Log, record_bytes: int, seconds: float) -> Result:
    """Measure the time from the call of `append` until a subscriber has the entry. Others may
    append to the log at the same time."""
    window = TimeWindow(seconds)
    writer = os.urandom(16)
    following = asyncio.ensure_future(_follow(log, await log.tail() + 1, writer, window))
    padding = bytes(max(0, record_bytes - _STAMP.size))
    try:
        while perf_counter() < window.end and not following.done():
            await log.append(_STAMP.pack(writer, perf_counter()) + padding)
            await asyncio.sleep(PAUSE_S)
    finally:
        following.cancel()
        await asyncio.wait({following})
    if not following.cancelled():
        following.result()
    return window.result("append to subscriber", _STAMP.size + len(padding), 1)


async def _follow(log: Log, first: int, writer: bytes, window: TimeWindow) -> None:
    async with aclosing(log.subscribe(start=first)) as subscription:
        async for entry in subscription:
            if entry.value.startswith(writer):
                _, started = _STAMP.unpack_from(entry.value)
                window.add(started, perf_counter(), 1)


# ---- everything at once


async def mixed(log: Log, record_bytes: int, seconds: float, callers: int) -> list[Result]:
    """Measure appends, single reads, a reader that catches up, and one that follows the tail, all
    at the same time."""
    first = await log.tail() + 1
    await fill(log, max(1, MIXED_BYTES // record_bytes), record_bytes)
    results = await asyncio.gather(
        append_concurrently(log, record_bytes, seconds, callers),
        read_one_at_a_time(log, record_bytes, seconds, first),
        subscribe(log, record_bytes, seconds, first),
        append_to_subscriber(log, record_bytes, seconds),
    )
    return [replace(result, scenario=f"mixed: {result.scenario}") for result in results]

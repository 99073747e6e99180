"""Meters of a server: plain numbers on the hot path, which are read when a page is requested.

This module has no labels or texts: metrics.py exports the numbers, and wire/operations.py has the
table of requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeAlias

from loomlog.batch import HEADER_BYTES as _HEADER_BYTES
from loomlog.batch import count_in
from loomlog.errors import LoomError
from loomlog.types import Buffer

BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
LOGS_MAX: Final = 100_000  # loglets and streams that are counted, since peers may name any
REQUESTS_MAX: Final = 4096  # pending ones of a connection; some requests have no answer


class Histogram:
    """Durations, counted by size. Used by one thread."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)  # the last one: longer than every bound
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        self.counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s


SYNC_TIMES: Final = Histogram()  # how long forced writes took, on all disks of this process
_sync_lock: Final = Lock()  # several workers sync at the same time


def note_sync(begun_s: float) -> None:
    """Record a finished sync that began at this time of `perf_counter`."""
    duration_s = perf_counter() - begun_s
    index = bisect_left(BOUNDS_S, duration_s)
    with _sync_lock:
        SYNC_TIMES.counts[index] += 1
        SYNC_TIMES.sum_s += duration_s


class Operation(NamedTuple):
    """A kind of request. The functions take its message."""

    name: str
    log_field: str = ""  # of an append or a read: the field that names the loglet or the stream
    log_of: Callable[[Any], int] | None = None  # returns the value of that field
    appends: bool = False
    follows: bool = False  # has many answers
    wait_of: Callable[[Any], int] | None = None  # returns how long it may wait for entries


class Operations(NamedTuple):
    """Several operations for which there is one kind of message."""

    number_of: Callable[[Any], int]
    by_number: Mapping[int, Operation]


OperationTable: TypeAlias = Mapping[str, Operation | Operations]  # by the kind of message
LogKey: TypeAlias = tuple[str, int]  # Operation.log_field, and the number there


@dataclass(slots=True)
class LogTraffic:
    """Counts what was done for one loglet, or one stream of it."""

    appends: int = 0  # requests
    append_records: int = 0
    append_bytes: int = 0
    reads: int = 0  # requests
    read_bytes: int = 0

    def add(self, other: LogTraffic) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


# A request until it is answered: its operation, its start (0: it waits for entries, so its duration
# is meaningless), the number of the log, records and bytes. A plain tuple, because there are many.
OpenRequest: TypeAlias = tuple[Operation, float, int, int, int]


class Traffic:
    """The requests to one server since it was started: the duration of each operation, and the
    traffic of each log for which a request has succeeded."""

    def __init__(self, operations: OperationTable) -> None:
        self.times: dict[str, Histogram] = {}  # by operation
        self.errors: Counter[str] = Counter()  # requests that were refused, by class of the error
        self.logs: dict[LogKey, LogTraffic] = {}
        self.operations: Final = operations

    def times_of(self, operation: str) -> Histogram:
        """Return the histogram of an operation's durations."""
        times = self.times.get(operation)
        if times is None:
            times = self.times[operation] = Histogram()
        return times

    def counts(self, log: LogKey) -> LogTraffic:
        """Return the counters of a log."""
        counts = self.logs.get(log)
        if counts is None:
            if len(self.logs) >= LOGS_MAX:
                return LogTraffic()  # not counted
            counts = self.logs[log] = LogTraffic()
        return counts


class OpenRequests:
    """The pending requests of one connection. Their outcomes are counted in the traffic of the
    server."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._operations = traffic.operations
        self._times, self._logs = traffic.times, traffic.logs
        self._requests: dict[int, OpenRequest] = {}  # by id

    def __len__(self) -> int:
        return len(self._requests)

    def begin(self, request_id: int, kind: str, message: Any, payload: memoryview) -> None:
        """Track a request until it is answered, unless its kind is unknown."""
        operation = self._operations.get(kind)
        if operation is None or request_id <= 0 or len(self._requests) >= REQUESTS_MAX:
            return
        if isinstance(operation, Operations):
            operation = operation.by_number.get(operation.number_of(message))
            if operation is None:
                return
        _, _, log_of, appends, follows, wait_of = operation
        log, records, size = 0, 0, len(payload)
        if log_of is not None:
            log = log_of(message)
            if appends and size >= _HEADER_BYTES:
                records = count_in(payload)
        waits = follows or (wait_of is not None and wait_of(message))
        begun_s = 0.0 if waits else perf_counter()
        self._requests[request_id] = operation, begun_s, log, records, size

    def answer(self, request_id: int, payload: Sequence[Buffer]) -> None:
        """Record an answer, which is the last one unless the request has many."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        (name, log_field, _, appends, follows, _), begun_s, log, records, appended = request
        if follows:
            self._requests[request_id] = request
        size = sum(map(len, payload)) if payload else 0
        if begun_s:
            duration_s = perf_counter() - begun_s
            times = self._times.get(name) or self._traffic.times_of(name)
            times.counts[bisect_left(BOUNDS_S, duration_s)] += 1  # `observe`, without a frame
            times.sum_s += duration_s
        if log_field and (records or size):
            key = log_field, log
            counts = self._logs.get(key) or self._traffic.counts(key)
            if appends:
                counts.appends += 1
                counts.append_records += records
                counts.append_bytes += appended
            else:
                counts.reads += 1
                counts.read_bytes += size

    def refuse(self, request_id: int, error: LoomError) -> None:
        """Record that a request was answered with an error."""
        self._traffic.errors[type(error).__name__] += 1
        self.forget(request_id)

    def forget(self, request_id: int) -> None:
        """Forget a request that gets no more answers."""
        self._requests.pop(request_id, None)

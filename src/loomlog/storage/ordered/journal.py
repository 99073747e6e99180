"""Group commit: all replicas on a volume write and sync together, in one worker job at a time.

While a job runs, writes queue up; the next job takes all of them: one step writes (adjacent buffers
of a file joined), then each file is synced once, then the callers are answered in order.

Invariants:
- In one channel (one replica) everything happens in the requested order.
- With sync=always a write is answered only after its sync. A lazy write is written with the next
  job, and synced with other lazy writes at most `commit_sync_delay_s` later.
- A channel that had an error has failed for good: nothing in it is ever acknowledged again, because
  neither a failed fsync nor a later successful one says what reached the disk.
- When there is nothing to do, there is no job and no timer.

Steps run off the loop. They use only their job and `ChannelFile.file`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final, Protocol

from loomlog import tracing
from loomlog.config import StorageSettings
from loomlog.errors import Unavailable
from loomlog.limits import KIB
from loomlog.storage.files import File, Finished, Step, Worker
from loomlog.types import Buffer, SyncMode

SHORT_BYTES_MAX: Final = 256 * KIB  # jobs that write at most this much may run on the loop
_NEW_FILE_PARTS: Final = 256  # a new file is this many times smaller than a full one


class Channel:
    """The writes of one replica. Once `error` is set, the channel has failed for good."""

    __slots__ = ("error", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None


class ChannelFile:
    """A file that a channel writes to. Writes may be requested before a `call` has opened it: the
    journal uses `file` only when it writes."""

    def __init__(self, path: str, channel: Channel) -> None:
        self.path = path
        self.channel = channel
        self.opened: File | None = None
        self.allocated = 0  # its size, which may exceed that of its data

    @property
    def file(self) -> File:
        if self.opened is None:
            raise OSError(f"{self.path} is not there yet")
        return self.opened

    def try_grow(self, size: int) -> None:
        try:
            self.file.allocate(size)
        except OSError:
            pass  # if the disk is still full then, the write fails


def allocation(used: int, full: int) -> int:
    """Return the size to allocate for a file with `used` bytes that may grow to `full` bytes. It is
    small at first, then doubles: allocated space makes syncs cheaper, but a cluster may have
    thousands of logs with few appends."""
    size = max(full // _NEW_FILE_PARTS, 1)
    while size < 2 * used:
        size *= 2
    return max(min(size, full), used)


class Timer(Protocol):
    """A scheduled call of an event loop."""

    def cancel(self) -> None: ...


class CallLater(Protocol):
    """An event loop's call_later."""

    def __call__(self, delay: float, callback: Callable[[], None], /) -> Timer: ...


@dataclass(slots=True)
class _Write:
    channel: Channel  # of the target
    target: ChannelFile
    offset: int
    buffers: Sequence[Buffer]
    done: Finished
    lazy: bool


@dataclass(slots=True)
class _Call:
    channel: Channel
    steps: Sequence[Step]
    done: Finished


_Request = _Write | _Call


def _ignore(error: BaseException | None) -> None:
    """Do nothing: the next caller of the channel gets its error."""


@dataclass(slots=True, eq=False)
class _Job:
    """One job for the worker."""

    requests: list[_Request]
    sync: dict[ChannelFile, None]
    everything: bool = False  # syncs all dirty files, after which waiting lazy writes are answered
    errors: dict[Channel, BaseException] = field(default_factory=dict)
    size: float = inf  # bytes to write; infinite for calls, which may take any time

    @property
    def is_short(self) -> bool:
        """True if it writes little and syncs at most one file."""
        return self.size <= SHORT_BYTES_MAX and len(self.sync) <= 1 and not self.everything

    def steps(self) -> list[Step]:
        first = self.requests[0] if self.requests else None
        if isinstance(first, _Call):
            return (
                []
                if first.channel.error
                else [partial(self._try, first.channel, s) for s in first.steps]
            )
        runs, self.size = self._runs()
        steps: list[Step] = [partial(self._write, runs)] if runs else []
        steps += [
            partial(self._try, target.channel, partial(_sync, target)) for target in self.sync
        ]
        return steps

    def targets(self) -> Iterable[ChannelFile]:
        return (
            request.target
            for request in self.requests
            if isinstance(request, _Write) and not request.channel.error
        )

    def _runs(self) -> tuple[dict[ChannelFile, list[tuple[int, list[Buffer]]]], int]:
        """Return the writes of each file, with adjacent ones joined, and their total size."""
        runs: dict[ChannelFile, list[tuple[int, list[Buffer]]]] = {}
        ends: dict[ChannelFile, int] = {}
        total = 0
        for request in self.requests:
            if isinstance(request, _Call) or request.channel.error:
                continue
            target, offset, buffers = request.target, request.offset, request.buffers
            if ends.get(target) == offset:
                runs[target][-1][1].extend(buffers)
            else:
                runs.setdefault(target, []).append((offset, list(buffers)))
            size = sum(map(len, buffers))
            ends[target] = offset + size
            total += size
        return runs, total

    def _write(self, runs: dict[ChannelFile, list[tuple[int, list[Buffer]]]]) -> None:
        for target, mine in runs.items():
            for offset, buffers in mine:
                self._try(target.channel, partial(_write, target, buffers, offset))

    def _try(self, channel: Channel, step: Step) -> None:
        """Run a step of a channel. A failure must not stop the other channels in the job."""
        if channel in self.errors:
            return
        try:
            step()
        except Exception as error:
            self.errors[channel] = error


def _write(target: ChannelFile, buffers: list[Buffer], offset: int) -> None:
    target.file.write(buffers, offset)


def _sync(target: ChannelFile) -> None:
    target.file.sync()


class _Alarm:
    """A timer that can be set repeatedly and rings once."""

    def __init__(self, call_later: CallLater, delay_s: float, ring: Callable[[], None]) -> None:
        self._call_later = call_later
        self._delay_s = delay_s
        self._ring = ring
        self._timer: Timer | None = None

    def set(self) -> None:
        if self._timer is None:
            self._timer = self._call_later(self._delay_s, self._rings)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rings(self) -> None:
        self._timer = None
        self._ring()


class Journal:
    """Orders the writes to one volume. Lives on the loop; blocking work runs in the worker."""

    def __init__(
        self,
        worker: Worker,
        call_later: CallLater,
        settings: StorageSettings,
        failed: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """`failed` is called with each error that makes a channel fail."""
        self._worker = worker
        self._call_later = call_later
        self._failed = failed
        self._always = settings.sync is SyncMode.ALWAYS
        self._interval = settings.sync is SyncMode.INTERVAL
        self._queue: deque[_Request] = deque()
        self._eager = 0  # queued requests that start a job immediately
        self._lazy = 0  # lazy writes that are not answered yet
        self._under_way: _Job | None = None
        self._dirty: dict[ChannelFile, None] = {}  # written, not synced
        self._waiting: list[_Write] = []  # lazy writes that are written but not synced
        self._flush_due = False
        self._sync_due = False
        self._flush_alarm = _Alarm(call_later, settings.commit_sync_delay_s, self._flush)
        self._sync_alarm = _Alarm(call_later, settings.sync_interval_s, self._sync)
        self._closed = False
        self._tracer = tracing.active()
        self._traces: list[str] = []  # of writes since the last job; its sync is part of the first

    def write(
        self,
        target: ChannelFile,
        offset: int,
        buffers: Sequence[Buffer],
        done: Finished = _ignore,
    ) -> None:
        """Write buffers. `done` is called when they are stored according to the sync mode; they
        must not change until then."""
        channel = target.channel
        if self._accepts(channel, done):
            if self._tracer is not None:
                size = sum(map(len, buffers))
                done = self._tracer.ending("store", {"bytes": size}, done)
                self._traces.append(self._tracer.current())
            self._queue.append(_Write(channel, target, offset, buffers, done, False))
            self._eager += 1
            self._start()

    def write_lazy(
        self, target: ChannelFile, offset: int, buffers: Sequence[Buffer], done: Finished
    ) -> None:
        """Write buffers with the next job. `done` is called a little later, after a common sync."""
        channel = target.channel
        if self._accepts(channel, done):
            self._queue.append(_Write(channel, target, offset, buffers, done, True))
            self._lazy += 1
            self._flush_alarm.set()

    def call(self, channel: Channel, steps: Sequence[Step], done: Finished = _ignore) -> None:
        """Run other blocking work, in order with the writes of its channel."""
        if self._accepts(channel, done):
            self._queue.append(_Call(channel, steps, done))
            self._eager += 1
            self._start()

    def grow(self, target: ChannelFile, used: int, full: int) -> None:
        """Allocate space ahead of the data."""
        if target.allocated >= 2 * used or target.allocated >= full:
            return
        size = allocation(used, full)
        if size > target.allocated:
            target.allocated = size
            self.call(target.channel, [partial(target.try_grow, size)])

    def forget(self, target: ChannelFile) -> None:
        """Called when a file was removed and need not be synced."""
        self._dirty.pop(target, None)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Start the remaining jobs, and sync everything in any mode. The caller then closes the
        worker, which waits for them."""
        if self._closed:
            return
        self._closed = True
        self._flush_alarm.cancel()
        self._sync_alarm.cancel()
        if self._under_way is not None:
            self._dirty.update(dict.fromkeys(self._under_way.targets()))
        while self._queue:
            self._sync_due = True
            self._hand_in(self._take())
        if self._dirty:
            self._sync_due = True
            self._hand_in(self._take())

    def _accepts(self, channel: Channel, done: Finished) -> bool:
        error = channel.error
        if self._closed:
            error = Unavailable(f"{channel.name} is shutting down; ask another replica")
        if error is None:
            return True
        self._call_later(0, partial(done, error))
        return False

    def _flush(self) -> None:
        self._flush_due = True
        self._sync_due = self._sync_due or self._always
        self._start()

    def _sync(self) -> None:
        self._sync_due = True
        self._start()

    def _start(self) -> None:
        wanted = self._eager or self._flush_due or self._sync_due
        if wanted and self._under_way is None and not self._closed:
            self._under_way = job = self._take()
            self._hand_in(job)

    def _hand_in(self, job: _Job) -> None:
        finished: Finished = partial(self._finished, job)
        if self._tracer is not None:
            traces, self._traces = self._traces, []
            if job.sync:
                counts = {"files": len(job.sync), "writes": len(job.requests)}
                finished = self._tracer.ending("sync", counts, finished, next(iter(traces), None))
        steps = job.steps()
        run = self._worker.run_short if job.is_short else self._worker.run
        run(steps, finished)

    def _take(self) -> _Job:
        """Return the next job: one call, or all writes before the next call."""
        queue = self._queue
        if queue and isinstance(queue[0], _Call):
            self._eager -= 1
            return _Job([queue.popleft()], {})
        writes: list[_Request] = []
        sync: dict[ChannelFile, None] = {}
        while queue and isinstance(write := queue[0], _Write):
            queue.popleft()
            writes.append(write)
            if not write.lazy:
                self._eager -= 1
                if self._always and not write.channel.error:
                    sync[write.target] = None
        self._flush_due = False
        if not self._sync_due:
            return _Job(writes, sync)
        self._sync_due = False
        job = _Job(writes, dict.fromkeys(t for t in self._dirty if not t.channel.error), True)
        job.sync.update(dict.fromkeys(job.targets()))
        self._dirty = {}
        return job

    def _finished(self, job: _Job, error: BaseException | None) -> None:
        if error is not None:
            for channel in {r.channel for r in job.requests} | {t.channel for t in job.sync}:
                job.errors.setdefault(channel, error)
        if job.errors:
            self._fail_channels(job.errors)
        if job is self._under_way:
            self._under_way = None
        answers = self._settle(job)
        self._start()
        _answer(answers)

    def _fail_channels(self, errors: dict[Channel, BaseException]) -> None:
        for channel, reason in errors.items():
            if channel.error is None:
                channel.error = reason
                self._failed(reason)

    def _settle(self, job: _Job) -> list[_Request]:
        """Update the state after a job. Return the requests that can be answered now, in order."""
        if job.everything:
            answers: list[_Request] = [*self._waiting, *job.requests]
            self._waiting = []
        else:
            answers = []
            for request in job.requests:
                if isinstance(request, _Write):
                    if request.target not in job.sync and not request.channel.error:
                        self._dirty[request.target] = None
                    if request.lazy and self._always:
                        self._waiting.append(request)
                        continue
                answers.append(request)
        if self._lazy:
            self._lazy -= sum([isinstance(each, _Write) and each.lazy for each in answers])
        if not self._closed:
            self._set_alarms()
        return answers

    def _set_alarms(self) -> None:
        if self._lazy and not self._flush_due:
            self._flush_alarm.set()
        if self._interval and self._dirty and not self._sync_due:
            self._sync_alarm.set()


def _answer(requests: list[_Request]) -> None:
    """Answer every caller, even if the callback of one of them raises."""
    broken: Exception | None = None
    for request in requests:
        try:
            request.done(request.channel.error)
        except Exception as error:
            broken = broken or error
    if broken is not None:
        raise broken

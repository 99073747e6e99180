"""The streams of a log as targets for appends: kept up to date, and chosen for each batch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from loomlog.client.servers.backoff import BACKOFF
from loomlog.client.servers.metadata import CachedLog
from loomlog.errors import LoomError, Retryable
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb

if TYPE_CHECKING:
    from loomlog.client.append.batches import Attempt

AVOID_S: Final = 1.0  # a stream that failed is avoided this long, or until its metadata changes
SLOW_S: Final = 0.2  # far longer than a commit: a stream silent for this long may be dead
SILENT_S: Final = 1.0  # until a silent stream is investigated


class Stream:
    """A log stream as a target for appends."""

    __slots__ = (
        "address",
        "avoid_until_s",
        "doubtful",
        "epoch",
        "id",
        "in_flight",
        "protocol",
        "replicas",
        "running",
        "width",
    )

    def __init__(self, stream_id: StreamId) -> None:
        self.id = stream_id
        self.address = ""
        self.replicas: list[str] = []
        self.protocol = ""
        self.width = 1  # how many batches can be in progress on different replicas at once
        self.epoch = -1
        self.running = False
        self.in_flight: dict[Attempt, float] = {}  # attempts with start times, oldest first
        self.doubtful = 0  # the number of those whose answers were lost
        self.avoid_until_s = float("-inf")

    def update(self, metadata: pb.LogStream) -> None:
        self.replicas = [replica.address for replica in metadata.replicas]
        address = self.replicas[0] if self.replicas else ""
        if (address, metadata.seal_epoch) != (self.address, self.epoch):
            self.avoid_until_s = float("-inf")
        self.address, self.epoch = address, metadata.seal_epoch
        self.protocol = metadata.protocol
        self.width = sum(len(chain.replicas) for chain in metadata.projection.chains) or 1
        self.running = metadata.state == pb.RUNNING and bool(address)

    def occupy(self, attempt: Attempt, now_s: float) -> None:
        """Add an attempt, or restart the clock of one in flight."""
        self.in_flight[attempt] = now_s

    def doubt(self, attempt: Attempt) -> None:
        """Take no new attempts until the outcome of this one is known."""
        if not attempt.doubtful:
            attempt.doubtful = True
            self.doubtful += 1

    def vacate(self, attempt: Attempt) -> None:
        del self.in_flight[attempt]
        self.doubtful -= attempt.doubtful

    def waited_s(self, now_s: float) -> float:
        """Return how long the oldest attempt has been in flight."""
        for since_s in self.in_flight.values():
            return now_s - since_s
        return 0.0

    def silent(self, now_s: float) -> bool:
        """Return whether the oldest attempt has had no answer for long."""
        return self.waited_s(now_s) >= SILENT_S

    def good(self, now_s: float) -> bool:
        """Return whether the stream is neither slow, nor doubtful, nor has failed recently."""
        return self.avoid_until_s <= now_s and not self.doubtful and self.waited_s(now_s) <= SLOW_S


class Targets:
    """All known streams of a log, and the running ones among them."""

    def __init__(self, rng: random.Random, in_flight_max: int) -> None:
        self._rng = rng
        self._in_flight_max = in_flight_max
        self._streams: dict[StreamId, Stream] = {}
        self._running: list[Stream] = []
        self._conditions: dict[StreamId, str] = {}  # of the streams that should run
        self._refusals: dict[StreamId, str] = {}  # why streams permanently refuse appends

    @property
    def known(self) -> bool:
        """Whether the metadata repository has named any stream."""
        return bool(self._streams)

    def running(self, wanted: StreamId | None) -> int:
        """Return how many streams can take batches for `wanted` (None: any)."""
        if wanted is None:
            return len(self._running)
        named = self._streams.get(wanted)
        return int(named is not None and named.running)

    def hindrance(self, wanted: StreamId | None) -> str:
        """Return the conditions of the streams that should take batches for `wanted`."""
        found = (said for stream, said in self._conditions.items() if wanted in (None, stream))
        return "; ".join(dict.fromkeys(filter(None, found)))

    def refusal(self, wanted: StreamId | None) -> str:
        """Return why no stream will take batches for `wanted` (None: any); "" if one may, e.g.
        after a repair."""
        if wanted is not None:
            return self._refusals.get(wanted, "")
        reasons = [self._refusals.get(stream, "") for stream in self._conditions]
        return reasons[0] if reasons and all(reasons) else ""

    def width(self, wanted: StreamId | None) -> int:
        """Return how many batches for `wanted` can be in progress at once."""
        if wanted is None:
            return sum(stream.width for stream in self._running) or 1
        named = self._streams.get(wanted)
        return 1 if named is None else named.width

    def missing(self, wanted: StreamId | None) -> bool:
        """Return whether `wanted` names a stream that is not known."""
        return wanted is not None and wanted not in self._streams

    def streams(self) -> list[Stream]:
        return list(self._streams.values())

    def any_good(self, now_s: float) -> bool:
        return any(stream.good(now_s) for stream in self._running)

    def pick(self, wanted: StreamId | None, now_s: float) -> Stream | None:
        """Return a random running stream with room; a slow or failed one only if needed."""
        if wanted is not None:
            named = self._streams.get(wanted)
            return named if named is not None and named.running and self._room(named) else None
        running = self._running
        if not running:
            return None
        chosen = running[0] if len(running) == 1 else self._rng.choice(running)
        if chosen.good(now_s) and self._room(chosen):
            return chosen
        good = [stream for stream in running if stream.good(now_s)]
        with_room = [stream for stream in good or running if self._room(stream)]
        return self._rng.choice(with_room) if with_room else None

    def adopt(self, log: pb.Log) -> None:
        """Adopt newer metadata, keeping the attempts in flight."""
        known, self._streams = self._streams, {}
        for metadata in log.streams:
            stream = known.get(metadata.log_stream_id) or Stream(metadata.log_stream_id)
            stream.update(metadata)
            self._streams[stream.id] = stream
        self._running = [stream for stream in self._streams.values() if stream.running]
        active = log.segments[-1].loglet_id
        ended = {segment.loglet_id for segment in log.segments if segment.HasField("end")}
        self._refusals = {s.log_stream_id: r for s in log.streams if (r := _refusal(s, ended))}
        self._conditions = {
            s.log_stream_id: s.condition for s in log.streams if s.loglet_id == active
        }

    def clear(self) -> None:
        self._streams, self._running = {}, []
        self._conditions, self._refusals = {}, {}

    def _room(self, stream: Stream) -> bool:
        """Return whether a stream has room. A stream remembers only as many batches of a producer
        as may be in flight, so it takes none while the outcome of one is unknown."""
        return not stream.doubtful and len(stream.in_flight) < self._in_flight_max


class Refresher:
    """Fetches the streams of one log when the known ones seem outdated."""

    def __init__(
        self,
        log: CachedLog,
        targets: Targets,
        learned: Callable[[], bool],
        failed: Callable[[LoomError], None],
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`learned` returns whether a batch still waits for a running stream; `failed` is called
        when the log does not exist or cannot be used."""
        self._log = log
        self._targets = targets
        self._learned = learned
        self._failed = failed
        self._rng = rng
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    def soon(self, *, at_once: bool) -> None:
        """Fetch the streams; with `at_once`, cut a back-off short."""
        if self._task is None:
            self._task = self._loop.create_task(self._refresh())
        elif at_once:
            self._wanted.set()

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks to end when the client is closed."""
        return [] if self._task is None else [self._task]

    async def _refresh(self) -> None:
        """Fetch the streams, repeatedly while a batch waits for a running one."""
        attempts = 0
        try:
            while True:
                self._wanted.clear()
                try:
                    self._targets.adopt(await self._log.refresh())
                except Retryable:
                    pass  # batches have deadlines
                except LoomError as error:
                    # When this has ended: what is queued meanwhile needs a refresh of its own.
                    self._loop.call_soon(self._failed, error)
                    return
                if not self._learned():
                    return
                await self._doze(BACKOFF.delay_s(attempts, self._rng))
                attempts += 1
        finally:
            self._task = None

    async def _doze(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        except TimeoutError:
            pass


def _refusal(stream: pb.LogStream, ended: set[int]) -> str:
    number = stream.log_stream_id
    if stream.held:
        return (
            f"an operator sealed stream {number}: unseal it with `loom stream unseal {number}`, or "
            "append to another"
        )
    if stream.loglet_id in ended:
        return f"the segment of stream {number} has ended: append without naming a stream"
    return ""

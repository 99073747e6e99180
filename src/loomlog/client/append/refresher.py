"""Fetches the streams of one log for its appends, and keeps why streams take no batches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from loomlog.client.append.options import Wanted, allows, named
from loomlog.client.context import BACKOFF
from loomlog.client.servers import CachedLog
from loomlog.errors import LoomError, Retryable, RolledBack, Sealed
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb

if TYPE_CHECKING:
    from loomlog.client.append.delivery import Targets


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
        since_s = self._loop.time()
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
                await self._doze(BACKOFF.late_s(self._loop.time() - since_s, self._rng))
        finally:
            self._task = None

    async def _doze(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        except TimeoutError:
            pass


class Conditions:
    """The reasons why streams take no batches, as the metadata repository gives them."""

    def __init__(self, log: pb.Log | None = None) -> None:
        self._conditions: dict[StreamId, str] = {}  # of the streams that should run
        self._refusals: dict[StreamId, LoomError] = {}  # why streams permanently refuse appends
        if log is not None:
            active = log.segments[-1].loglet_id
            ended = {segment.loglet_id for segment in log.segments if segment.HasField("end")}
            for stream in log.streams:
                if stream.loglet_id == active and not stream.removing:
                    self._conditions[stream.log_stream_id] = stream.condition
                if refusal := _refusal(stream, ended):
                    self._refusals[stream.log_stream_id] = refusal

    def hindrance(self, wanted: Wanted) -> str:
        """Return the conditions of the streams that should take batches for `wanted`."""
        found = (said for stream, said in self._conditions.items() if allows(wanted, stream))
        return "; ".join(dict.fromkeys(filter(None, found)))

    def refusal(self, wanted: Wanted) -> LoomError | None:
        """Return why no stream will take batches for `wanted` (None: any); None if one may, e.g.
        after a repair."""
        streams = self._conditions if wanted is None else named(wanted)
        if all(stream in self._refusals for stream in streams):
            return next((self._refusals[stream] for stream in streams), None)
        return None


def _refusal(stream: pb.LogStream, ended: set[int]) -> LoomError | None:
    number = stream.log_stream_id
    if stream.rolled_back:
        return RolledBack(stream.condition)
    if stream.held:
        return Sealed(
            f"an operator sealed stream {number}: unseal it with `loom stream unseal {number}`, or "
            "append to another"
        )
    if stream.removing:
        return Sealed(f"stream {number} is being removed: append without naming a stream")
    if stream.loglet_id in ended:
        return Sealed(f"the segment of stream {number} has ended: append without naming a stream")
    return None

"""Fetches the streams of one log for its appends, and interprets why streams take no batches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from loomlog.client.append.options import Wanted, allows, named
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import BACKOFF
from loomlog.errors import LoomError, Retryable, RolledBack, Sealed
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb

if TYPE_CHECKING:
    from loomlog.client.append.delivery import Targets


class Refresher:
    """Fetches the streams of one log in the background when the cached ones seem outdated."""

    def __init__(
        self,
        log: CachedLog,
        targets: Targets,
        learned: Callable[[], bool],
        failed: Callable[[LoomError], None],
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`learned` is called after every fetch, and returns whether a batch still waits for a
        running stream; `failed` is called if the log does not exist or cannot be used."""
        self._log = log
        self._targets = targets
        self._learned = learned
        self._failed = failed
        self._rng = rng
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def soon(self, *, at_once: bool) -> None:
        """Fetch the streams. If that is being repeated, `at_once` cuts the current pause short."""
        if self._task is None:
            self._task = self._loop.create_task(self._refresh())
        elif at_once:
            self._hurry.set()

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks to cancel when the client is closed."""
        return [] if self._task is None else [self._task]

    async def _refresh(self) -> None:
        """Fetch the streams, again and again while a batch waits for a running one."""
        since_s = self._loop.time()
        try:
            while True:
                self._hurry.clear()
                try:
                    self._targets.adopt(await self._log.refresh())
                except Retryable as error:  # batches have deadlines
                    self._targets.conditions.trouble = str(error)
                except LoomError as error:
                    # Call this after this task: batches queued meanwhile need another refresh.
                    self._loop.call_soon(self._failed, error)
                    return
                if not self._learned():
                    return
                await self._pause(BACKOFF.late_s(self._loop.time() - since_s, self._rng))
        finally:
            self._task = None

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass


class Conditions:
    """The reasons why streams take no batches, according to the metadata repository."""

    def __init__(self, log: pb.Log | None = None) -> None:
        self._conditions: dict[StreamId, str] = {}  # of the streams that should be running
        self._refusals: dict[StreamId, LoomError] = {}  # of streams that refuse appends for good
        self.trouble = ""  # why newer conditions could not be fetched
        if log is not None:
            active = log.segments[-1].loglet_id
            ended = {segment.loglet_id for segment in log.segments if segment.HasField("end")}
            for stream in log.streams:
                if stream.loglet_id == active and not stream.removing:
                    self._conditions[stream.log_stream_id] = stream.condition
                if refusal := _refusal(stream, ended):
                    self._refusals[stream.log_stream_id] = refusal

    def hindrance(self, wanted: Wanted) -> str:
        """Return, for a message, the conditions of the wanted streams."""
        texts = (text for stream, text in self._conditions.items() if allows(wanted, stream))
        return "; ".join(dict.fromkeys(filter(None, (*texts, self.trouble))))

    def refusal(self, wanted: Wanted) -> LoomError | None:
        """Return why none of the wanted streams will ever take a batch, or None if one may, e.g.
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

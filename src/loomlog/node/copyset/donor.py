"""Restores copies of shards that are lost or drained, from the copies in a shard of this node.

core/copyset/rebuild/ decides; this runs its scans over all logs of the shard, in the background and
at a limited rate, and starts again whenever other shards are rebuilt. With a limited rate, it sends
small portions of one log at a time and pauses three times as long as each took, so that appends
hardly wait, and a busy cluster does less of this work. Records that could not be restored are left
to another scan, after a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.messages import GetState, NodeAnswer, Restore
from loomlog.core.copyset.nodeset import node_of
from loomlog.core.copyset.rebuild import events
from loomlog.core.copyset.rebuild.donor import (
    DonorAnswer,
    DonorAsk,
    RebuildOrder,
    Scan,
    fill,
    scan,
)
from loomlog.core.copyset.rebuild.events import RebuildState, Shard, Status
from loomlog.core.requests import Lost, drive
from loomlog.errors import LoomError, NotFound
from loomlog.limits import KIB
from loomlog.node.copyset.asker import Asker
from loomlog.node.copyset.copies import Copies, LogCatchUp
from loomlog.node.copyset.epoch_store import EpochStoreClient, Known
from loomlog.node.workers import Throttle, finish
from loomlog.types import LogId, ShardId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

ANSWER_S: Final = 10.0  # restored copies have to reach a disk that is in use
PAUSE: Final = Backoff(0.1, 30.0)  # before another scan for the remaining records
LOGS_AT_ONCE: Final = 4
PORTION_BYTES: Final = 128 * KIB  # restored at once, if the rate is limited
PORTION_ASKS: Final = 16  # and this many requests, however small
SCANS: Final = 2


@dataclass
class _Progress:
    """The work of one version."""

    version: int = 0
    scans: int = 0  # finished
    left: int = 0  # by the last scan, if it has ended
    records: Counter[ShardId] = field(default_factory=Counter)
    size_bytes: Counter[ShardId] = field(default_factory=Counter)
    bytes_done: int = 0  # of the logs that the scan under way has passed
    bytes_all: int = 0


class Donor:
    """The donor of a shard."""

    def __init__(
        self,
        me: ShardId,
        copies: Copies,
        catch_up: LogCatchUp,
        asker: Asker,
        epochs: EpochStoreClient,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.me = me
        self._copies = copies
        self._catch_up = catch_up
        self._asker = asker
        self._epochs = epochs
        self._spawn = spawn
        self._state = RebuildState()
        self._all_scanned = 0  # scans that all donors have finished
        self._held: frozenset[LogId] = frozenset()  # left out
        self._progress = _Progress()
        self._throttle = Throttle(0)
        self._one_by_one = asyncio.Lock()  # portions, if the rate is limited
        self._woken = asyncio.Event()
        self._is_running = False
        self._filling: dict[LogId, asyncio.Task[int]] = {}

    def learn(self, news: pb.CopysetRebuild, *, registered: bool = False) -> None:
        """Update which shards are rebuilt. Only the answer to a registration may be older than the
        previous state, because the metadata may have been restored."""
        if news.events < self._state.events and not registered:
            return
        shards = {each.shard: Shard(Status(each.status)) for each in news.shards}
        self._state = RebuildState(news.events, news.version, shards)
        self._all_scanned = news.scans
        self._held = frozenset(news.held)
        self._throttle.bytes_per_s = news.bytes_per_s
        self._copies.volume.rebuilding(news.version, registered=registered)
        if news.version != self._progress.version:
            self._progress = _Progress(news.version)
        self._woken.set()
        if self._is_needed and not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    def report(self) -> pb.DonorReport | None:
        """Return the progress; None if nothing is rebuilt."""
        if not events.rebuilt(self._state):
            return None
        done = self._progress
        return pb.DonorReport(
            version=done.version,
            scans=done.scans,
            part_done=done.bytes_done / done.bytes_all if done.bytes_all else 0.0,
            shards=[
                pb.DonorShard(shard=shard, records=count, size_bytes=done.size_bytes[shard])
                for shard, count in done.records.items()
            ],
            left=done.left,
            donor=self.me,
        )

    @property
    def _is_needed(self) -> bool:
        state = self._state
        return bool(events.rebuilt(state)) and bool(events.donors(state, [self.me]))

    async def _run(self) -> None:
        failures = 0
        try:
            while self._is_needed:
                self._woken.clear()
                progress = self._progress
                if progress.scans == SCANS or progress.scans > self._all_scanned:
                    await self._woken.wait()
                elif await self._scan_all(progress):
                    progress.scans, failures = progress.scans + 1, 0
                elif progress is not self._progress:
                    failures = 0  # by now, other shards are rebuilt
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(PAUSE.delay_s(failures)):
                            await self._woken.wait()
                    failures += 1
        finally:
            self._is_running = False

    async def _scan_all(self, progress: _Progress) -> bool:
        """Scan all logs once; return whether everything is restored."""
        volume, state = self._copies.volume, self._state
        store = volume.store
        if store is None:
            return not volume.is_closed
        # Commits that were decided before this node knew the version must be visible.
        await finish(store.flushed)
        logs = store.logs()
        progress.bytes_all, progress.bytes_done = sum(map(store.stored_bytes, logs)), 0
        progress.left = 0
        at_once = asyncio.Semaphore(LOGS_AT_ONCE)

        async def scan_one(log: LogId) -> int:
            async with at_once:
                if progress is not self._progress:
                    return 0
                left = await self._scan(log, state, progress)
                progress.bytes_done += store.stored_bytes(log)
                return left

        progress.left = sum(await asyncio.gather(*map(scan_one, logs)))
        return not progress.left and progress is self._progress

    async def _scan(self, log: LogId, state: RebuildState, progress: _Progress) -> int:
        """Scan one log; return the number of records that are left."""
        if log in self._held:
            return 0
        try:
            known = await self._epochs.request(GetState(log))
        except NotFound:
            return 0  # it was deleted
        except LoomError as error:
            logger.debug("loglet %d is not rebuilt: %s", log, error)
            return 1
        if not known.rebuilt:
            return 0
        order, result = self._order(known, state), Scan(progress.records, progress.size_bytes)
        await drive(scan(order, known.state, progress.scans + 1, result), self._answer)
        return result.left + bool(result.superseded)

    def _order(self, known: Known, state: RebuildState) -> RebuildOrder:
        self._catch_up.recovered(known.log, known.state.last_clean)
        there = [n for n, node in known.nodes.items() if node.alive and not node.draining]
        shards = [shard for shard in known.state.all_shards if node_of(shard) in there]
        return RebuildOrder(
            known.log,
            state.version,
            self.me,
            known.rebuilt,
            frozenset(events.absent(state)),
            frozenset(events.targets(state, shards)),
        )

    # ---- records on short copysets

    async def fill(self, log: LogId) -> int:
        """Complete the stored records of a log that are on short copysets; return the number that
        is left. Concurrent calls share the work."""
        if log not in self._filling:
            self._filling[log] = asyncio.create_task(self._fill(log))
        filling = self._filling[log]
        left = await asyncio.shield(filling)
        self._filling.pop(log, None)
        return left

    async def _fill(self, log: LogId) -> int:
        store = self._copies.volume.store
        try:
            known = await self._epochs.request(GetState(log))
        except LoomError as error:
            logger.debug("loglet %d is not completed: %s", log, error)
            return 1
        if store is None:
            return 1
        await finish(store.flushed)
        order, result = self._order(known, self._state), Scan()
        await drive(fill(order, known.state, result), self._answer)
        return result.left + bool(result.superseded)

    async def _answer(self, asks: Sequence[DonorAsk]) -> Sequence[DonorAnswer]:
        if not self._throttle.bytes_per_s:
            return await self._ask(asks)
        loop = asyncio.get_running_loop()
        answers: list[DonorAnswer] = []
        for portion in _portions(asks):
            async with self._one_by_one:
                await self._throttle.take(sum(map(_size, portion)))
                began_s = loop.time()
                answers += await self._ask(portion)
                self._throttle.rest(loop.time() - began_s)
        return answers

    async def _ask(self, asks: Sequence[DonorAsk]) -> Sequence[DonorAnswer]:
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[DonorAnswer]] = [loop.create_future() for _ in asks]
        for ask, answer in zip(asks, answers, strict=True):
            self._asker.ask(ask.target, ask.request, partial(_came, answer))
        await asyncio.wait(answers, timeout=ANSWER_S)
        return [answer.result() if answer.done() else Lost() for answer in answers]


def _portions(asks: Sequence[DonorAsk]) -> Iterator[Sequence[DonorAsk]]:
    """Divide requests into small portions."""
    first, size = 0, 0
    for index, ask in enumerate(asks):
        is_full = size + _size(ask) > PORTION_BYTES or index - first == PORTION_ASKS
        if index > first and is_full:
            yield asks[first:index]
            first, size = index, 0
        size += _size(ask)
    yield asks[first:]


def _size(ask: DonorAsk) -> int:
    return len(ask.request.record.batch) if isinstance(ask.request, Restore) else 0


def _came(future: asyncio.Future[DonorAnswer], answer: NodeAnswer | None) -> None:
    if not future.done():
        future.set_result(answer if answer is not None else Lost())

"""Begin the epochs of chained loglets, one at a time for each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from loomlog.core.chained.chain import Projection
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import Interrupted
from loomlog.core.chained.reconfigure import (
    Goal,
    Reconfigured,
    least_start,
    reconfigure,
)
from loomlog.core.segments import Segment
from loomlog.core.steady_wait import SteadyWait
from loomlog.errors import NotFound, Unavailable
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.nodes import ChainNodes
from loomlog.metadata.chained.records import ChainedCatalog
from loomlog.metadata.chained.sequencers import Sequencers
from loomlog.types import Glsn, LogId

logger = logging.getLogger(__name__)

AT_ONCE: Final = 64  # after a takeover all loglets need an epoch; each seals a few replicas
CRASHED_WAIT_S: Final = (
    30.0  # wait for nodes that may have blocks which all others may have forgotten
)
CRASHED_PAUSE_S: Final = (
    30.0  # attempts are at most a few seconds apart, unless other nodes go away, too
)


class Epochs:
    """Begins new epochs of chained loglets."""

    def __init__(
        self,
        catalog: Catalog,
        records: ChainedCatalog,
        sequencers: Sequencers,
        driver: Driver,
        nodes: ChainNodes,
        changed: Callable[[LogId], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.catalog = catalog
        self.records = records
        self._sequencers = sequencers
        self.driver = driver
        self.nodes = nodes
        self.changed = changed
        self._locks: WeakValueDictionary[LogId, asyncio.Lock] = WeakValueDictionary()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._awaited: dict[LogId, list[asyncio.Future[None]]] = {}
        # Replicas may be sealed for an epoch that never came into force: it needs another try.
        self.unfinished: set[LogId] = set()
        self._patience: dict[LogId, SteadyWait] = {}  # with nodes, because the others crashed

    async def begin(self, segment: Segment) -> None:
        """Hand out positions from the start of the segment. May be called again."""
        async with self._alone(segment.loglet):
            record = self._record(segment.loglet)
            if not record.begun:
                name = self._sequencers.new_name()
                record = await self.records.change(
                    record.loglet, lambda record: record.begin(segment.start, name)
                )
                self._sequencers.begin(record.projection)
                logger.info("segment %d begins at %d", segment.loglet, segment.start)
        self._tell(segment.loglet)
        self.changed(segment.loglet)

    async def next(
        self, loglet: LogId, goal: Goal, reason: str, *, after: int | None = None
    ) -> Projection:
        """Begin the next epoch like `attempt`; wake the upkeep if that fails."""
        try:
            return await self.attempt(loglet, goal, reason, after=after)
        except Unavailable:
            self.changed(loglet)
            raise

    async def attempt(
        self, loglet: LogId, goal: Goal, reason: str, *, after: int | None = None
    ) -> Projection:
        """Return the projection that came into force. Raise Unavailable if that is uncertain. Do
        nothing if the epoch `after` which it was requested is already over."""
        async with self._alone(loglet):
            before = self._record(loglet).projection
            if (goal.close and before.closed) or after not in (None, before.epoch):
                return before
            if goal.newcomer and goal.newcomer.replica not in self._record(loglet).joining:
                raise NotFound(f"segment {loglet} goes on without it")
            await self.nodes.certain(before)
            async with self._room:
                new = await self._reconfigure(before, goal)
        logger.info(
            "segment %d: epoch %d from position %d on, chains on nodes %s: %s",
            loglet,
            new.epoch,
            new.start,
            nodes_of(new),
            reason,
        )
        self._tell(loglet)
        self.changed(loglet)
        return new

    async def _reconfigure(self, projection: Projection, goal: Goal) -> Projection:
        loglet = projection.log_id
        self.unfinished.add(loglet)
        stop = partial(self._stop_sequencer, projection, goal)
        goal = goal._replace(do_without=partial(self._do_without, loglet))
        steps = reconfigure(projection, goal, self._sequencers.new_name(), stop)
        ending = await self.driver.drive(loglet, steps)
        if not isinstance(ending, Reconfigured):
            why = ending.reason if isinstance(ending, Interrupted) else "another one is in force"
            raise Unavailable(f"segment {loglet} does not get a new epoch yet: {why}")
        self.unfinished.discard(loglet)
        self._patience.pop(loglet, None)
        return ending.projection

    def _do_without(self, loglet: LogId) -> bool:
        """Return whether the wait is over for nodes that may have blocks which all others may have
        forgotten."""
        now_s, new = self._loop.time(), SteadyWait(CRASHED_WAIT_S, CRASHED_PAUSE_S)
        patience = self._patience.setdefault(loglet, new)
        patience.note(now_s)
        return patience.is_over(now_s)

    def _stop_sequencer(self, projection: Projection, goal: Goal, did_without: bool) -> Glsn:
        """Stop handing out positions; return the lowest possible start of the next epoch."""
        record = self.records.get(projection.log_id)
        log = None if record is None else self.catalog.log_of(record)
        handed_out = self._sequencers.stop(projection.log_id)
        trimmed = 0 if log is None else log.trimmed
        return least_start(projection, goal, handed_out, trimmed, did_without=did_without)

    def _alone(self, loglet: LogId) -> asyncio.Lock:
        return self._locks.setdefault(loglet, asyncio.Lock())

    def forget(self, loglet: LogId) -> None:
        """Wake waiters of a loglet that is deleted, or about to be."""
        self._sequencers.end(loglet)
        self.unfinished.discard(loglet)
        self._patience.pop(loglet, None)
        self._tell(loglet)

    async def newer_than(self, loglet: LogId, epoch: int) -> None:
        """Wait until a newer epoch is in force, sequenced by this process."""
        while self._record(loglet).projection.epoch <= epoch:
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._awaited.setdefault(loglet, []).append(waiting)
            await waiting

    def _tell(self, loglet: LogId) -> None:
        for waiting in self._awaited.pop(loglet, ()):
            if not waiting.done():
                waiting.set_result(None)

    def _record(self, loglet: LogId) -> ChainedRecord:
        record = self.records.get(loglet)
        if record is None or not record.projection.chains:
            raise NotFound(f"segment {loglet} was deleted")
        return record


def nodes_of(projection: Projection) -> str:
    """Return the nodes of all chains, head first, chain by chain."""
    return ", ".join("-".join(str(r.node_id) for r in chain) for chain in projection.chains)

"""Compare unheard replicas with their chains, when they are back.

They may have blocks that all others forgot (core/chained/comparison.py). The record of a loglet
lists them, so that they are compared even much later, and in any term. Losses are recorded in a new
epoch; only then the replicas leave the list and may be removed.

Writers that survive report blocks that the replicas in force have forgotten. The reports of several
writers are recorded in one epoch, because it interrupts appends for a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from loomlog.core.chained.chain import Unheard
from loomlog.core.chained.comparison import compare, find_lost
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import ACKNOWLEDGED_MAX, Interrupted
from loomlog.core.chained.reconfigure import Goal
from loomlog.core.chained.upkeep import is_trimmed, to_compare
from loomlog.errors import Busy, InvalidArgument, LoomError, NotFound, Unavailable
from loomlog.metadata.background import Background, RetryLoop, StepResult
from loomlog.metadata.chained.epochs import Epochs
from loomlog.types import Glsn, LogId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

logger = logging.getLogger(__name__)

GATHER_S: Final = 0.5  # for reports of other writers
PAUSE_S: Final = 10.0  # between epochs that they cause, because a malicious writer can make holes
REPORTED_MAX: Final = 4096  # blocks of a segment at a time


class _Reports:
    """Addresses of acknowledged blocks that are looked for together."""

    def __init__(self) -> None:
        self.addresses: set[Glsn] = set()
        self.asked = 0  # perhaps more than once
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class ChainComparer:
    """Compares unheard replicas of chained loglets."""

    def __init__(
        self, epochs: Epochs, background: Background, repair: Callable[[LogId], None]
    ) -> None:
        """`repair` is called when replicas may be sealed for an epoch that did not begin."""
        self._epochs = epochs
        self._repair = repair
        self._catalog, self._records = epochs.catalog, epochs.records
        self._driver, self._nodes = epochs.driver, epochs.nodes
        self._background = background
        self._reports: dict[LogId, _Reports] = {}
        self._recording: WeakValueDictionary[LogId, asyncio.Lock] = WeakValueDictionary()
        self._paused_until_s: dict[LogId, float] = {}
        self._work = RetryLoop("comparison of segment", self._step, background)
        self.trouble: dict[LogId, str] = {}  # why replicas were not compared

    def look(self, record: ChainedRecord) -> None:
        if record.unheard:
            self._work.wake(record.loglet)

    async def _step(self, loglet: LogId) -> StepResult:
        record = self._records.get(loglet)
        if record is None or self._catalog.segment_of(record) is None:
            return StepResult.IDLE
        if needless := [each.replica for each in record.unheard if self._is_needless(record, each)]:
            await self._records.change(loglet, lambda record: record.hear(*needless))
            self._epochs.changed(loglet)
            return StepResult.DONE
        unheard = to_compare(record, self._nodes)
        if not unheard:
            self.trouble.pop(loglet, None)
            return StepResult.IDLE
        lost = [each.replica for each in unheard if self._nodes.lost(each.replica)]
        found = await self._driver.drive(loglet, compare(record.projection, unheard, lost))
        if found.forgotten:
            nodes = " and ".join(f"node {replica.node_id}" for replica in found.witnesses)
            reason = f"{nodes} has blocks that all others have forgotten"
            await self._begin_epoch(loglet, Goal(short=False, forgotten=found.forgotten), reason)
            logger.warning("segment %d: %s: they are lost", loglet, reason)
        if found.compared:
            await self._records.change(
                loglet, lambda record: record.hear(*found.compared, witnesses=found.witnesses)
            )
            self._epochs.changed(loglet)  # they may be removed now
        self.trouble[loglet] = found.trouble
        if found.trouble:
            logger.info("segment %d is not compared yet: %s", loglet, found.trouble)
            return StepResult.FAILED
        return StepResult.DONE

    async def _begin_epoch(self, loglet: LogId, goal: Goal, reason: str) -> None:
        try:
            await self._epochs.attempt(loglet, goal, reason)
        except Unavailable:
            self._repair(loglet)  # not `changed`, which would also wake this loop, without a pause
            raise

    def _is_needless(self, record: ChainedRecord, unheard: Unheard) -> bool:
        """Return whether a replica need not be compared: all its possible blocks are trimmed, or an
        operator removes its absent node."""
        is_removed = self._nodes.removed_for_good(unheard.replica.node_id)
        return is_removed or is_trimmed(record, unheard)

    # ---- reports of writers

    async def answer(self, connection: Connection, frame: pb.Frame) -> pb.Frame:
        """Answer when all losses are recorded."""
        loglet, addresses = frame.report_forgotten.loglet_id, frame.report_forgotten.addresses
        if len(addresses) > ACKNOWLEDGED_MAX:
            raise InvalidArgument(f"{len(addresses)} blocks are too many at a time")
        projection = self._used(loglet).projection
        if not addresses:
            return pb.Frame(done=pb.Done())
        if max(addresses) >= projection.start:
            raise Unavailable(f"epoch {projection.epoch} of segment {loglet} is not over")
        reports = self._reports.get(loglet)
        if reports is None:
            reports = self._reports[loglet] = _Reports()
            self._background.spawn(self._record(loglet, reports), "what writers report")
        if reports.asked >= REPORTED_MAX:
            raise Busy("too many blocks are looked for: try again later")
        reports.asked += len(addresses)
        reports.addresses.update(addresses)
        await asyncio.shield(reports.done)
        return pb.Frame(done=pb.Done())

    async def _record(self, loglet: LogId, reports: _Reports) -> None:
        now_s = asyncio.get_running_loop().time
        try:
            async with self._recording.setdefault(loglet, asyncio.Lock()):
                await asyncio.sleep(max(GATHER_S, self._paused_until_s.get(loglet, 0.0) - now_s()))
                del self._reports[loglet]  # later reports are handled later
                if await self._find_and_record(loglet, reports.addresses):
                    paused = {key: s for key, s in self._paused_until_s.items() if s > now_s()}
                    self._paused_until_s = {**paused, loglet: now_s() + PAUSE_S}
            reports.done.set_result(None)
        except LoomError as error:
            reports.done.set_exception(error)
            reports.done.exception()  # mark it as retrieved, because all callers may be gone
        finally:
            reports.done.cancel()  # does nothing unless this was

    async def _find_and_record(self, loglet: LogId, addresses: set[Glsn]) -> bool:
        """Return whether there were unrecorded losses."""
        steps = find_lost(self._used(loglet).projection, addresses)
        lost = await self._driver.drive(loglet, steps)
        if isinstance(lost, Interrupted):
            raise Unavailable(f"segment {loglet}: {lost.reason}")
        if lost:
            reason = "a writer knows of blocks that all replicas have forgotten"
            await self._begin_epoch(loglet, Goal(short=False, forgotten=tuple(lost)), reason)
            logger.warning("segment %d: %s: they are lost", loglet, reason)
        return bool(lost)

    def _used(self, loglet: LogId) -> ChainedRecord:
        """Return the record of a loglet whose segment is part of a log."""
        record = self._records.get(loglet)
        if record is None or self._catalog.segment_of(record) is None:
            raise NotFound(f"there is no segment {loglet} of protocol chained")
        return record

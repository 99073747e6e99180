"""Rebuild the copies of shards that are lost, away for long, or drained.

core/copyset/rebuild/ decides. This appends the events that are due, notifies nodes, widens and
narrows nodesets, and adds up the progress of donors. Progress is kept in memory; only the finished
scans of donors are events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from loomlog.core.copyset import log_state
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import Member, index_of, node_of, shard_name, shard_of
from loomlog.core.copyset.rebuild import events, plan
from loomlog.core.copyset.rebuild.events import (
    DonorProgress,
    Event,
    IsRebuilt,
    NeedsRebuild,
    Refill,
    Status,
    Unrecoverable,
)
from loomlog.core.copyset.rebuild.triggers import (
    ShardFacts,
    due_event,
    forgotten_event,
    is_restored,
)
from loomlog.core.copyset.record import Epoch
from loomlog.errors import LoomError
from loomlog.limits import REQUEST_TIMEOUT_S
from loomlog.metadata.background import Later, RetryLoop, StepResult
from loomlog.metadata.catalog.records import NodeRecord
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.rebuild_log import Extent, RebuildLog
from loomlog.metadata.copyset.rebuild_progress import Progress
from loomlog.metadata.copyset.rebuild_view import Copies, RebuildView
from loomlog.metadata.copyset.records import CopysetRecord, loss_of, losses_name
from loomlog.metadata.protocol import KeeperContext
from loomlog.types import LogId, NodeId, ShardId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.5  # while something is rebuilt
LEAVE_S: Final = 5.0  # between passes over all loglets for a shard that waits for some of them
AT_ONCE: Final = 64  # logs or shards, before other tasks may run
REST_S: Final = 0.0005  # after a step, for each log and shard: events of all nodes may come at once
_AWAY: Final = frozenset({Status.RESTORING, Status.LOST})
_ONLY: Final = 0  # there is one event log


class Rebuilder:
    """Drives the rebuilding of all shards."""

    def __init__(self, context: KeeperContext, epochs: EpochStore, log: RebuildLog) -> None:
        self._context = context
        self._catalog, self._connected = context.catalog, context.nodes
        self._epochs, self._records, self._nodes = epochs, epochs.records, epochs.nodes
        self._log = log
        self.view = RebuildView(epochs, log)
        # Called when other shards are rebuilt or given up, or nodesets of a loglet change: any
        # (None) or this one may need another epoch. Set by the keeper.
        self.changed: Callable[[LogId | None], None] = lambda loglet: None
        self._loop = asyncio.get_running_loop()
        settings = context.settings
        self._after_s = max(settings.rebuild_after_s, settings.replace_after_s or 0.0)
        self._work = RetryLoop("rebuilding", self._step, context.background)
        self._reports: dict[ShardId, pb.DonorReport] = {}
        self._sent = self.news()  # nodes get it when they register
        self._version_at = 0, 0.0  # a version and the time when it began
        self._rests_until = 0.0
        self._closed_since: dict[ShardId, float] = {}  # its copies are not there, or do not open
        self._why: dict[ShardId, str] = {}  # what each waits for
        self._leaves_at: dict[ShardId, tuple[int, float]] = {}  # in which version, and when again

    def wake(self) -> None:
        self._work.wake(_ONLY)

    # ---- queries

    @property
    def state(self) -> events.RebuildState:
        return self._log.state

    def restored(self, shards: Iterable[ShardId]) -> list[ShardId]:
        """Return those of the shards that lost copies, and miss none any more that can be made
        again."""
        copies, nodes = self.view.copies(), self._catalog.nodes
        known = ((shard, nodes.get(node_of(shard))) for shard in shards)
        return [s for s, record in known if record and self._is_restored(s, record, copies)]

    def to_wire(self, loglet: LogId) -> list[pb.CopysetThrough]:
        return [
            pb.CopysetThrough(shard=s, epoch=epoch, lost=self.state.status(s) is Status.LOST)
            for s, epoch in self.view.through(loglet).items()
        ]

    def news(self) -> pb.CopysetRebuild:
        state = self.state
        rebuilt, donors = events.rebuilt(state), self._donors()
        return pb.CopysetRebuild(
            events=state.events,
            version=state.version,
            shards=[
                pb.CopysetShard(shard=shard, status=each.status)
                for shard, each in state.shards.items()
            ],
            scans=min((_scans(state, shard, donors) for shard in rebuilt), default=0),
            held=sorted(self._log.held),
            bytes_per_s=self._context.settings.rebuild_bytes_per_s,
        )

    def progress(self) -> dict[ShardId, Progress]:
        """Return the progress of each shard that is being rebuilt."""
        state = self.state
        if not (rebuilt := events.rebuilt(state)):
            return {}  # at once: status asks for each node, and donors are all shards
        donors = self._donors()
        reports = [r for r in map(self._reports.get, donors) if r and r.version == state.version]
        parts = [min(1.0, (report.scans + report.part_done) / 2) for report in reports]
        done = sum(parts) / max(1, len(donors))
        version, began_at = self._version_at
        elapsed_s = self._loop.time() - began_at if version == state.version else 0.0
        left_s = elapsed_s * (1 - done) / done if done > 0.01 else None
        found = {}
        for shard in rebuilt:
            sums = [each for report in reports for each in report.shards if each.shard == shard]
            why = self._why.get(shard, "")
            found[shard] = Progress(
                state.status(shard),
                sum(each.records for each in sums),
                sum(each.size_bytes for each in sums),
                done,
                None if why else left_s,
                why,
            )
        return found

    # ---- news from nodes

    def take_report(self, node: NodeId, report: pb.GetReportResponse) -> None:
        for each in report.rebuild:
            if node_of(each.donor) != node:
                continue
            before, self._reports[each.donor] = self._reports.get(each.donor), each
            if before is None or before.scans != each.scans:
                self.wake()

    # ---- work

    async def _step(self, _: int) -> StepResult | Later:
        await asyncio.sleep(max(0.0, self._rests_until - self._loop.time()))
        copies = self.view.copies()
        due_s: list[float] = []
        shards = sorted({*self._shards(), *self.state.shards})
        for number, shard in enumerate(shards, 1):
            if not number % AT_ONCE:
                await asyncio.sleep(0)
            while (event := self._due(shard, copies, due_s)) is not None:
                await self._append(event)
        await self._count_scans()
        if events.rebuilt(self.state):
            await self._widen()
            await self._finish()
        await self._settle()
        self._tell()
        self._rests_until = self._loop.time() + REST_S * (len(shards) + len(self._records))
        if self.state.shards:
            return Later(LOOK_S)
        return Later(min(due_s)) if due_s else StepResult.IDLE

    def _due(self, shard: ShardId, copies: Copies, due_s: list[float]) -> Event | None:
        """Return the event that is due, if any; schedule the next check."""
        status = self.state.status(shard)
        record = self._catalog.nodes.get(node_of(shard))
        if record is None:
            return forgotten_event(shard, status)
        facts = self._facts(shard, record, copies)
        event = due_event(shard, status, facts, self._after_s)
        if event is None and not facts.here and facts.has_copies and facts.away_s < self._after_s:
            due_s.append(self._after_s - facts.away_s + 0.01)
        if event is None and facts.leaves and facts.has_copies:
            due_s.append(LOOK_S)  # it is drained as soon as no log uses it
        return event

    def _facts(self, shard: ShardId, record: NodeRecord, copies: Copies) -> ShardFacts:
        here = self._is_here(shard)
        return ShardFacts(
            here,
            0.0 if here else self._away_s(shard),
            shard in copies.holders and not self._are_rebuilt(shard),
            shard in copies.in_use,
            loss_of(record.losses_of(losses_name(shard))),
            self._log.extents[shard].loss if shard in self._log.extents else None,
            leaves=record.draining or record.removing or self._nodes.is_drained(shard),
            given_up=record.removing and not self._connected.alive(node_of(shard)),
        )

    def _are_rebuilt(self, shard: ShardId) -> bool:
        """Return whether all copies that a shard may have also exist elsewhere."""
        if self.state.status(shard) not in (Status.EMPTY, Status.DRAINED):
            return False
        through = self._log.extents.get(shard, Extent({})).through
        return all(
            log_state.newest_with(each.state, shard, log_state.last_written(each.state))
            <= through.get(each.loglet, 0)
            for each in self.view.loglets()
        )

    def _is_here(self, shard: ShardId) -> bool:
        closed = not self._nodes.can_open(shard)
        if not closed:
            self._closed_since.pop(shard, None)
        else:
            self._closed_since.setdefault(shard, self._loop.time())
        return self._connected.reachable(node_of(shard)) and not closed

    def _away_s(self, shard: ShardId) -> float:
        node = node_of(shard)
        if self._connected.restart_left_s(node):
            return 0.0  # an operator restarts it
        closed_at = self._closed_since.get(shard, self._loop.time())
        silent_s = 0.0 if self._connected.reachable(node) else self._connected.silent_s(node)
        return max(silent_s, self._loop.time() - closed_at)

    async def _append(self, event: Event) -> None:
        is_beginning = isinstance(event, NeedsRebuild | Unrecoverable | Refill)
        extent = self._extent(event.shard) if is_beginning else None
        if extent is not None and isinstance(event, Unrecoverable):
            await self._note_loss(event.shard, extent)
        await self._log.append(event, extent, self.view.held(event, extent))
        logger.info("rebuilding, event %d: %s", self.state.events, event)
        if is_beginning:
            self.changed(None)

    async def _note_loss(self, shard: ShardId, extent: Extent) -> None:
        """Record which entries may be lost with a shard, before it leaves its nodesets."""
        extents = {each: self._log.extents[each] for each in events.absent(self.state)}
        lost = {
            each: known.through
            for each, known in extents.items()
            if self.state.status(each) is not Status.RESTORING or known.loss is not None
        }
        lost[shard] = extent.through
        for each in [*self.view.loglets()]:
            through = {other: epochs.get(each.loglet, 0) for other, epochs in lost.items()}
            lossy = log_state.lossy_epochs(each.state, through)

            def noted(record: CopysetRecord, lossy: Sequence[Epoch] = lossy) -> CopysetRecord:
                known = log_state.still_lossy(record.state, record.lossy)
                return replace(record, lossy=tuple(sorted({*known, *lossy})))

            if not set(each.lossy).issuperset(lossy):
                await self._records.change(each.loglet, noted)

    def _extent(self, shard: ShardId) -> Extent:
        """Return the range of copies that the shard may have, or may have lost."""
        record = self._catalog.nodes.get(node_of(shard))
        losses = record.losses_of(losses_name(shard)) if record else ()
        before = self._log.extents.get(shard)
        is_rebuilt = shard in events.rebuilt(self.state)
        through = dict(before.through) if before is not None and is_rebuilt else {}
        lost = {loss[0]: loss[1] for loss in losses}
        for each in self.view.loglets():
            newest = log_state.last_written(each.state)
            epoch = newest if shard in log_state.holders(each.state) else 0
            epoch = max(epoch, min(newest, lost.get(each.loglet, 0)), through.get(each.loglet, 0))
            if epoch:
                through[each.loglet] = epoch
        return Extent(through, loss_of(losses))

    # ---- donors

    def _donors(self) -> list[ShardId]:
        return events.donors(self.state, sorted(self._shards()))

    def _shards(self) -> set[ShardId]:
        """Return the shards of all nodes, and those that may have copies although their volumes are
        missing."""
        nodes = self._catalog.nodes
        shards = {shard_of(n, index) for n, record in nodes.items() for index in record.shards}
        return shards | {shard for shard in self.view.copies().holders if node_of(shard) in nodes}

    async def _count_scans(self) -> None:
        for donor in self._donors():
            report = self._reports.get(donor)
            if report is None or report.version != self.state.version:
                continue
            sums = {each.shard: each for each in report.shards}
            for shard in events.rebuilt(self.state):
                if events.has_scanned(self.state, shard, [donor], report.scans):
                    continue
                done = sums.get(shard, pb.DonorShard())
                event = DonorProgress(
                    shard, donor, report.version, done.records, done.size_bytes, report.scans
                )
                await self._log.append(event)

    async def _finish(self) -> None:
        state = self.state
        if self._version_at[0] != state.version:
            self._version_at = state.version, self._loop.time()
        donors = self._donors()
        self._why = {}
        for shard in events.rebuilt(state):
            is_scanned = events.has_scanned(state, shard, donors, 2)
            if delayed := self.view.delay(shard):
                self._why[shard] = delayed
                if is_scanned and state.status(shard) in _AWAY:
                    await self._leave(shard)
            elif not is_scanned:
                self._why[shard] = self._stuck()
            elif self.view.is_given_up(shard) and (stuck := self.view.stuck_without(shard)):
                self._why[shard] = f"{stuck} gets its next epoch without it first"
            elif (extent := self._with_later_epochs(shard)) is not None:
                event = Unrecoverable(shard)
                await self._log.append(event, extent, self.view.held(event, extent))
                return
            else:
                await self._append(IsRebuilt(shard, state.version))
        await self._take_in()

    async def _leave(self, shard: ShardId) -> None:
        """Let a shard leave the nodesets that it need not wait for, if that is worth a look."""
        version, now_s = self.state.version, self._loop.time()
        before, next_s = self._leaves_at.get(shard, (0, 0.0))
        if before != version or now_s >= next_s:
            self._leaves_at[shard] = version, now_s + LEAVE_S
            await self._narrow(shard)

    async def _take_in(self) -> None:
        """Begin another version for loglets that donors left out, once they are done."""
        state, donors = self.state, self._donors()
        is_over = all(events.has_scanned(state, s, donors, 2) for s in events.rebuilt(state))
        if is_over and (event := self.view.due_rescan()) is not None:
            await self._append(event)

    def _with_later_epochs(self, shard: ShardId) -> Extent | None:
        """Return the extended range to rebuild of a lost shard, if epochs after its event were
        recovered without it and have fewer copies than wanted; otherwise None."""
        extent = self._log.extents.get(shard)
        if extent is None or self.state.status(shard) is not Status.LOST:
            return None
        through = dict(extent.through)
        for each in self.view.loglets():
            epoch = log_state.newest_with(each.state, shard, each.state.last_clean)
            if epoch > through.get(each.loglet, 0):
                through[each.loglet] = epoch
        return None if through == extent.through else extent._replace(through=through)

    def _stuck(self) -> str:
        silent = [shard_name(donor) for donor in self._donors() if not self._nodes.can_ask(donor)]
        if silent:
            return f"node {silent[0]} is away, which may have copies"
        left = max((report.left for report in self._reports.values()), default=0)
        done = [r.scans for r in self._reports.values() if r.version == self.state.version]
        return (
            f"{left} records cannot be restored yet: too few nodes take copies"
            if (left and min(done, default=0) == 0)
            else ""
        )

    # ---- nodesets

    async def _widen(self) -> None:
        usable = self._usable()
        for each in self.view.loglets():
            through = self.view.through(each.loglet)
            if through and plan.widened(each.state, through, usable) != each.state:

                def widened(state: LogState, through: dict[ShardId, Epoch] = through) -> LogState:
                    return plan.widened(state, through, usable)

                await self._epochs.change(each.loglet, widened)
                self.changed(each.loglet)

    def _usable(self) -> set[Member]:
        return {
            member
            for member in self._nodes.usable()
            if events.targets(self.state, [member.shard]) and self._nodes.takes_copies(member.shard)
        }

    async def _settle(self) -> None:
        """Finish the rebuilding of a shard."""
        for shard, each in [*self.state.shards.items()]:
            if each.status in (Status.EMPTY, Status.DRAINED):
                await self._narrow(shard)
                await self._context.forget_if_removed(node_of(shard))
        for node, record in [*self._catalog.nodes.items()]:
            for shard in [shard_of(node, index) for index in record.shards]:
                losses = record.losses_of(losses_name(shard))
                if not losses:
                    continue
                copies = self.view.copies()
                is_over = self._is_here(shard) and self._is_restored(shard, record, copies)
                if is_over and not self._may_have_been_all(shard):
                    await self._clear(shard, losses)

    def _is_restored(self, shard: ShardId, record: NodeRecord, copies: Copies) -> bool:
        facts = self._facts(shard, record, copies)
        return is_restored(self.state.status(shard), facts)

    def _may_have_been_all(self, shard: ShardId) -> bool:
        """Return whether some record may have had all its copies on lost shards, including this
        one. Such a loss stays recorded until the record is trimmed."""
        for each in self.view.loglets():
            if shard in log_state.lost_together(each.state, self._nodes.losses(each)):
                return True
        return False

    async def _clear(self, shard: ShardId, losses: tuple[tuple[int, ...], ...]) -> None:
        """Tell a shard that its copies are complete again, then delete the record of its loss."""
        node, index = node_of(shard), index_of(shard)
        restored = [
            pb.LostCopies(loglet_id=log, epoch=epoch, shard=index) for log, epoch in losses if log
        ]
        order = pb.Frame(copyset_restored=pb.CopysetRestored(restored=restored))
        try:
            await self._connected.request(node, order, REQUEST_TIMEOUT_S)
        except LoomError as error:
            logger.info("node %s: its copies are restored, but: %s", shard_name(shard), error)
            return
        await self._catalog.end_losses(node, losses_name(shard), losses)
        if self.state.status(shard) is Status.INTACT:
            self._log.drop(shard)

    async def _narrow(self, shard: ShardId) -> None:
        """Drop a shard from the nodesets for which it was rebuilt; it may have later copies. It
        stays in those that it may not leave yet."""
        extent = self._log.extents.get(shard, Extent({}))
        for number, each in enumerate([*self.view.loglets()]):
            if not number % AT_ONCE:
                await asyncio.sleep(0)  # there may be thousands
            if shard not in each.state.all_shards:
                continue
            through = extent.through.get(each.loglet, 0)

            def narrowed(
                state: LogState, loglet: LogId = each.loglet, through: Epoch = through
            ) -> LogState:
                kept = self.view.kept(shard, loglet, state)
                return plan.narrowed(state, shard, through, kept)

            if narrowed(each.state) != each.state:
                await self._epochs.change(each.loglet, narrowed)
                self.changed(each.loglet)

    # ---- parts

    def _tell(self) -> None:
        news = self.news()
        if news == self._sent:
            return
        self._sent = news
        for node in self._connected.all_reachable():
            self._connected.send(node, pb.Frame(copyset_rebuild=news))


def _scans(state: events.RebuildState, shard: ShardId, donors: list[ShardId]) -> int:
    """Return the number of scans that all donors have finished for a shard."""
    return sum(events.has_scanned(state, shard, donors, scans) for scans in (1, 2))

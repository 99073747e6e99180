"""Rebuild the copies of shards that are lost, away for long, or drained.

core/copyset/rebuild/ decides. This appends the events that are due, sends nodes the news, widens
and narrows nodesets, and counts what donors report. Reports of progress stay in memory; only the
scans that a donor has finished are events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

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
from loomlog.metadata.copyset.records import CopysetRecord, loss_of, losses_name
from loomlog.metadata.protocol import KeeperContext
from loomlog.types import LogId, NodeId, ShardId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.5  # while something is rebuilt
_ONLY: Final = 0  # there is one event log
_MAY_RETURN: Final = frozenset({Status.INTACT, Status.RESTORING})


class Rebuilder:
    """Drives the rebuilding of all shards."""

    def __init__(self, context: KeeperContext, epochs: EpochStore, log: RebuildLog) -> None:
        self._context = context
        self._catalog, self._connected = context.catalog, context.nodes
        self._epochs, self._records, self._nodes = epochs, epochs.records, epochs.nodes
        self._log = log
        # Called when other shards are rebuilt or given up; set by the keeper.
        self.changed: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        settings = context.settings
        self._after_s = max(settings.rebuild_after_s, settings.replace_after_s or 0.0)
        self._work = RetryLoop("rebuilding", self._step, context.background)
        self._reports: dict[ShardId, pb.DonorReport] = {}
        self._sent = self.news()  # nodes get it when they register
        self._version_at = 0, 0.0  # which version began when
        self._closed_since: dict[ShardId, float] = {}  # its copies are not there, or do not open
        self._why: dict[ShardId, str] = {}  # what each waits for

    def wake(self) -> None:
        self._work.wake(_ONLY)

    # ---- queries

    @property
    def state(self) -> events.RebuildState:
        return self._log.state

    def through(self, loglet: LogId) -> dict[ShardId, Epoch]:
        """Return the shards that are rebuilt, and up to which epoch of a loglet."""
        extents = ((shard, self._log.extents[shard]) for shard in events.rebuilt(self.state))
        return {s: extent.through[loglet] for s, extent in extents if loglet in extent.through}

    def is_given_up(self, shard: ShardId) -> bool:
        """Return whether a shard is away, and will never have again what it had."""
        is_lost = self.state.status(shard) is Status.LOST
        return is_lost and not self._connected.alive(node_of(shard))

    def restored(self, shards: Iterable[ShardId]) -> list[ShardId]:
        """Return those of the shards that lost copies, and miss none any more that can be made
        again."""
        copies, nodes = self._copies(), self._catalog.nodes
        known = ((shard, nodes.get(node_of(shard))) for shard in shards)
        return [s for s, record in known if record and self._is_restored(s, record, copies)]

    def to_wire(self, loglet: LogId) -> list[pb.CopysetThrough]:
        return [
            pb.CopysetThrough(shard=s, epoch=epoch, lost=self.state.status(s) is Status.LOST)
            for s, epoch in self.through(loglet).items()
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
            bytes_per_s=self._context.settings.rebuild_bytes_per_s,
        )

    def progress(self) -> dict[ShardId, Progress]:
        """Return how far each shard is that is rebuilt."""
        state, donors = self.state, self._donors()
        reports = [r for r in map(self._reports.get, donors) if r and r.version == state.version]
        parts = [min(1.0, (report.scans + report.part_done) / 2) for report in reports]
        done = sum(parts) / max(1, len(donors))
        version, began_at = self._version_at
        elapsed_s = self._loop.time() - began_at if version == state.version else 0.0
        left_s = elapsed_s * (1 - done) / done if done > 0.01 else None
        found = {}
        for shard in events.rebuilt(state):
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
        copies = self._copies()
        due_s: list[float] = []
        for shard in sorted({*self._shards(), *self.state.shards}):
            while (event := self._due(shard, copies, due_s)) is not None:
                await self._append(event)
        await self._count_scans()
        if events.rebuilt(self.state):
            await self._widen()
            await self._finish()
        await self._settle()
        self._tell()
        if self.state.shards:
            return Later(LOOK_S)
        return Later(min(due_s)) if due_s else StepResult.IDLE

    def _due(self, shard: ShardId, copies: _Copies, due_s: list[float]) -> Event | None:
        """Return the event that is due; note when to look again for one."""
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

    def _facts(self, shard: ShardId, record: NodeRecord, copies: _Copies) -> ShardFacts:
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
        """Return whether all copies that a shard may have are elsewhere, too."""
        if self.state.status(shard) not in (Status.EMPTY, Status.DRAINED):
            return False
        through = self._log.extents.get(shard, Extent({})).through
        return all(
            log_state.newest_with(each.state, shard, log_state.last_written(each.state))
            <= through.get(each.loglet, 0)
            for each in self._loglets()
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
        await self._log.append(event, extent)
        logger.info("rebuilding, event %d: %s", self.state.events, event)
        if is_beginning:
            self.changed()

    async def _note_loss(self, shard: ShardId, extent: Extent) -> None:
        """Note which entries may be lost with a shard: its nodesets may soon not tell any more."""
        extents = {each: self._log.extents[each] for each in events.absent(self.state)}
        lost = {
            each: known.through
            for each, known in extents.items()
            if self.state.status(each) is not Status.RESTORING or known.loss is not None
        }
        lost[shard] = extent.through
        for each in [*self._loglets()]:
            through = {other: epochs.get(each.loglet, 0) for other, epochs in lost.items()}
            lossy = log_state.lossy_epochs(each.state, through)

            def noted(record: CopysetRecord, lossy: Sequence[Epoch] = lossy) -> CopysetRecord:
                known = log_state.still_lossy(record.state, record.lossy)
                return replace(record, lossy=tuple(sorted({*known, *lossy})))

            if not set(each.lossy).issuperset(lossy):
                await self._records.change(each.loglet, noted)

    def _extent(self, shard: ShardId) -> Extent:
        """Return what the shard may have, or may have lost."""
        record = self._catalog.nodes.get(node_of(shard))
        losses = record.losses_of(losses_name(shard)) if record else ()
        before = self._log.extents.get(shard)
        is_rebuilt = shard in events.rebuilt(self.state)
        through = dict(before.through) if before is not None and is_rebuilt else {}
        lost = {loss[0]: loss[1] for loss in losses}
        for each in self._loglets():
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
        """Return the shards of all nodes, and those that may have copies though their volumes are
        not there."""
        nodes = self._catalog.nodes
        shards = {shard_of(n, index) for n, record in nodes.items() for index in record.shards}
        return shards | {shard for shard in self._copies().holders if node_of(shard) in nodes}

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
            if delayed := self._delay(shard):
                self._why[shard] = delayed
            elif not events.has_scanned(state, shard, donors, 2):
                self._why[shard] = self._stuck()
            elif self.is_given_up(shard) and (stuck := self._stuck_without(shard)):
                self._why[shard] = (
                    f"{self._catalog.name_of(stuck)} gets its next epoch without it first"
                )
            elif (extent := self._with_later_epochs(shard)) is not None:
                await self._log.append(Unrecoverable(shard), extent)
                return
            else:
                await self._append(IsRebuilt(shard, state.version))

    def _with_later_epochs(self, shard: ShardId) -> Extent | None:
        """Return what has to be rebuilt besides of a shard that is lost: of epochs after its event
        that were recovered without it, with fewer copies than they should have. None: nothing."""
        extent = self._log.extents.get(shard)
        if extent is None or self.state.status(shard) is not Status.LOST:
            return None
        through = dict(extent.through)
        for each in self._loglets():
            epoch = log_state.newest_with(each.state, shard, each.state.last_clean)
            if epoch > through.get(each.loglet, 0):
                through[each.loglet] = epoch
        return None if through == extent.through else extent._replace(through=through)

    def _delay(self, shard: ShardId) -> str:
        """Return which log keeps a shard from counting as rebuilt, and why; "" if none does."""
        absent, may_return = events.absent(self.state), events.may_return(self.state)
        for each in self._loglets():
            through = self.through(each.loglet)
            unchecked = self._unchecked(shard, each.state)
            delay = plan.delay(shard, each.state, through, absent, may_return, unchecked)
            if delay is not None:
                return self._why_delayed(each, delay)
        return ""

    def _unchecked(self, shard: ShardId, state: LogState) -> list[ShardId]:
        """Return the shards that may have forgotten what this one has, or had, and whose check
        (verification.py) does not wait for this one to be refilled."""
        if self.state.status(shard) is not Status.RESTORING and not self.is_given_up(shard):
            return []
        nodes = log_state.unchecked(state, self._nodes.lives())
        return [each for each in state.all_shards if node_of(each) in nodes]

    def _why_delayed(self, record: CopysetRecord, delay: plan.Delay) -> str:
        name, there = self._catalog.name_of(record), set(self._nodes.alive_of(record.state))
        away = [shard for shard in record.state.all_shards if shard not in there]
        named = ", ".join(shard_name(s) for s in away if self.state.status(s) in _MAY_RETURN)
        helps = (
            f"({named}): start them, or, if they will not come back, run "
            "`loom node mark-unrecoverable NODE`"
        )
        if delay is plan.Delay.UNCERTAIN:
            return f"entries of {name} may have all their copies on nodes that are away {helps}"
        if delay is plan.Delay.UNCHECKED:
            return f"copies of {name} on nodes that crashed are checked first"
        if named and log_state.awaited(record.state, there, record.state.epoch):
            return f"{name} cannot be recovered without nodes that are away {helps}"
        return f"{name} is not recovered yet"

    def _stuck_without(self, shard: ShardId) -> CopysetRecord | None:
        """Return a loglet that could not be recovered if the shard were expected back again."""
        for each in self._loglets():
            if log_state.waits_for(each.state, shard):
                there = self._nodes.alive_of(each.state)
                if not log_state.can_be_recovered(each.state, there):
                    return each
        return None

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
        for each in self._loglets():
            through = self.through(each.loglet)
            if through and plan.widened(each.state, through, usable) != each.state:

                def widened(state: LogState, through: dict[ShardId, Epoch] = through) -> LogState:
                    return plan.widened(state, through, usable)

                await self._epochs.change(each.loglet, widened)

    def _usable(self) -> set[Member]:
        return {
            member
            for member in self._nodes.usable()
            if events.targets(self.state, [member.shard]) and self._nodes.takes_copies(member.shard)
        }

    async def _settle(self) -> None:
        """Do what follows when a shard is rebuilt."""
        for shard, each in [*self.state.shards.items()]:
            if each.status in (Status.EMPTY, Status.DRAINED):
                await self._narrow(shard)
                await self._context.forget_if_removed(node_of(shard))
        for node, record in [*self._catalog.nodes.items()]:
            for shard in [shard_of(node, index) for index in record.shards]:
                losses = record.losses_of(losses_name(shard))
                if not losses:
                    continue
                is_over = self._is_here(shard) and self._is_restored(shard, record, self._copies())
                if is_over and not self._may_have_been_all(shard):
                    await self._clear(shard, losses)

    def _is_restored(self, shard: ShardId, record: NodeRecord, copies: _Copies) -> bool:
        facts = self._facts(shard, record, copies)
        return is_restored(self.state.status(shard), facts)

    def _may_have_been_all(self, shard: ShardId) -> bool:
        """Return whether some record may have had all its copies on shards that lost theirs, this
        one among them: that loss stays known until the record is trimmed."""
        for each in self._loglets():
            if shard in log_state.lost_together(each.state, self._nodes.losses(each)):
                return True
        return False

    async def _clear(self, shard: ShardId, losses: tuple[tuple[int, ...], ...]) -> None:
        """Tell a shard that its copies are not missing any more, then forget that they were."""
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
        """Drop a shard from the nodesets that it was rebuilt for: it may have later copies."""
        extent = self._log.extents.get(shard, Extent({}))
        for each in self._loglets():
            through = extent.through.get(each.loglet, 0)

            def narrowed(state: LogState, through: Epoch = through) -> LogState:
                return plan.narrowed(state, shard, through)

            if narrowed(each.state) != each.state:
                await self._epochs.change(each.loglet, narrowed)

    # ---- parts

    def _tell(self) -> None:
        news = self.news()
        if news == self._sent:
            return
        self._sent = news
        for node in self._connected.all_reachable():
            self._connected.send(node, pb.Frame(copyset_rebuild=news))

    def _loglets(self) -> Iterator[CopysetRecord]:
        return (r for r in self._records if r.begun and self._catalog.segment_of(r) is not None)

    def _copies(self) -> _Copies:
        holders: set[ShardId] = set()
        in_use: set[ShardId] = set()
        for each in self._loglets():
            state = each.state
            holders |= log_state.holders(state)
            if not state.closed and state.history[0].since <= state.epoch:
                in_use.update(state.metadata_of(state.epoch).shards)
        return _Copies(holders, in_use)


class _Copies(NamedTuple):
    """The shards that may have copies, and those that logs store new ones on."""

    holders: set[ShardId]
    in_use: set[ShardId]


def _scans(state: events.RebuildState, shard: ShardId, donors: list[ShardId]) -> int:
    """Return how many scans all donors have finished for a shard."""
    return sum(events.has_scanned(state, shard, donors, scans) for scans in (1, 2))

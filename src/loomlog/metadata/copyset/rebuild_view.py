"""Tell what is rebuilt of which loglets, and what a shard waits for before it counts as rebuilt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from loomlog.core.copyset import log_state
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import EpochMetadata, node_of, shard_name
from loomlog.core.copyset.rebuild import events, plan
from loomlog.core.copyset.rebuild.events import Event, RebuildState, Rescan, Status
from loomlog.core.copyset.record import Epoch
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.rebuild_log import Extent, RebuildLog
from loomlog.metadata.copyset.records import CopysetRecord
from loomlog.types import LogId, ShardId

_MAY_RETURN: Final = frozenset({Status.INTACT, Status.RESTORING})


class Copies(NamedTuple):
    """The shards that may have copies, and those on which logs store new ones."""

    holders: set[ShardId]
    in_use: set[ShardId]


class RebuildView:
    """The event log, the loglets and the nodes as one. Changes nothing."""

    def __init__(self, epochs: EpochStore, log: RebuildLog) -> None:
        self._catalog, self._records, self._nodes = epochs.catalog, epochs.records, epochs.nodes
        self._log = log

    @property
    def state(self) -> RebuildState:
        return self._log.state

    def loglets(self) -> Iterator[CopysetRecord]:
        return (r for r in self._records if r.begun and self._catalog.segment_of(r) is not None)

    def copies(self) -> Copies:
        holders: set[ShardId] = set()
        in_use: set[ShardId] = set()
        for each in self.loglets():
            state = each.state
            holders |= log_state.holders(state)
            if not state.closed and state.history[0].since <= state.epoch:
                in_use.update(state.metadata_of(state.epoch).shards)
        return Copies(holders, in_use)

    def through(self, loglet: LogId) -> dict[ShardId, Epoch]:
        """Return the shards that are rebuilt, each with the last affected epoch of a loglet."""
        return _through(self.state, self._log.extents, loglet)

    def is_given_up(self, shard: ShardId) -> bool:
        """Return whether a shard is away and its copies are given up."""
        return self._is_given_up(self.state, shard)

    def _is_given_up(self, state: RebuildState, shard: ShardId) -> bool:
        return state.status(shard) is Status.LOST and not self._nodes.alive(node_of(shard))

    # ---- loglets that are left out

    def held(self, event: Event, extent: Extent | None) -> list[LogId]:
        """Return the loglets that donors leave out in the version that an event begins: too few
        of their nodes are there to recover what is to be scanned."""
        after, extents = events.apply(self.state, event), self._log.extents
        if extent is not None:
            extents = {**extents, event.shard: extent}
        found = []
        for each in self.loglets():
            if plan.is_ready(each.state, _through(after, extents, each.loglet)):
                continue
            there = list(filter(self._nodes.has, each.holders))
            given_up = [shard for shard in each.holders if self._is_given_up(after, shard)]
            if not log_state.can_be_recovered(each.state, there, given_up):
                found.append(each.loglet)
        return found

    def due_rescan(self) -> Rescan | None:
        """Return the event that takes in a loglet that was left out, if one is recovered."""
        for each in self.loglets():
            through = self.through(each.loglet)
            is_held = each.loglet in self._log.held and plan.parts(each.state, through)
            if is_held and plan.is_ready(each.state, through):
                return Rescan(min(through))
        return None

    # ---- what a shard waits for

    def delay(self, shard: ShardId) -> str:
        """Return which log keeps a shard from counting as rebuilt, and why; "" if none does."""
        absent, may_return = events.absent(self.state), events.may_return(self.state)
        for each in self.loglets():
            through = self.through(each.loglet)
            unchecked = self._unchecked(shard, each.state)
            delay = plan.delay(shard, each.state, through, absent, may_return, unchecked)
            if delay is not None:
                return self._why_delayed(each, delay)
            if self._is_held(shard, each):
                return f"{self._catalog.name_of(each)} is recovered, and rebuilt next"
        return ""

    def kept(self, shard: ShardId, loglet: LogId, state: LogState) -> list[EpochMetadata]:
        """Return the nodesets of a loglet that a shard may not leave yet, though all donors have
        scanned twice."""
        record = self._records.get(loglet)
        if record is None or self._is_held(shard, record):
            return list(state.history)
        absent, may_return = events.absent(self.state), events.may_return(self.state)
        through, unchecked = self.through(loglet), self._unchecked(shard, state)
        return plan.doubts(shard, state, through, absent, may_return, unchecked)

    def _is_held(self, shard: ShardId, record: CopysetRecord) -> bool:
        """Return whether donors left out what a shard had of a loglet."""
        through = self.through(record.loglet)
        if record.loglet not in self._log.held or shard not in through:
            return False
        return bool(plan.parts(record.state, {shard: through[shard]}))

    def _unchecked(self, shard: ShardId, state: LogState) -> list[ShardId]:
        """Return the shards that may have forgotten records of this one, and whose check
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

    def stuck_without(self, shard: ShardId) -> str:
        """Return the name of a log that could not be recovered if the shard were again expected
        back; "" if there is none."""
        for each in self.loglets():
            if log_state.waits_for(each.state, shard):
                there = self._nodes.alive_of(each.state)
                if not log_state.can_be_recovered(each.state, there):
                    return self._catalog.name_of(each)
        return ""


def _through(
    state: RebuildState, extents: dict[ShardId, Extent], loglet: LogId
) -> dict[ShardId, Epoch]:
    known = ((shard, extents[shard]) for shard in events.rebuilt(state) if shard in extents)
    return {s: extent.through[loglet] for s, extent in known if loglet in extent.through}

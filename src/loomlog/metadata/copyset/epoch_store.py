"""The epoch store: the sequencer, epoch and recovery state of each copyset loglet.

Every change is one compare-and-swap of the loglet's record, computed from the previous record, and
fenced by the leader's epoch like all writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from loomlog.core.copyset import log_state
from loomlog.core.copyset.late_losses import miss
from loomlog.core.copyset.messages import (
    Activate,
    Contradict,
    Finish,
    GetState,
    LogState,
    Miss,
    SetClean,
    UseShort,
)
from loomlog.core.copyset.nodeset import EpochMetadata, Member, choose_short, shard_name
from loomlog.core.copyset.nodeset_choice import fresh_nodeset, next_nodeset
from loomlog.core.copyset.presumption import Presume
from loomlog.core.copyset.record import Epoch, Lsn, epoch_of
from loomlog.core.segments import Segment
from loomlog.errors import NotFound, RolledBack, Unauthorized, Unavailable
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.copyset.nodes import CopysetNodes, size_of
from loomlog.metadata.copyset.records import CopysetCatalog, CopysetRecord
from loomlog.types import Glsn, LogId, NodeId, ShardId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import state_to_wire, store_request_from_wire

logger = logging.getLogger(__name__)


class EpochStore:
    """Stores the state of every copyset loglet and answers the nodes that sequence them."""

    def __init__(
        self,
        catalog: Catalog,
        records: CopysetCatalog,
        nodes: CopysetNodes,
        now_us: Callable[[], int],
        contradicted: Callable[[str], None],
    ) -> None:
        """`now_us` returns the time by most clocks, or 0 if it is unknown. `contradicted` is called
        with newer information from a node that this metadata lacks."""
        self.catalog = catalog
        self.records = records
        self.nodes = nodes
        self._now_us = now_us
        self._contradicted = contradicted
        # Returns the shards that are rebuilt, for a loglet; set by the keeper.
        self.rebuilt: Callable[[LogId], Iterable[pb.CopysetThrough]] = lambda loglet: ()
        # Called when a node has taken an epoch; set by the keeper.
        self.taken: Callable[[CopysetRecord], None] = lambda record: None
        self._awaited: dict[LogId, asyncio.Event] = {}  # set on a change
        self._tails: dict[LogId, Lsn] = {}  # the newest from sequencers' heartbeats
        self.renewing: set[LogId] = set()  # to be moved to the best nodes at an operator's request

    # ---- requests of nodes

    async def answer(self, node: NodeId | None, request: pb.EpochStoreRequest) -> pb.CopysetState:
        """Carry out a node's request and return the resulting state."""
        if node is None:
            raise Unauthorized("epochs are for storage nodes, on the connection they registered on")
        loglet, taken = request.loglet_id, False
        match asked := store_request_from_wire(request, node):
            case GetState():
                await self.begin(self._segment(loglet))
            case Activate():
                taken = await self.take_epoch(loglet, node, asked.expected) is not None
            case SetClean():
                self._check_taker(loglet, asked.by, node)
                await self.change(loglet, lambda state: log_state.set_clean(state, asked))
            case UseShort():
                self._check_taker(loglet, asked.by, node)
                await self.change(loglet, lambda state: log_state.use_short(state, asked))
            case Presume():
                self._check_taker(loglet, asked.by, node)
                await self.change(loglet, lambda state: log_state.presume(state, asked))
            case Finish():
                self._check_taker(loglet, asked.epoch, node)
                await self.change(loglet, lambda state: log_state.finish(state, asked))
            case Miss():
                self._check_holder(loglet, node)
                await self.change(loglet, lambda state: miss(state, asked))
                logger.warning(
                    "segment %d: epoch %d was acknowledged up to %d, node %d knows: some is lost",
                    loglet,
                    asked.epoch,
                    asked.lng,
                    node,
                )
            case Contradict():
                self._check_taker(loglet, asked.epoch, node)
                what = (
                    f"node {shard_name(asked.shard)} has position {asked.lsn} of segment {loglet}, "
                    f"but epoch {asked.epoch} was given as a new one"
                )
                self._contradicted(what)
                raise RolledBack(f"the metadata went back in time: {what}")
        record = self._record(loglet)
        if taken:
            self.taken(record)
        message = self.for_a_sequencer(record) if taken else self.to_wire(record)
        message.taken = taken
        return message

    def _check_taker(self, loglet: LogId, epoch: Epoch, node: NodeId) -> None:
        """Raise Unauthorized if another node took the epoch."""
        state = self._record(loglet).state
        takers = {**dict(state.takers), state.epoch: state.sequencer}
        if (taker := takers.get(epoch, 0)) not in (0, node):
            raise Unauthorized(
                f"epoch {epoch} of segment {loglet} is of node {taker}, not of node {node}"
            )

    def _check_holder(self, loglet: LogId, node: NodeId) -> None:
        """Raise Unauthorized if a node never had copies of the loglet."""
        if not self._record(loglet).is_on(node):
            raise Unauthorized(f"node {node} has no copies of segment {loglet}")

    def to_wire(self, record: CopysetRecord) -> pb.CopysetState:
        state = record.state
        if self.nodes.avoided(record.loglet):  # nodes and clients do not know of that
            state = log_state.choose(state, self.nodes.sequencer(record.loglet, state) or 0)
        message = state_to_wire(record.loglet, state, self.nodes.known())
        message.log_stream_id = record.stream_id
        message.rebuilt.extend(self.rebuilt(record.loglet))
        return message

    def for_a_sequencer(self, record: CopysetRecord) -> pb.CopysetState:
        message = self.to_wire(record)
        message.now_us = self._now_us()
        return message

    # ---- tails

    def take_report(self, node: NodeId, report: pb.GetReportResponse) -> None:
        for reported in report.tails:
            record = self.records.get(reported.loglet_id)
            if record is None or record.is_on(node) or node in record.state.sequencers_since(0):
                self.take_tail(reported.loglet_id, reported.tail)

    def take_tail(self, loglet: LogId, tail: Lsn) -> None:
        """Record the last position that a sequencer reports as acknowledged."""
        if self.records.get(loglet) is not None:
            self._tails[loglet] = max(tail, self._tails.get(loglet, 0))
        else:
            self._tails.pop(loglet, None)

    def reported_tail(self, loglet: LogId) -> Lsn:
        return self._tails.get(loglet, 0)

    def known_tail(self, segment: Segment) -> Glsn:
        """Return the last position that is recovered, or reported by the sequencer; there may be
        more."""
        record = self.records.get(segment.loglet)
        recovered = record.state.tail if record is not None and record.begun else 0
        return max(recovered, self.reported_tail(segment.loglet), segment.start - 1)

    def is_tail_known(self, segment: Segment, reachable: Callable[[NodeId], bool]) -> bool:
        """Return whether the whole loglet is recovered, or its sequencer is reachable."""
        record = self.records.get(segment.loglet)
        if record is None or not record.begun:
            return True
        state = record.state
        is_reported = epoch_of(self.reported_tail(segment.loglet)) == state.epoch
        if not (log_state.is_recovered(state) or is_reported):
            return False
        return state.closed or not state.sequencer or reachable(state.sequencer)

    # ---- changes by the metadata repository itself

    async def begin(self, segment: Segment) -> None:
        """Allow epochs of a segment, the first above all earlier positions. May be called again."""
        if not segment.start:
            raise Unavailable(f"segment {segment.loglet} has not begun yet: try again")
        if not self._record(segment.loglet).begun:
            await self.records.change(
                segment.loglet, lambda record: begun_at(record, segment.start)
            )
            logger.info("segment %d begins at %d", segment.loglet, segment.start)
            self.tell(segment.loglet)

    async def take_epoch(
        self, loglet: LogId, node: NodeId, expected: Epoch, *, closed: bool = False
    ) -> CopysetRecord | None:
        """Give a node the next epoch. With `closed` the loglet takes no more appends.

        Return None if the expected epoch is no longer the newest, or no appends are taken. A node
        that already has the epoch may have used it before it was restarted, so it does not get
        it."""
        segment = self._segment(loglet)
        await self.begin(segment)
        is_taken = False

        def taken(state: LogState) -> LogState:
            nonlocal is_taken
            is_taken = state.epoch == expected and (closed or not state.closed)
            if not is_taken:
                return state
            nodeset = self.next_nodeset(segment, state)
            noted = log_state.note_tail(state, self._tails.get(loglet, 0))
            return log_state.take_epoch(
                noted,
                node,
                nodeset,
                closed=closed,
                short=() if closed else self.next_short(segment, state),
                least=segment.settings.replicas_least,
                lives=self.nodes.lives(),
            )

        state = await self.change(loglet, taken)
        if not is_taken:
            return None
        logger.info("segment %d: node %d took epoch %d", loglet, node, state.epoch)
        return replace(self._record(loglet), state=state)

    async def trim(self, loglet: LogId, lsn: Lsn) -> None:
        await self.change(loglet, lambda state: log_state.trim(state, lsn))

    def next_nodeset(self, segment: Segment, state: LogState) -> tuple[Member, ...]:
        renewed = segment.loglet in self.renewing
        return self._choose(fresh_nodeset if renewed else next_nodeset, segment, state)

    def fresh_nodeset(self, segment: Segment, state: LogState) -> tuple[Member, ...]:
        """Return the nodeset that the loglet would get if it were new."""
        return self._choose(fresh_nodeset, segment, state)

    def _choose(
        self, choose: Callable[..., tuple[Member, ...]], segment: Segment, state: LogState
    ) -> tuple[Member, ...]:
        usable, size = self.nodes.usable(), size_of(segment.settings)
        return choose(segment.loglet, state, usable, size, self._record(segment.loglet).aim)

    def next_short(self, segment: Segment, state: LogState) -> tuple[ShardId, ...]:
        """Return the short copyset of the next epoch, if it needs one."""
        nodeset = self.next_nodeset(segment, state)
        metadata = EpochMetadata(0, nodeset, state.history[-1].replication)
        takers = self.nodes.takers(metadata.shards)
        least = segment.settings.replicas_least
        return choose_short(segment.loglet, metadata, takers, least)

    async def until(self, loglet: LogId, true: Callable[[LogState], bool]) -> LogState:
        """Wait for a condition; raise NotFound if the loglet is deleted."""
        while not true(self._record(loglet).state):
            await self._awaited.setdefault(loglet, asyncio.Event()).wait()
        return self._record(loglet).state

    # ---- records

    async def change(self, loglet: LogId, change: Callable[[LogState], LogState]) -> LogState:
        """Swap in another state of a loglet."""
        before = self._record(loglet).state

        def changed(record: CopysetRecord) -> CopysetRecord:
            state = change(record.state)
            holders = dict.fromkeys((*record.holders, *sorted(log_state.holders(state))))
            aim = record.aim.begun(record.state, state)
            return replace(record, state=state, holders=tuple(holders), aim=aim)

        after = (await self.records.change(loglet, changed)).state
        if after != before:
            self.tell(loglet)
        return after

    def tell(self, loglet: LogId) -> None:
        """Wake callers that wait for a loglet, because it changed or was deleted."""
        if (awaited := self._awaited.pop(loglet, None)) is not None:
            awaited.set()

    def _segment(self, loglet: LogId) -> Segment:
        segment = self.catalog.segment_of(self._record(loglet))
        if segment is None:
            raise _gone(loglet)
        return segment

    def _record(self, loglet: LogId) -> CopysetRecord:
        record = self.records.get(loglet)
        if record is None:
            raise _gone(loglet)
        return record


def begun_at(record: CopysetRecord, start: int) -> CopysetRecord:
    """Return the record with its segment begun at a position, unless it has already begun."""
    if record.begun:
        return record
    newest, before = record.state.history[-1], record.state
    state = log_state.first_state(
        newest.nodeset, newest.replication, start, before.stamp, before.least
    )
    return replace(record, state=state, begun=True)


def _gone(loglet: LogId) -> NotFound:
    return NotFound(f"there is no segment {loglet} of protocol copyset")

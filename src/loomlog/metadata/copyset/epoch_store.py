"""The epoch store: who sequences a copyset loglet, in which epoch, and how far it is recovered.

Every change is one compare-and-swap of the loglet's record, computed from the one it replaces, and
fenced by the leader's epoch like all that is written here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from loomlog.core.copyset import log_state
from loomlog.core.copyset.epoch_metadata import Member
from loomlog.core.copyset.lsn import Epoch, Lsn
from loomlog.core.copyset.messages import LogState, SetClean
from loomlog.core.segments import Segment
from loomlog.errors import InvalidArgument, NotFound, Unauthorized, Unavailable
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.copyset.catalog import CopysetCatalog
from loomlog.metadata.copyset.nodes import CopysetNodes, size_of
from loomlog.metadata.records import CopysetRecord
from loomlog.types import LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import state_to_wire

logger = logging.getLogger(__name__)


class EpochStore:
    def __init__(self, catalog: Catalog, copysets: CopysetCatalog, nodes: CopysetNodes) -> None:
        self._catalog = catalog
        self._copysets = copysets
        self._nodes = nodes
        self._awaited: dict[LogId, asyncio.Event] = {}  # that it changes

    # ---- what nodes ask

    async def answer(self, node: NodeId | None, request: pb.EpochStoreRequest) -> pb.CopysetState:
        """The state as it is then."""
        if node is None:
            raise Unauthorized("epochs are for storage nodes, on the connection they registered on")
        kinds, loglet, taken = pb.EpochStoreRequest, request.loglet_id, False
        match request.kind:
            case kinds.GET:
                await self.begin(self._segment(loglet))
            case kinds.ACTIVATE:
                taken = await self._activate(loglet, node, request.expected)
            case kinds.SET_CLEAN:
                clean = SetClean(loglet, request.by, request.epoch, request.tail)
                await self._change(loglet, lambda state: log_state.set_clean(state, clean))
            case _:
                raise InvalidArgument(f"the epoch store takes no requests of kind {request.kind}")
        message = self.to_wire(self._record(loglet))
        message.taken = taken
        return message

    async def _activate(self, loglet: LogId, node: NodeId, expected: int) -> bool:
        """Whether it took the epoch. One that the node has already it may have used, before it was
        started anew: it must not think that it is new."""
        segment = self._segment(loglet)
        await self.begin(segment)
        is_taken = False

        def activated(state: LogState) -> LogState:
            nonlocal is_taken
            is_taken = state.epoch == expected and not state.closed
            if not is_taken:
                return state
            return log_state.take_epoch(state, node, self.next_nodeset(segment, state))

        state = await self._change(loglet, activated)
        if is_taken:
            logger.info("segment %d: node %d took epoch %d", loglet, node, state.epoch)
        return is_taken

    def to_wire(self, record: CopysetRecord) -> pb.CopysetState:
        message = state_to_wire(record.loglet, record.state, self._nodes.known())
        message.log_stream_id = record.stream_id
        return message

    # ---- what the metadata repository does itself

    async def begin(self, segment: Segment) -> None:
        """Let it have epochs, the first one above all positions before it. Fine if it began."""
        if not segment.start:
            raise Unavailable(f"segment {segment.loglet} has not begun yet: try again")
        if not self._record(segment.loglet).begun:
            await self._copysets.change(
                segment.loglet, lambda record: begun_at(record, segment.start)
            )
            logger.info("segment %d begins at %d", segment.loglet, segment.start)
            self.tell(segment.loglet)

    async def take_epoch(
        self, loglet: LogId, node: NodeId, expected: Epoch, *, closed: bool
    ) -> CopysetRecord | None:
        """For a node that has not asked. With `closed` it takes no appends, for good. None: another
        one than the expected is the newest, maybe one that the node took itself and had already."""
        segment = self._segment(loglet)
        await self.begin(segment)
        is_ours = False

        def taken(state: LogState) -> LogState:
            nonlocal is_ours
            is_ours = state.epoch == expected
            if not is_ours:
                return state
            nodeset = self.next_nodeset(segment, state)
            return log_state.take_epoch(state, node, nodeset, closed=closed)

        state = await self._change(loglet, taken)
        return replace(self._record(loglet), state=state) if is_ours else None

    async def trim(self, loglet: LogId, lsn: Lsn) -> None:
        await self._change(loglet, lambda state: log_state.trim(state, lsn))

    def next_nodeset(self, segment: Segment, state: LogState) -> tuple[Member, ...]:
        size = size_of(segment.settings)
        return log_state.next_nodeset(segment.loglet, state, self._nodes.usable(), size)

    async def until(self, loglet: LogId, true: Callable[[LogState], bool]) -> LogState:
        """Wait; NotFound if it is deleted."""
        while not true(self._record(loglet).state):
            await self._awaited.setdefault(loglet, asyncio.Event()).wait()
        return self._record(loglet).state

    # ---- records

    async def _change(self, loglet: LogId, change: Callable[[LogState], LogState]) -> LogState:
        before = self._record(loglet).state

        def changed(record: CopysetRecord) -> CopysetRecord:
            state = change(record.state)
            holders = dict.fromkeys((*record.holders, *sorted(log_state.holders(state))))
            return replace(record, state=state, holders=tuple(holders))

        after = (await self._copysets.change(loglet, changed)).state
        if after != before:
            self.tell(loglet)
        return after

    def tell(self, loglet: LogId) -> None:
        """It changed, or is gone."""
        if (awaited := self._awaited.pop(loglet, None)) is not None:
            awaited.set()

    def _segment(self, loglet: LogId) -> Segment:
        record = self._copysets.get(loglet)
        log = None if record is None else self._catalog.log_of(record)
        segment = None if log is None else log.segment_of(loglet)
        if segment is None:
            raise _gone(loglet)
        return segment

    def _record(self, loglet: LogId) -> CopysetRecord:
        record = self._copysets.get(loglet)
        if record is None:
            raise _gone(loglet)
        return record


def begun_at(record: CopysetRecord, start: int) -> CopysetRecord:
    """As it is once its segment has begun there."""
    if record.begun:
        return record
    newest = record.state.history[-1]
    state = log_state.first_state(newest.nodeset, newest.replication, start)
    return replace(record, state=state, begun=True)


def _gone(loglet: LogId) -> NotFound:
    return NotFound(f"there is no segment {loglet} of protocol copyset")

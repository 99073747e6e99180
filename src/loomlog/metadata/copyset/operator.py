"""Operators' requests about copyset loglets: which nodes store new entries, and which sequences.

Both need another epoch, which the recoveries take. An answer waits for it, but not for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from loomlog.core.copyset.log_state import choose, is_recovered
from loomlog.core.copyset.messages import LogState
from loomlog.errors import InvalidArgument, NotFound
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.records import CopysetRecord
from loomlog.metadata.copyset.recoveries import Recoveries
from loomlog.metadata.copyset.status import CopysetStatus
from loomlog.wire import loomlog_pb2 as pb

WAIT_S: Final = 5.0  # for a new epoch; less than a client waits for its answer


class CopysetOperator:
    """Carries out operators' commands about copyset loglets."""

    def __init__(self, epochs: EpochStore, recoveries: Recoveries, status: CopysetStatus) -> None:
        self._catalog, self._records, self._nodes = epochs.catalog, epochs.records, epochs.nodes
        self._epochs, self._recoveries, self._status = epochs, recoveries, status
        self.changes: Final[Mapping[int, Callable[[pb.ChangeStream], Awaitable[pb.Changed]]]] = {
            pb.ChangeStream.RENEW: self._renew,
            pb.ChangeStream.PRIMARY: self._primary,
        }

    async def _renew(self, request: pb.ChangeStream) -> pb.Changed:
        record = self._record(request)
        before = record.state.history[-1].nodeset
        self._epochs.renewing.add(record.loglet)
        self._recoveries.look(record)
        try:
            changed = await self._comes_true(
                record, lambda state: state.history[-1].nodeset != before
            )
        finally:
            self._epochs.renewing.discard(record.loglet)
        if not changed:
            reason = self._status.condition(record) or "it needs no other nodes"
            return pb.Changed(done=f"stream {record.stream_id} is as before", next=reason)
        return pb.Changed(
            done=f"stream {record.stream_id} stores new entries on other nodes",
            next="the entries that it has stay where they are",
        )

    async def _primary(self, request: pb.ChangeStream) -> pb.Changed:
        record, node = self._record(request), request.to_node
        self._catalog.node(node)
        stream, state = f"stream {record.stream_id}", record.state
        if state.closed:
            raise InvalidArgument(f"{stream} takes no more appends: no node sequences it")
        if not self._nodes.reachable(node) or self._nodes.hands_over(node):
            raise InvalidArgument(f"node {node} is away, drained or restarted: choose another one")
        stays = f"it does so whenever node {node} is there, until you choose another one"
        if state.chosen == state.sequencer == node:
            return pb.Changed(done=f"node {node} sequences {stream} already", next=stays)
        await self._epochs.change(record.loglet, partial(choose, node=node))
        if not state.sequencer:
            what = f"node {node} is to sequence {stream}"
            return pb.Changed(done=what, next="it does so from the first append on")
        self._recoveries.node_chosen(record.loglet, node)
        now = self._record(request)
        if await self._comes_true(now, lambda s: s.sequencer == node and is_recovered(s)):
            return pb.Changed(done=f"node {node} sequences {stream}", next=stays)
        reason = self._status.condition(self._record(request))
        return pb.Changed(
            done=f"node {node} is to sequence {stream}",
            next=f"that waits: {reason or 'another epoch begins'}",
        )

    async def _comes_true(self, record: CopysetRecord, true: Callable[[LogState], bool]) -> bool:
        try:
            async with asyncio.timeout(WAIT_S):
                await self._epochs.until(record.loglet, true)
        except TimeoutError:
            return False
        return True

    def _record(self, request: pb.ChangeStream) -> CopysetRecord:
        record = self._records.of_stream(request.log_stream_id)
        if record is None:
            raise NotFound(f"stream {request.log_stream_id} was deleted")
        return record

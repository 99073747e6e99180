"""Operators' requests about copyset loglets: which nodes store new entries, and which sequences.

Both need another epoch, which the recoveries take. An answer waits for it, but not for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from loomlog.core.copyset.log_state import choose, is_recovered
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import Member, choose_nodeset
from loomlog.core.copyset.nodeset_choice import NodesetAim, last_choice, why_not_narrowed, without
from loomlog.errors import Busy, InvalidArgument, NotFound
from loomlog.limits import NODESET_MAX
from loomlog.metadata.background import Background
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.records import CopysetRecord, nodes_of
from loomlog.metadata.copyset.recoveries import Recoveries
from loomlog.metadata.copyset.status import CopysetStatus
from loomlog.metadata.copyset.synchroniser import Synchroniser
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb

WAIT_S: Final = 5.0  # for a new epoch; less than a client waits for its answer

_STAYS: Final = "the entries that it has stay where they are"


class CopysetOperator:
    """Carries out operators' commands about copyset loglets."""

    def __init__(
        self,
        epochs: EpochStore,
        recoveries: Recoveries,
        status: CopysetStatus,
        background: Background,
    ) -> None:
        self._catalog, self._records, self._nodes = epochs.catalog, epochs.records, epochs.nodes
        self._epochs, self._recoveries, self._status = epochs, recoveries, status
        self._synchroniser = Synchroniser(epochs, background)
        self.changes: Final[Mapping[int, Callable[[pb.ChangeStream], Awaitable[pb.Changed]]]] = {
            pb.ChangeStream.ADD: self._add,
            pb.ChangeStream.REMOVE: self._remove,
            pb.ChangeStream.RENEW: self._renew,
            pb.ChangeStream.PRIMARY: self._primary,
            pb.ChangeStream.SYNC: self._sync,
        }

    # ---- nodesets

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
        done = f"stream {record.stream_id} stores new entries on other nodes"
        return pb.Changed(done=done, next=_STAYS)

    async def _add(self, request: pb.ChangeStream) -> pb.Changed:
        """Widen the nodeset: by these nodes, or by the one that would be chosen next."""
        log = self._catalog.log(request.log)
        record = self._records.get(log.layout.active.loglet)
        if record is None or not log.layout.takes_appends(record.loglet):
            raise Busy(f"log {log.name!r} is just being switched: try again")
        nodeset, stream = record.state.history[-1].nodeset, f"stream {record.stream_id}"
        joining = self._joining(record, tuple(request.nodes))
        if not joining:
            names = _names(request.nodes)
            done = f"{stream} stores new entries on {names} already"
            return pb.Changed(done=done, next="nothing changes", log_stream_id=record.stream_id)
        if len(nodeset) + len(joining) > NODESET_MAX:
            raise InvalidArgument(f"a nodeset has at most {NODESET_MAX} members: name fewer nodes")
        names = _names(member.node for member in joining)
        changed = await self._change(
            record,
            lambda aim: aim.widen(nodeset, joining),
            lambda after: set(joining).issubset(after),
            f"{stream} stores new entries on {names}, too",
            f"{names} is to join the nodeset of {stream}",
        )
        changed.log_stream_id = record.stream_id
        return changed

    def _joining(self, record: CopysetRecord, nodes: tuple[NodeId, ...]) -> list[Member]:
        """Return the members that join the nodeset; none if it has all of these nodes."""
        for node in nodes:
            self._catalog.node(node)
        if len(set(nodes)) < len(nodes):
            raise InvalidArgument("a node is named twice: name different nodes")
        usable = {member for member in self._nodes.usable() if self._nodes.takers([member.shard])}
        others = usable.difference(record.state.history[-1].nodeset)
        if nodes:
            if lacking := sorted(set(nodes).difference(member.node for member in usable)):
                raise InvalidArgument(
                    f"node {lacking[0]} is away, drained, or takes no copies: see `loom node list`"
                )
            leaving = {member for member in usable if member.node in record.aim.left}
            return sorted(member for member in others | leaving if member.node in nodes)
        new = [member for member in others if member.node not in nodes_of(record.state)]
        welcome = without(new, record.aim.left) or new  # rather than one that was sent away
        if not welcome:
            raise InvalidArgument(
                f"there is no other node for stream {record.stream_id}: start another one"
            )
        (best,) = choose_nodeset(record.loglet, welcome, 1)
        return sorted(member for member in others if member.node == best.node)

    async def _remove(self, request: pb.ChangeStream) -> pb.Changed:
        """Narrow the nodeset: by these nodes, or by the one that was chosen last."""
        record, nodes = self._record(request), tuple(request.nodes)
        state, stream = record.state, f"stream {record.stream_id}"
        if state.closed or not self._takes_appends(record):
            raise InvalidArgument(
                f"{stream} takes no more appends: it is removed when all its entries are trimmed"
            )
        nodeset = state.history[-1].nodeset
        for node in nodes:
            self._catalog.node(node)
            if not any(member.node == node for member in nodeset):
                members = _names(dict.fromkeys(member.node for member in nodeset))
                raise InvalidArgument(f"{stream} stores new entries on {members}, not on {node}")
        leaving = nodes or (last_choice(record.loglet, nodeset),)
        if why := why_not_narrowed(state, leaving):
            raise InvalidArgument(
                f"{stream} needs {_names(leaving)}: {why}; `loom stream add LOG` adds one first"
            )
        names = _names(leaving)
        return await self._change(
            record,
            lambda aim: aim.narrow(nodeset, leaving),
            lambda after: len(without(after, leaving)) == len(after),
            f"{stream} stores no new entries on {names}",
            f"{names} is to leave the nodeset of {stream}",
        )

    async def _change(
        self,
        record: CopysetRecord,
        change: Callable[[NodesetAim], NodesetAim],
        is_changed: Callable[[Collection[Member]], bool],
        done: str,
        begun: str,
    ) -> pb.Changed:
        """Note what is wanted of the nodeset, and wait for the epoch that has it."""
        before = record.state.history[-1].nodeset

        def changed(now: CopysetRecord) -> CopysetRecord:
            if now.state.history[-1].nodeset != before:
                raise Busy(f"the nodeset of stream {now.stream_id} is just changing: try again")
            return replace(now, aim=change(now.aim))

        after = await self._records.change(record.loglet, changed)
        if not after.state.sequencer:
            return pb.Changed(done=begun, next="it does so with the first append")
        self._recoveries.look(after)
        if await self._comes_true(
            after, lambda state: is_changed(state.history[-1].nodeset) and is_recovered(state)
        ):
            return pb.Changed(done=done, next=_STAYS)
        reason = self._status.condition(self._records.get(record.loglet) or after)
        return pb.Changed(done=begun, next=f"that waits: {reason or 'another epoch begins'}")

    # ---- sequencers

    async def _primary(self, request: pb.ChangeStream) -> pb.Changed:
        record, node = self._record(request), request.to_node
        stream, state = f"stream {record.stream_id}", record.state
        if state.closed:
            raise InvalidArgument(f"{stream} takes no more appends: no node sequences it")
        if not node:
            return await self._no_primary(record)
        self._catalog.node(node)
        if not self._nodes.reachable(node) or self._nodes.hands_over(node):
            raise InvalidArgument(f"node {node} is away, drained or restarted: choose another one")
        stays = (
            f"it does so whenever node {node} is there, until you choose another one, or any with "
            f"`loom stream primary {record.stream_id} --any`"
        )
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

    async def _no_primary(self, record: CopysetRecord) -> pb.Changed:
        stream, before = f"stream {record.stream_id}", record.state.chosen
        if not before:
            return pb.Changed(done=f"any node may sequence {stream} already", next="")
        await self._epochs.change(record.loglet, partial(choose, node=0))
        done = f"any node may sequence {stream}, not only node {before}"
        return pb.Changed(done=done, next="the present one continues until the next epoch")

    # ---- copies

    async def _sync(self, request: pb.ChangeStream) -> pb.Changed:
        for node in (request.from_node, request.to_node):
            self._catalog.node(node)
        return await self._synchroniser.sync(
            self._record(request), request.from_node, request.to_node
        )

    # ---- all

    async def _comes_true(self, record: CopysetRecord, true: Callable[[LogState], bool]) -> bool:
        try:
            async with asyncio.timeout(WAIT_S):
                await self._epochs.until(record.loglet, true)
        except TimeoutError:
            return False
        return True

    def _takes_appends(self, record: CopysetRecord) -> bool:
        log = self._catalog.log_of(record)
        return log is not None and log.layout.takes_appends(record.loglet)

    def _record(self, request: pb.ChangeStream) -> CopysetRecord:
        if request.HasField("part"):
            raise InvalidArgument(f"stream {request.log_stream_id} has no chains: leave out part")
        record = self._records.of_stream(request.log_stream_id)
        if record is None:
            raise NotFound(f"stream {request.log_stream_id} was deleted")
        return record


def _names(nodes: Iterable[NodeId]) -> str:
    return " and ".join(f"node {node}" for node in dict.fromkeys(nodes))

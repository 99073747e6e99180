"""The storage nodes and their shards as copyset loglets see them: which may take records or
sequence, and orders to them over the connections that the nodes opened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final

from loomlog.core.copyset.messages import Done, Forget, LogState, NotHere, Trim
from loomlog.core.copyset.nodeset import (
    Member,
    choose_nodeset,
    index_of,
    node_of,
    sequencer_of,
    shard_name,
    shard_of,
)
from loomlog.core.copyset.record import Epoch, Lsn
from loomlog.core.segments import Settings
from loomlog.core.sizes import Measured
from loomlog.errors import LoomError, NotLeader, Unavailable
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import Losses, NodeRecord
from loomlog.metadata.copyset.records import CopysetRecord, losses_name
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.nodes.placement import LostNodes
from loomlog.types import LogId, NodeId, ShardId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import KnownNode, answer_from_wire, request_to_wire

logger = logging.getLogger(__name__)

NODESET_DEFAULT: Final = 20  # beyond this, more nodes do not spread the load better


class CopysetNodes:
    """The storage nodes as copyset loglets see them."""

    def __init__(
        self,
        catalog: Catalog,
        connected: ConnectedNodes,
        lost_nodes: LostNodes,
        request_timeout_s: float,
    ) -> None:
        self._catalog = catalog
        self._connected = connected
        self._lost_nodes = lost_nodes
        self._request_timeout_s = request_timeout_s
        self._losses: dict[ShardId, tuple[Losses, dict[LogId, Epoch]]] = {}  # as in the records
        # Returns whether a shard is away and its copies are given up; set by the keeper.
        self.is_given_up: Callable[[ShardId], bool] = lambda shard: False
        # Returns the nodes that failed to recover a loglet, the latest last; set by the keeper.
        self.avoided: Callable[[LogId], Sequence[NodeId]] = lambda loglet: ()
        self.alive = connected.alive
        self.silent = connected.silent
        self.reachable = connected.reachable
        self.is_stopping = connected.is_stopping

    def known(self) -> list[KnownNode]:
        """Return all nodes of the cluster, in the form sent to nodes and clients."""
        return [
            KnownNode(
                node_id,
                node.address,
                self.alive(node_id),
                self.hands_over(node_id),
                *self._full(node_id),
            )
            for node_id, node in sorted(self._catalog.nodes.items())
        ]

    def _full(self, node: NodeId) -> tuple[str, tuple[int, ...]]:
        """Return why shards of a node have no room, by the index of the shard."""
        indexes = self._catalog.nodes[node].shards
        conditions = {index: self._condition(shard_of(node, index)) for index in indexes}
        full = [i for i, c in conditions.items() if c.refuses_copies and not c.copies_fail]
        return (self._connected.complaints(node), tuple(full)) if full else ("", ())

    def sizes(self, record: CopysetRecord) -> dict[ShardId, int]:
        """Return roughly how many bytes each shard stores of a loglet, if it reported this."""
        sizes = {
            shard: self._connected.size_of(node_of(shard), record.loglet, index_of(shard))
            for shard in record.state.all_shards
        }
        return {shard: size for shard, size in sizes.items() if size is not None}

    def usable(self) -> set[Member]:
        """Return the shards that may be in a nodeset. Shards of a node that is away only briefly
        may stay."""
        shards = [
            (shard_of(node.node_id, index), node.location)
            for node in self._catalog.nodes.values()
            for index in node.shards
        ]
        return {Member(shard, place) for shard, place in shards if not self.is_unfit(shard)}

    def has(self, shard: ShardId) -> bool:
        """Return whether the node of a shard is alive, with its volume."""
        return self.alive(node_of(shard)) and self._is_known(shard)

    def can_ask(self, shard: ShardId) -> bool:
        return self.reachable(node_of(shard)) and self._is_known(shard)

    def can_open(self, shard: ShardId) -> bool:
        """Return whether nothing is known to be wrong with the copies of a shard."""
        return self._is_known(shard) and not self._condition(shard).stores_no_copies

    def takes_copies(self, shard: ShardId) -> bool:
        return self.can_ask(shard) and not self._condition(shard).refuses_copies

    def _is_known(self, shard: ShardId) -> bool:
        node = self._catalog.nodes.get(node_of(shard))
        return node is not None and index_of(shard) in node.shards

    def leaves(self, node: NodeId | None) -> bool:
        """Return whether a node is drained, or no longer part of the cluster."""
        record = None if node is None else self._catalog.nodes.get(node)
        return record is None or _leaves(record)

    def hands_over(self, node: NodeId | None) -> bool:
        """Return whether a node should sequence nothing: it leaves, or is about to be restarted."""
        return self.leaves(node) or (node is not None and self._connected.restart_left_s(node) > 0)

    def lost_through(self, shard: ShardId, loglet: LogId) -> Epoch:
        """Return the epoch up to which a shard may have lost copies of a loglet; 0: none."""
        record = self._catalog.nodes.get(node_of(shard))
        losses = record.losses_of(losses_name(shard)) if record else ()
        if not losses:
            return 0
        if shard not in self._losses or self._losses[shard][0] is not losses:
            self._losses[shard] = losses, {pair[0]: pair[1] for pair in losses}
        return self._losses[shard][1].get(loglet, 0)

    def losses(self, record: CopysetRecord) -> dict[ShardId, Epoch]:
        """Return up to which epoch each shard may have lost copies of a loglet; 0: none."""
        return {shard: self.lost_through(shard, record.loglet) for shard in record.holders}

    def is_drained(self, shard: ShardId) -> bool:
        """Return whether a volume is drained, or its node."""
        node = self._catalog.nodes.get(node_of(shard))
        return node is not None and index_of(shard) in node.draining_shards

    def is_unfit(self, shard: ShardId) -> bool:
        """Return whether a shard has to leave its nodesets."""
        node = node_of(shard)
        is_leaving = self.leaves(node) or self.is_drained(shard) or self.is_given_up(shard)
        return is_leaving or self._lost_nodes.lost(node) or not self.can_open(shard)

    def _condition(self, shard: ShardId) -> pb.ShardCondition:
        reported = self._connected.restrictions(node_of(shard)).shards
        found = (condition for condition in reported if condition.shard == index_of(shard))
        return next(found, pb.ShardCondition())

    def life(self, node: NodeId) -> int:
        record = self._catalog.nodes.get(node)
        return 0 if record is None else record.life

    def lives(self) -> dict[NodeId, int]:
        return {node.node_id: node.life for node in self._catalog.nodes.values()}

    def takers(self, shards: Collection[ShardId]) -> list[ShardId]:
        """Return the shards that accept copies."""
        return [shard for shard in shards if self.has(shard) and self._is_willing(shard)]

    def _is_willing(self, shard: ShardId) -> bool:
        condition = self._condition(shard)
        return not (condition.refuses_copies or condition.stores_no_copies)

    def refusing(self, state: LogState) -> dict[ShardId, str]:
        """Return the shards of a loglet that accept no new copies, with the reasons."""
        return {
            shard: self._connected.complaints(node_of(shard))
            for shard in self.alive_of(state)
            if self._condition(shard).refuses_copies
        }

    def failing(self, state: LogState) -> dict[ShardId, str]:
        """Return those of them that cannot take part in a recovery either."""
        refusing = self.refusing(state).items()
        return {shard: why for shard, why in refusing if self._condition(shard).copies_fail}

    def lost_in_s(self, node: NodeId) -> float:
        return max(0.0, self._lost_nodes.lost_in_s(node))

    def first_nodeset(self, loglet: LogId, settings: Settings) -> tuple[Member, ...]:
        """Choose among the shards that are there and have room; if these are too few, among all."""
        there = {
            member
            for member in self.usable()
            if self._connected.takes_more(member.node) and self._is_willing(member.shard)
        }
        nodes = {member.node for member in there}
        if len(nodes) < settings.replicas or len(there) < settings.nodeset:
            there = {
                Member(shard_of(node.node_id, index), node.location)
                for node in self._catalog.nodes.values()
                for index in node.shards
                if not (_leaves(node) or index in node.draining_shards)
            }
        return choose_nodeset(loglet, there, size_of(settings))

    def sequencer(self, loglet: LogId, state: LogState, *, without: NodeId = 0) -> NodeId | None:
        """Return the reachable node that should sequence a loglet: if possible none that failed to
        recover it, or else the one whose failure was the longest ago, and last of all the one that
        is to be replaced (`without`). Without failures nodes and clients make the same choice;
        otherwise they get it with the state (`EpochStore.to_wire`)."""
        there = [node for node in self._connected.all_reachable() if node in self._catalog.nodes]
        staying = [node for node in there if not self.hands_over(node)] or there
        avoided = [node for node in self.avoided(loglet) if node != without]
        avoided += [without] if without else []
        others = [node for node in staying if node not in avoided]
        failed = [node for node in avoided if node in staying]
        return sequencer_of(loglet, dict.fromkeys(others or failed[:1], 1.0), state.chosen)

    def alive_of(self, state: LogState) -> list[ShardId]:
        """Return the shards of all nodesets of a loglet that are alive."""
        return list(filter(self.has, state.all_shards))

    # ---- orders and questions

    async def tell(
        self, shards: list[ShardId], order: Trim | Forget, record: CopysetRecord
    ) -> list[ShardId]:
        """Send shards an order; return those that obeyed or have no data of the loglet."""
        stamp = record.state.stamp
        done = await asyncio.gather(*(self._is_done(shard, order, stamp) for shard in shards))
        return [shard for shard, is_done in zip(shards, done, strict=True) if is_done]

    async def _is_done(self, shard: ShardId, order: Trim | Forget, stamp: int) -> bool:
        message, _ = request_to_wire(shard, order, stamp)
        try:
            answer, payload = await self._connected.exchange(
                node_of(shard), pb.Frame(copyset_request=message), (), self._request_timeout_s
            )
            return isinstance(answer_from_wire(answer.copyset_answer, payload), Done | NotHere)
        except LoomError as error:
            logger.info("segment %d: node %s: %s", order.log, shard_name(shard), error)
            return False

    async def recover(self, node: NodeId, state: pb.CopysetState) -> None:
        """Let a node recover all epochs before the one that was taken for it. After a Timeout the
        recovery continues; while the node is connected, another order waits for the same one."""
        await self._ask(node, pb.Frame(recover_copyset=pb.RecoverCopyset(state=state)))

    async def landmarks(
        self, shards: list[ShardId], loglet: LogId, timestamp_us: int
    ) -> dict[ShardId, pb.CopysetLandmarks]:
        """Return the landmarks of the shards that answer."""

        def ask(shard: ShardId) -> Coroutine[Any, Any, pb.Frame]:
            question = pb.FindCopysetLandmarks(
                loglet_id=loglet, timestamp_us=timestamp_us, shard=index_of(shard)
            )
            return self._ask(node_of(shard), pb.Frame(find_copyset_landmarks=question))

        answers = await asyncio.gather(*map(ask, shards), return_exceptions=True)
        marks = {}
        for shard, answer in zip(shards, answers, strict=True):
            if isinstance(answer, pb.Frame):
                marks[shard] = answer.copyset_landmarks
            elif not isinstance(answer, LoomError):
                raise answer
        return marks

    async def measure(
        self, shards: list[ShardId], loglet: LogId, first: Lsn, last: Lsn, clean: Lsn
    ) -> list[Measured]:
        """Return the measurements of the shards that answer."""

        def ask(shard: ShardId) -> Coroutine[Any, Any, pb.Frame]:
            question = pb.MeasureCopyset(
                loglet_id=loglet, shard=index_of(shard), first=first, last=last, clean=clean
            )
            return self._ask(node_of(shard), pb.Frame(measure_copyset=question))

        answers = await asyncio.gather(*map(ask, shards), return_exceptions=True)
        found = []
        for answer in answers:
            if isinstance(answer, pb.Frame):
                found.append(Measured(answer.measured.through, answer.measured.size))
            elif not isinstance(answer, LoomError):
                raise answer
        return found

    async def find_tail(self, node: NodeId, loglet: LogId) -> pb.CopysetTail:
        """Ask the sequencer on a node for the tail; it is started if it belongs there."""
        question = pb.FindCopysetTail(loglet_id=loglet)
        return (await self._ask(node, pb.Frame(find_copyset_tail=question))).copyset_tail

    async def fill(self, shard: ShardId, loglet: LogId) -> int:
        """Let a shard complete its records on short copysets; return the number that is left. After
        a Timeout the work continues, and another request waits for it."""
        order = pb.Frame(fill_copyset=pb.FillCopyset(loglet_id=loglet, shard=shard))
        return (await self._ask(node_of(shard), order)).copyset_filled.left

    async def check(
        self,
        shard: ShardId,
        loglet: LogId,
        suspects: Collection[ShardId],
        epochs: Collection[Epoch] = (),
        *,
        newest: bool = False,
    ) -> pb.CopysetChecked:
        """Let a shard give the suspects the records that they lack, with `newest` also of epochs
        that are not recovered, or, without suspects, search some epochs for lost entries. After a
        Timeout the work continues, and another request waits for it."""
        order = pb.CheckCopyset(
            loglet_id=loglet,
            shard=shard,
            suspects=sorted(suspects),
            epochs=epochs,
            newest=newest,
        )
        return (await self._ask(node_of(shard), pb.Frame(check_copyset=order))).copyset_checked

    async def hear(self, shard: ShardId, loglet: LogId) -> bool:
        """Let a shard report what it knows of losses in epochs that were recovered without it.
        Return False if its node is too old to know the order."""
        order = pb.CheckCopyset(loglet_id=loglet, shard=shard, reports=True)
        answer = await self._ask(node_of(shard), pb.Frame(check_copyset=order))
        return answer.copyset_checked.reported

    async def finish(self, node: NodeId, loglet: LogId) -> None:
        """Let the sequencer on a node end, if any, and report its end to the epoch store."""
        question = pb.FindCopysetTail(loglet_id=loglet, finish=True)
        await self._ask(node, pb.Frame(find_copyset_tail=question))

    async def _ask(self, node: NodeId, frame: pb.Frame) -> pb.Frame:
        try:
            return await self._connected.request(node, frame, self._request_timeout_s)
        except NotLeader as error:  # about the loglet's sequencer, not the metadata's leader
            raise Unavailable(str(error)) from None


def size_of(settings: Settings) -> int:
    """Return the wanted number of shards in the nodeset."""
    return settings.nodeset or max(NODESET_DEFAULT, settings.replicas)


def _leaves(node: NodeRecord) -> bool:
    return node.draining or node.removing

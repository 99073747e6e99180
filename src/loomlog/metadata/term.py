"""A term: the time for which this metadata repository leads, and the services that run during it.

With the embedded store a process has one term. Among several metadata repositories a term begins
with a takeover and ends with the next one. Its state ends with it, and a fence refuses its writes
once it no longer leads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from loomlog.config import MetadataSettings
from loomlog.core.backoff import Backoff
from loomlog.core.conditions import Condition
from loomlog.core.quorum.member import Leader
from loomlog.errors import LoomError, NotLeader
from loomlog.metadata.background import Background
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.conditions import ClusterConditions
from loomlog.metadata.leases import ClusterLeases
from loomlog.metadata.logs.admin import Admin
from loomlog.metadata.logs.arrivals import Arrivals
from loomlog.metadata.logs.decisions import DecisionTrimmer
from loomlog.metadata.logs.retention import RetentionTrimmer
from loomlog.metadata.logs.sizes import Sizes
from loomlog.metadata.logs.switch import LogSwitches
from loomlog.metadata.nodes.clocks import Clocks
from loomlog.metadata.nodes.connected_nodes import (
    RECONNECT_GRACE_S,
    ConnectedNode,
    ConnectedNodes,
)
from loomlog.metadata.nodes.node_operator import NodeOperator
from loomlog.metadata.nodes.placement import LostNodes, ReplicaPlacement
from loomlog.metadata.nodes.rebalancer import Rebalancer
from loomlog.metadata.nodes.registration import Registration
from loomlog.metadata.protocol import KeeperContext, Keepers
from loomlog.metadata.registers import ClusterRegisters
from loomlog.metadata.registry import load_keepers
from loomlog.metadata.rollback.gate import Gate, GatedStore, ObservedStore
from loomlog.metadata.rounds import RoundLog
from loomlog.metadata.status import StatusView
from loomlog.metadata.store.contract import MetaStore
from loomlog.metadata.timeline import Timeline, TimelineWatch
from loomlog.net.endpoints import is_refused
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.events import Change
from loomlog.wire.link import Connection

logger = logging.getLogger(__name__)

PROBES: Final = Backoff(0.005, 0.2)  # probe of a node that disconnected and may still listen

ChangeMembers = Callable[["Term", pb.ChangeMetadata], Awaitable[pb.Changed]]


@dataclass(frozen=True, slots=True)
class Mandate:
    """The resources of a leader."""

    leader: Leader  # this process
    store: MetaStore  # fenced: refuses writes once another member leads
    round_log: RoundLog
    confirm: Callable[[], Awaitable[None]]  # NotLeader, or this epoch still held after the call
    members: Callable[[], Sequence[pb.MetadataMember]]  # of the metadata repository, now
    change_members: ChangeMembers


class Term:
    """All services of a leader. Created by `begin`."""

    def __init__(
        self,
        settings: MetadataSettings,
        mandate: Mandate,
        store: MetaStore,
        catalog: Catalog,
        registers: ClusterRegisters,
        leases: ClusterLeases,
        gate: Gate,
        new_secret: Callable[[], str],
        conditions: Callable[[], Iterable[Condition]],
    ) -> None:
        self.leader = mandate.leader
        self.store = store
        self.gate = gate
        self.confirm = mandate.confirm
        self.change_members = mandate.change_members
        self.over: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.catalog = catalog
        self.leases = leases
        self.registers = registers
        self._at_end = AsyncExitStack()  # undone in reverse
        self._background = Background()
        self.keepers = Keepers()  # one of each protocol, once `begin` returns
        self._wire_nodes(settings)
        self._wire_logs(settings)
        self._wire_status(mandate, settings, new_secret, conditions)

    @classmethod
    async def begin(
        cls,
        settings: MetadataSettings,
        mandate: Mandate,
        new_secret: Callable[[], str],
        conditions: Callable[[], Iterable[Condition]],
    ) -> Term:
        """Load the metadata, and continue where the rounds ended. `conditions` returns the
        conditions of this process."""
        gate = Gate(mandate.store, lambda error: term._gate_shut(error))
        store = GatedStore(mandate.store, gate)
        has_rounds = bool(mandate.round_log.read())
        catalog = await Catalog.load(store, settings.cluster_id, new_secret, has_rounds=has_rounds)
        leases = await ClusterLeases.load(store)
        registers = await ClusterRegisters.load(store, leases)
        term = cls(
            settings, mandate, store, catalog, registers, leases, gate, new_secret, conditions
        )
        await load_keepers(term.keepers, term._keeper_context(settings, mandate))
        await gate.begin(new_secret(), catalog.nodes, term.node_operator.holders)
        term._start()
        return term

    # ---- wiring

    def _wire_nodes(self, settings: MetadataSettings) -> None:
        catalog = self.catalog
        self._watch: TimelineWatch | None = None
        self.nodes = ConnectedNodes(settings.failure_detection_s, self._liveness_changed)
        self.clocks = Clocks(
            self.nodes,
            lambda: catalog.nodes,
            lambda: time.time(),  # looked up each time, because a simulation replaces it
        )
        replace_after_s = settings.replace_after_s
        if replace_after_s is None:
            replace_after_s = settings.failure_detection_s
        self._lost_nodes = LostNodes(catalog, self.nodes, replace_after_s)
        self._placement = ReplicaPlacement(catalog, self.nodes)
        self.node_operator = NodeOperator(catalog, self.nodes, self.keepers)

    def _wire_logs(self, settings: MetadataSettings) -> None:
        self.switching = LogSwitches(self.catalog, self.keepers, self._background)
        self.admin = Admin(self.catalog, self.nodes, self.keepers, self._placement, self.switching)
        self.rebalancer = Rebalancer(self.catalog, self.keepers, self._placement)
        self.retention = RetentionTrimmer(
            self.catalog,
            self.admin,
            self.registers,
            self.keepers,
            self._background,
            Arrivals(self.store, self.catalog, self.keepers, self.clocks.latest_us),
            Sizes(self.store, self.catalog, self.keepers),
            self.clocks.oldest_kept_us,
            interval_s=settings.retention_interval_s,
        )
        self.decisions = DecisionTrimmer(
            self.store,
            self.catalog,
            self.keepers,
            self.admin,
            interval_s=settings.retention_interval_s,
        )

    def _wire_status(
        self,
        mandate: Mandate,
        settings: MetadataSettings,
        new_secret: Callable[[], str],
        conditions: Callable[[], Iterable[Condition]],
    ) -> None:
        self.view = StatusView(
            catalog=self.catalog,
            nodes=self.nodes,
            keepers=self.keepers,
            leader=mandate.leader,
            metadata_members=mandate.members,
            conditions=ClusterConditions(
                self.catalog,
                self.nodes,
                self.keepers,
                self.node_operator,
                self.clocks,
                self.retention.conditions,
                conditions,
                self.gate,
            ),
            gate=self.gate,
            groups=self.registers.groups,
        )
        self.timeline = Timeline(ObservedStore(mandate.store, self.gate), lambda: time.time())
        self.registration = Registration(
            catalog=self.catalog,
            nodes=self.nodes,
            keepers=self.keepers,
            gate=self.gate,
            heartbeat_s=settings.heartbeat_s,
            metadata_addresses=self.view.metadata_addresses,
            new_secret=new_secret,
        )

    def _keeper_context(self, settings: MetadataSettings, mandate: Mandate) -> KeeperContext:
        return KeeperContext(
            settings=settings,
            leader_epoch=mandate.leader.epoch,
            round_log=mandate.round_log,
            store=self.store,
            catalog=self.catalog,
            nodes=self.nodes,
            lost_nodes=self._lost_nodes,
            placement=self._placement,
            background=self._background,
            clocks=self.clocks,
            forget_if_removed=self.node_operator.forget_if_removed,
            contradicted=self.gate.shut,
            failed=self.end_with,
        )

    # ---- life

    def _start(self) -> None:
        keepers = self.keepers.values()
        self._at_end.push_async_callback(self.gate.stop)
        for keeper in keepers:
            self._at_end.callback(keeper.end)
        self.nodes.start(self.catalog.nodes)
        self._at_end.callback(self.nodes.stop)
        self._at_end.push_async_callback(self._background.stop)
        for keeper in keepers:
            keeper.start()
        self.switching.start()
        self._background.spawn(self.retention.run(), "retention")
        self._background.spawn(self.decisions.run(), "decisions on transactions")

    def watch_timeline(self) -> None:
        """Keep the timeline up to date until the end of the term."""
        subject = f"metadata repository {self.leader.member}"
        self.timeline.note(Change("info", subject, f"leads, in epoch {self.leader.epoch}"))
        self._watch = watch = TimelineWatch(
            self.timeline, self.catalog, self.keepers, self.view, self.gate
        )
        self._background.spawn(watch.run(), "timeline")

    async def end(self) -> None:
        """Stop all work of the term; nothing of it runs after this returns."""
        await self._at_end.aclose()

    def end_with(self, error: BaseException) -> None:
        """End the term. With NotLeader, another member leads. With any other error, rounds cannot
        be made durable, so this process must not commit anything more."""
        if not self.over.done():
            self.over.set_result(error)

    # ---- events

    def _gate_shut(self, error: LoomError) -> None:
        """Send no more orders; queries are still answered."""
        self.nodes.disconnect_all(error)
        for keeper in self.keepers.values():
            keeper.stop()
        self._stopping = asyncio.get_running_loop().create_task(self._background.stop())

    def _liveness_changed(self, node: NodeId, alive: bool) -> None:
        logger.info("node %d is %s", node, self.nodes.standing(node).name.lower())
        for keeper in self.keepers.values():
            keeper.node_changed(node, alive=alive)
        if self._watch is not None:
            self._watch.wake()

    def note_generations(self, node: NodeId, numbers: Sequence[int]) -> None:
        """Record the generations of the data on a node's volumes, which reveal older copies."""
        known = self.catalog.nodes.get(node)
        if known is None:
            return
        reported = zip(known.shards, numbers, strict=False)
        if grown := {shard: n for shard, n in reported if n > known.generations.get(shard, 0)}:
            noting = self.catalog.note_generations(node, grown)
            self._background.spawn(noting, f"generations of node {node}")

    def connection_closed(self, connection: Connection) -> None:
        known = self.nodes.lost(connection)
        if known is not None:
            logger.info("node %d disconnected", known.node_id)
            self._background.spawn(self._probe(known), f"probe of node {known.node_id}")

    async def _probe(self, known: ConnectedNode) -> None:
        """Find out whether a node that disconnected has ended. It may be just about to end."""
        attempts = 0
        while self.nodes.may_come_back(known) and known.node_id in self.catalog.nodes:
            address = self.catalog.nodes[known.node_id].address
            if await is_refused(address, RECONNECT_GRACE_S):
                if self.nodes.may_come_back(known):
                    self.nodes.refused(known)
                return
            await asyncio.sleep(PROBES.delay_s(attempts))
            attempts += 1


def explained(error: BaseException) -> LoomError:
    """Return why a term ended, for clients and other members."""
    if isinstance(error, NotLeader):
        return error
    return LoomError(f"the round log failed: {error}")

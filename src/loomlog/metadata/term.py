"""A term: the time for which this metadata repository leads, and all that works meanwhile.

With the embedded store a process is one term. Among several metadata repositories a term begins
with a takeover and ends when somebody else took over; whatever it knew dies with it, and all that
it wrote went through a fence that falls with its leadership.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from loomlog.config import MetadataSettings
from loomlog.core.quorum.member import Leader
from loomlog.errors import LoomError, NotLeader
from loomlog.metadata.admin import Admin
from loomlog.metadata.background import Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.chained.catalog import ChainedCatalog
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.nodes import ChainNodes
from loomlog.metadata.chained.segments import ChainedSegments
from loomlog.metadata.chained.sequencers import Sequencers
from loomlog.metadata.chained.times import ChainedTimes
from loomlog.metadata.chained.upkeep import Upkeep
from loomlog.metadata.committer import Committer
from loomlog.metadata.copyset.catalog import CopysetCatalog
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.nodes import CopysetNodes
from loomlog.metadata.copyset.orders import CopysetOrders
from loomlog.metadata.copyset.recoveries import Recoveries
from loomlog.metadata.copyset.removal import Removal as CopysetRemoval
from loomlog.metadata.copyset.segments import CopysetSegments
from loomlog.metadata.copyset.times import CopysetTimes
from loomlog.metadata.copyset.trimming import Trimming as CopysetTrimming
from loomlog.metadata.keepers import Keeper, LoneKeeper
from loomlog.metadata.leases import Leases
from loomlog.metadata.members import Members
from loomlog.metadata.node_choice import NodeChoice
from loomlog.metadata.node_operator import NodeOperator
from loomlog.metadata.operator import Operator
from loomlog.metadata.ordered_segments import OrderedSegments
from loomlog.metadata.ordered_times import OrderedTimes
from loomlog.metadata.orders import Orders
from loomlog.metadata.placing import Placing
from loomlog.metadata.reconcile import Reconciler
from loomlog.metadata.registers import Registers
from loomlog.metadata.registration import Registration
from loomlog.metadata.relief import Relief
from loomlog.metadata.retention import Retention, TimeFinder
from loomlog.metadata.round_log import RoundLog
from loomlog.metadata.steps import Steps
from loomlog.metadata.store import MetaStore
from loomlog.metadata.switching import Switching
from loomlog.metadata.view import View
from loomlog.net.connection import Connection
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)


ChangeMembers = Callable[["Term", pb.ChangeMetadata], Awaitable[pb.Changed]]


@dataclass(frozen=True, slots=True)
class Mandate:
    """What a leader leads with."""

    leader: Leader  # this process
    store: MetaStore  # fenced: nothing is written any more once somebody else leads
    round_log: RoundLog
    confirm: Callable[[], Awaitable[None]]  # NotLeader, or this epoch still held after the call
    members: Callable[[], Sequence[pb.MetadataMember]]  # of the metadata repository, now
    change_members: ChangeMembers


class Term:
    """Made by `begin`."""

    def __init__(
        self,
        settings: MetadataSettings,
        mandate: Mandate,
        catalog: Catalog,
        leases: Leases,
        chained: ChainedCatalog,
        copysets: CopysetCatalog,
    ) -> None:
        self.leader = mandate.leader
        self.store = mandate.store
        self.confirm = mandate.confirm
        self.change_members = mandate.change_members
        self.over: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.catalog = catalog
        self.leases = leases
        self._chained = chained
        self._copysets = copysets
        self._keepers: dict[str, LoneKeeper] = {}  # every protocol without commit rounds
        self._times: dict[str, TimeFinder] = {}  # every protocol that can look for a time
        self.registers = Registers(mandate.store, leases)
        self._settings = settings
        self._at_end = AsyncExitStack()  # undone in reverse
        self._background = Background()
        self.members = Members(settings.failure_detection_s, self._liveness_changed)
        self.committer = Committer(
            mandate.round_log, self.members, lambda s: self._reconciler.wake(s), self.end_with
        )
        self._orders = Orders(catalog, self.committer, self.members, self._background)
        self._wire_up_repair()
        self.view = View(
            *(catalog, self.committer, self.members, self._reconciler, self.node_operator),
            *(self._keepers, mandate.leader, mandate.members),
        )
        self.registration = Registration(
            *(catalog, self.committer, self.members, settings.heartbeat_s, self._node_joined),
            self.view.metadata_addresses,
        )

    @classmethod
    async def begin(
        cls, settings: MetadataSettings, mandate: Mandate, new_secret: Callable[[], str]
    ) -> Term:
        """Read what there is, and go on where the rounds ended."""
        catalog = await Catalog.load(mandate.store, settings.cluster_id, new_secret)
        leases = await Leases.load(mandate.store)
        chained = await ChainedCatalog.load(mandate.store, catalog.load_of)
        copysets = await CopysetCatalog.load(mandate.store)
        term = cls(settings, mandate, catalog, leases, chained, copysets)
        term._start()
        return term

    def _wire_up_repair(self) -> None:
        settings, catalog = self._settings, self.catalog
        committer, members, orders = self.committer, self.members, self._orders
        replace_after_s = settings.replace_after_s
        if replace_after_s is None:
            replace_after_s = settings.failure_detection_s
        self._nodes = NodeChoice(catalog, members, replace_after_s)
        steps = Steps(
            *(catalog, committer, members, orders, self._nodes, self._keepers),
            request_timeout_s=settings.failure_detection_s,
            sync_bytes_per_s=settings.sync_bytes_per_s,
        )
        self._reconciler = Reconciler(
            catalog, committer, members, self._background, self._nodes, steps
        )
        placing = Placing(catalog, members, self._keepers)
        self._wire_up_chained(placing, steps)
        self._wire_up_copyset(placing)
        self.admin = Admin(catalog, committer, orders, self._reconciler, placing, self._keepers)
        ordered = OrderedSegments(catalog, committer, self._reconciler, self.admin, placing)
        # Every protocol that a log can be switched to.
        keepers: dict[str, Keeper] = {"ordered": ordered, **self._keepers}
        self.switching = Switching(catalog, self.admin, keepers, self._background)
        self._relief = Relief(catalog, committer, members, self.admin, self._background)
        self.operator = Operator(
            *(catalog, committer, members, orders, self._nodes),
            *(self._reconciler, self.admin, self._keepers),
        )
        self.node_operator = NodeOperator(
            *(catalog, committer, members, orders, self._nodes, steps, self._reconciler),
            *(self._keepers, self.operator.whole),
        )
        self._times["ordered"] = OrderedTimes(catalog, committer, members)
        self.retention = Retention(
            *(catalog, self.admin, self.registers, self._times),
            now_s=lambda: time.time(),  # as it is then: under simulation it is another one
            interval_s=settings.retention_interval_s,
        )

    def _wire_up_chained(self, placing: Placing, steps: Steps) -> None:
        settings, catalog, chained = self._settings, self.catalog, self._chained
        self.sequencers = Sequencers(self.leader.epoch)
        driver = Driver(
            *(chained, self.sequencers, self.members, settings.failure_detection_s),
            address_of=lambda node: catalog.nodes[node].address,
        )
        nodes = ChainNodes(catalog, self.members, self._nodes)
        self.upkeep = Upkeep(
            *(catalog, chained, self.sequencers, driver, nodes, self._background),
            *(settings.sync_bytes_per_s, steps.forget_if_removed),
        )
        keeper = ChainedSegments(
            catalog, chained, self.sequencers, driver, nodes, self.upkeep, placing
        )
        self._keepers["chained"] = keeper
        self._times["chained"] = ChainedTimes(chained, driver, keeper)

    def _wire_up_copyset(self, placing: Placing) -> None:
        catalog, copysets, background = self.catalog, self._copysets, self._background
        nodes = CopysetNodes(catalog, self.members, self._nodes)
        self.epochs = EpochStore(catalog, copysets, nodes)
        orders = CopysetOrders(self.epochs, self.members, self._settings.failure_detection_s)
        shared = (catalog, copysets, self.epochs, nodes, orders, background)
        self._recoveries = Recoveries(*shared)
        self._times["copyset"] = CopysetTimes(copysets, nodes, orders)
        self._keepers["copyset"] = self._copyset_segments = CopysetSegments(
            *(catalog, copysets, self.epochs, nodes, orders),
            *(self._recoveries, CopysetTrimming(*shared), CopysetRemoval(*shared), placing),
        )

    def _start(self) -> None:
        for log in self.catalog.logs.values():
            self.committer.add(self.admin.rounds_of(log))
        self.committer.start()
        for log in self.catalog.logs.values():
            # Also of segments that have ended: their replicas were told where they begin.
            for segment in log.chain.segments:
                if segment.settings.protocol == "ordered":
                    self.committer.logs[log.log_id].begin_at(segment.start)
        self._at_end.callback(self.committer.stop)
        self.members.start(self.catalog.nodes)
        self._at_end.callback(self.members.stop)
        self._at_end.callback(self._reconciler.stop)
        self._at_end.callback(self.upkeep.stop)
        self._at_end.callback(self._recoveries.stop)
        self._at_end.push_async_callback(self._background.stop)
        self.upkeep.start()
        self._copyset_segments.start()
        self.switching.start()
        self._background.spawn(self.retention.run(), "retention")

    async def end(self) -> None:
        """Nothing of it happens any more when this returned."""
        await self._at_end.aclose()

    def end_with(self, error: BaseException) -> None:
        """It cannot go on: NotLeader, somebody else leads; anything else, rounds cannot be made
        durable and nothing may be committed by this process any more."""
        if not self.over.done():
            self.over.set_result(error)

    # ---- events

    def _liveness_changed(self, node: NodeId, alive: bool) -> None:
        logger.info("node %d is %s", node, "alive" if alive else "silent")
        self._reconciler.node_changed(node, alive=alive)
        for keeper in self._keepers.values():
            keeper.node_changed(node, alive=alive)
        if not alive:
            self._relief.node_silent(node)

    def _node_joined(self, node: NodeId) -> None:
        self.committer.catch_up(node)
        self._nodes.came_back(node)
        self._reconciler.node_changed(node, alive=True)
        for keeper in self._keepers.values():
            keeper.node_joined(node)
        self._orders.greet(node)

    def take_tails(self, tails: Iterable[pb.LogletTail]) -> None:
        """Of copyset loglets, as their sequencers tell them."""
        for tail in tails:
            self._copyset_segments.take_tail(tail.loglet_id, tail.tail)

    def connection_closed(self, connection: Connection) -> None:
        node = self.members.node_of(connection)
        if node is not None:
            logger.info("node %d disconnected", node)
            self.members.lost(connection)


def explained(error: BaseException) -> LoomError:
    """Why a term ended, for those who must be told."""
    if isinstance(error, NotLeader):
        return error
    return LoomError(f"the round log failed: {error}")

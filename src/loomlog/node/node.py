"""The storage node: its life, and who may ask what.

Clients and peers come in through the server; orders (add, seal, unseal, trim, remove, commit) are
taken only on the connection that this node itself made to the metadata repository.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from random import Random

from loomlog.config import NodeSettings
from loomlog.errors import LoomError
from loomlog.net.endpoints import Server
from loomlog.net.service import Route, Service
from loomlog.node.chain_volumes import OpenTable
from loomlog.node.chained import ChainedReplicas
from loomlog.node.copyset.copies import OpenLogs
from loomlog.node.copyset.copysets import Copysets
from loomlog.node.disks import Disks
from loomlog.node.metadata_link import MetadataLink
from loomlog.node.requests import Requests
from loomlog.node.streams import Streams
from loomlog.storage.files import Files, Worker
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec

logger = logging.getLogger(__name__)


class StorageNode:
    """A vsn. Under the simulator `files`, `new_worker`, `open_table` and `open_logs` stand in for
    the disk, and `rng` for chance."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        files: Files | None = None,
        new_worker: Callable[[], Worker] | None = None,
        open_table: OpenTable | None = None,
        open_logs: OpenLogs | None = None,
        rng: Random | None = None,
    ) -> None:
        self._settings = settings
        self._codec = Codec("vsn", cluster_id=settings.cluster_id)
        self._disks = Disks(settings, files, new_worker, open_table, open_logs)
        self._rng = rng or Random()
        self._lost_below: int | None = None  # see node/copyset/losses.py
        self._chained = ChainedReplicas(
            settings.node_id,
            lambda: self._disks.chains,
            lambda frame: self._link.tell(frame),
            self._codec,
        )
        self.streams = Streams(
            settings.node_id,
            self._disks,
            self._codec,
            lambda stream_id: self._link.changed(stream_id),
        )

    @property
    def address(self) -> str:
        return self._settings.advertise or self._server.address

    @property
    def failed(self) -> asyncio.Future[LoomError]:
        """Done with the reason when the metadata repository refuses this node for good."""
        return self._link.refused

    async def start(self) -> None:
        """Recover every replica, listen, and begin to register."""
        try:
            self.streams.open()
            self._copysets = self._open_copysets()
            self._requests = Requests(
                self._codec,
                self.streams,
                self._chained,
                self._copysets,
                lambda beat: self._link.leader_announced(beat),
            )
            self._orders = Service(self._codec, self._routes_of_orders())
            self._link = self._make_link()
            self._server = Server(self._codec, self._requests)
            await self._server.start(self._settings.listen)
        except BaseException:
            self._disks.close()
            raise
        self._link.start()
        logger.info("node %d serves on %s", self._settings.node_id, self.address)

    async def registered(self) -> None:
        """Wait until the metadata repository knows this node; raises if it refuses."""
        waiting = asyncio.ensure_future(self._link.registered.wait())
        try:
            await asyncio.wait((waiting, self._link.refused), return_when="FIRST_COMPLETED")
        finally:
            waiting.cancel()
        if self._link.refused.done():
            raise self._link.refused.result()

    async def stop(self) -> None:
        await self._server.stop()
        await self._link.stop()
        await self._orders.stop()
        await self._requests.stop()
        self._chained.stop()
        await self._copysets.stop()
        await self.streams.stop()
        self._disks.close()

    # ---- its parts

    def _open_copysets(self) -> Copysets:
        identity, copies = self._disks.identity, self._disks.copies
        self._copies_lost = identity.has_copies and not copies.are_there
        if identity.cluster_secret and not self._copies_lost:
            self._lost_below = identity.lost_below
        return Copysets(
            self._settings.node_id,
            self._codec,
            copies,
            lambda frame: self._link.request(frame),
            lambda: self._lost_below,
            random=self._rng,
            now_us=lambda: time.time_ns() // 1000,
        )

    def _routes_of_orders(self) -> dict[str, Route]:
        return {
            **self.streams.orders(),
            "find_time": self._requests.find_time,
            "chain_request": self._chained.order,
            "copyset_request": self._copysets.serving.order,
            "recover_copyset": self._copysets.recover,
            "find_copyset_tail": self._copysets.find_tail,
            "find_copyset_landmarks": self._copysets.serving.landmarks,
        }

    def _make_link(self) -> MetadataLink:
        return MetadataLink(
            self._settings.metadata,
            self._codec,
            self._orders,
            self._registration,
            self._registered,
            self.streams.report_of,
            lambda: self._disks.chains.stored_bytes + self._disks.copies.stored_bytes,
            self._copysets.tails,
        )

    # ---- registering

    def _registration(self) -> pb.Register:
        identity = self._disks.identity
        return pb.Register(
            storage_node_id=self._settings.node_id,
            cluster_id=self._settings.cluster_id,
            address=self.address,
            location=self._settings.location,
            cluster_secret=identity.cluster_secret,
            node_secret=identity.node_secret,
            sync_mode=str(self._settings.storage.sync),
            volumes=self._settings.volumes,
            uncommit_reports=self.streams.reports(),
            chain_replicas=self._chained.found(),
            copies_lost=self._copies_lost,
        )

    def _registered(self, answer: pb.Registered) -> None:
        self._disks.join(answer.cluster_secret, answer.lost_below)
        self._lost_below = answer.lost_below
        self._copies_lost = False  # it is noted
        for stream_id in self.streams.held:
            self._link.changed(stream_id)  # what changed while we registered

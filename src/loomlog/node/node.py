"""The storage node: its life cycle, and the requests that do not belong to one protocol.

Clients and peers connect to the server. Orders are accepted only on the connection that this node
itself made to the metadata repository. What is stored, and how, is up to the protocols.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final

from loomlog import limits
from loomlog.config import NodeSettings
from loomlog.core.audit import AuditTrail
from loomlog.errors import InvalidArgument, LoomError, NotFound
from loomlog.meters import Traffic
from loomlog.net.credentials import Credentials
from loomlog.net.notices import Notices
from loomlog.node.access import LearnedNames
from loomlog.node.disks import Disks, OpenStore
from loomlog.node.metadata_link import MetadataLink
from loomlog.node.pages import Pages
from loomlog.node.protocol import NodeContext, NodeProtocol
from loomlog.node.registry import PROTOCOLS
from loomlog.node.scrubber import Scope, Scrubber
from loomlog.node.volume import Volume
from loomlog.node.workers import off_loop
from loomlog.storage.files import Files, Space, Worker
from loomlog.types import LogId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.access import Access
from loomlog.wire.codec import Codec
from loomlog.wire.conditions import condition_to_wire
from loomlog.wire.guard import Guard
from loomlog.wire.link import Connection, Frame, Route, Server, Service
from loomlog.wire.operations import OPERATIONS
from loomlog.wire.proofs import is_signed, node_proof
from loomlog.wire.server_check import server_check, volume_check

logger = logging.getLogger(__name__)

COUNT_S: Final = 1.0  # between measurements of what is stored: there may be many logs


class StorageNode:
    """A vsn. The simulator passes `files`, `new_worker` and `open_store` (by protocol) in place of
    the disk, and `rng` in place of randomness."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        files: Files | None = None,
        new_worker: Callable[[], Worker] | None = None,
        open_store: Mapping[str, OpenStore] | None = None,
        rng: Random | None = None,
        audit: AuditTrail | None = None,
    ) -> None:
        self._settings = settings
        cluster, tls = settings.cluster_id, settings.tls
        credentials = None
        if tls:
            credentials = Credentials.of_server(tls, "node", settings.node_id, cluster)
        self._codec = Codec("vsn", cluster_id=cluster, credentials=credentials)
        self._new_disks = partial(
            Disks, settings, files, new_worker, open_store, self._volume_changed
        )
        self._disks = self._new_disks()
        self._notices = Notices(logger)
        self._rng = rng or Random()  # noqa: S311 - for delays and ids, not for secrets
        self._process = f"{self._rng.getrandbits(64):016x}"
        self._scrubber = Scrubber(settings.scrub_bytes_per_s)
        self.audit = audit or AuditTrail()
        self._traffic = Traffic(OPERATIONS)
        self._sizes: dict[tuple[LogId, int], int] = {}  # the reported ones
        self._count_again_at_s = 0.0  # by the loop's clock
        self.protocols: dict[str, NodeProtocol] = {}
        self._has_registered = False

    @property
    def address(self) -> str:
        return self._settings.advertise or self._server.address

    @property
    def failed(self) -> asyncio.Future[LoomError]:
        """Resolved with the reason when the metadata repository refuses this node for good."""
        return self._link.refused

    @property
    def recovered(self) -> asyncio.Future[str]:
        """Resolved with the name of a volume that failed at the start and works again. The node has
        to be restarted to use it."""
        return self._disks.failed.recovered

    @property
    def listening(self) -> str:
        """The address that the server is bound to, which may differ from the advertised one."""
        return self._server.address

    @property
    def held_back(self) -> asyncio.Future[str]:
        """Resolved with the reason when this node has to wait for an operator's decision."""
        return self._link.held_back

    async def start(self) -> None:
        """Recover the stored data, listen, and begin to register."""
        self._open()
        try:
            self._disks.watch()
            self._server = Server(self._codec, self._requests, self._guard.admit, self._traffic)
            self._guard.update(self._disks.known_access.current)  # before anybody connects
            await self._server.start(self._settings.listen)
            self._pages = Pages(
                self._server,
                self._traffic,
                self._disks,
                self._link,
                self._names,
                self._codec,
                self._guard.permits_metrics,
            )
            await self._pages.start(self._settings.http)
        except BaseException:
            self._disks.close()
            raise
        self._link.start()
        self._scrubber.start(self.protocols.values())
        growing = self._disks.generations.grow(self._stored_bytes)
        self._growing = asyncio.get_running_loop().create_task(growing)
        for name in set(self._disks.opened.missing.values()) - self._disks.failed.names:
            logger.warning("volume %s is missing: what it has is not served", name)
        logger.info("node %d serves on %s", self._settings.node_id, self.address)

    async def registered(self) -> None:
        """Wait until this node is registered. Raise if the metadata repository refuses it."""
        waiting = asyncio.ensure_future(self._link.registered.wait())
        try:
            await asyncio.wait((waiting, self._link.refused), return_when="FIRST_COMPLETED")
        finally:
            waiting.cancel()
        if self._link.refused.done():
            raise self._link.refused.result()

    async def hand_over(self) -> None:
        """Announce that this node is about to stop, and give others a moment to take over."""
        with suppress(LoomError, TimeoutError):
            async with asyncio.timeout(limits.HAND_OVER_S):
                await self._link.request(pb.Frame(node_stops=pb.NodeStops()))

    async def stop(self) -> None:
        self._guard.stop()
        protocols = self.protocols.values()
        for protocol in protocols:
            protocol.begin_stop()
        self._growing.cancel()
        await self._scrubber.stop()
        await self._pages.stop()
        await self._server.stop()
        for protocol in protocols:
            await protocol.finish()
        await self._link.stop()
        await self._orders.stop()
        await self._requests.stop()
        for protocol in protocols:
            await protocol.stop()
        if self._codec.credentials is not None:
            await self._codec.credentials.wait_closed()
        # A crash before this start that was not reported yet must be reported by the next one.
        clean = self._has_registered or self._disks.generations.is_clean
        self._disks.close(clean=clean, ends_life=self._link.has_twin)

    # ---- protocols

    def _open(self) -> None:
        """Recover the stored data, leaving out volumes that fail."""
        failures: dict[str, OSError] = {}
        while True:
            try:
                self._disks.open(failures)
                self._open_protocols()
                return
            except OSError as error:
                self._disks.close()
                volume = self._disks.name_of(error)
                if not volume or volume in failures:
                    raise
                failures[volume] = error.with_traceback(None)
            except BaseException:
                self._disks.close()
                raise
            self._disks = self._new_disks()
            self.protocols.clear()

    def _open_protocols(self) -> None:
        routes: dict[str, Route] = {
            "leader_beat": self._leader_announced,
            "prove_node": self._prove,
            "check_server": self._check,
            "protocol_message": self._protocol_message,
        }
        orders: dict[str, Route] = {
            "note_run": self._disks.known_run.note,
            "list_holdings": self._list_holdings,
            "list_stored": self._list_stored,
            "drain_volumes": self._drain_volumes,
            "give_up_volume": self._give_up_volume,
            "scrub": self._scrub,
            "access": self._access_changed,
        }
        self._names = LearnedNames(self._loglet_of, lambda frame: self._link.request(frame))
        self._guard = Guard(
            self._names,
            self.audit,
            enforced=lambda: self._server.disconnect({"client"}),
            identity_limits=self._settings.identity_limits,
        )
        self._requests = _Requests(self._codec, routes, self._guard, self.protocols)
        self._orders = Service(self._codec, orders)
        self._link = MetadataLink(
            self._settings.metadata,
            self._codec,
            self._orders,
            self._registration,
            self._registered,
            self._report,
            self._short_report,
        )
        context = NodeContext(
            node_id=self._settings.node_id,
            codec=self._codec,
            disks=self._disks,
            link=self._link,
            requests=self._requests,
            random=self._rng,
        )
        for name, make in PROTOCOLS.items():
            self.protocols[name] = protocol = make(context)
            routes |= protocol.routes()
            orders |= protocol.orders()

    def _loglet_of(self, stream: StreamId) -> LogId | None:
        loglets = (protocol.loglet_of(stream) for protocol in self.protocols.values())
        return next((loglet for loglet in loglets if loglet is not None), None)

    async def _access_changed(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        access = Access.from_wire(frame.access)
        self._guard.update(access)
        await self._disks.known_access.save(access)
        return pb.Frame(done=pb.Done())

    def _protocol_message(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame] | None:
        protocol = self.protocols.get(frame.protocol_message.protocol)
        if protocol is None:
            raise InvalidArgument(f"no protocol {frame.protocol_message.protocol!r} runs here")
        return protocol.request(connection, frame, payload)

    async def _list_holdings(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        """Handle an order of the collector that stands in for the metadata repository."""
        holdings = pb.Holdings()
        for protocol in self.protocols.values():
            await protocol.list_holdings(holdings)
        return pb.Frame(holdings=holdings)

    async def _drain_volumes(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        self._disks.drain(frame.drain_volumes.volumes)
        self._link.report()
        return pb.Frame(done=pb.Done())

    async def _give_up_volume(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        give_up = partial(self._disks.opened.give_up, frame.give_up_volume.volume)
        await off_loop(self._disks.reader, give_up)
        return pb.Frame(done=pb.Done())

    async def _scrub(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        order, me = frame.scrub, self._settings.node_id
        scope = Scope(frozenset(order.log_stream_ids), frozenset(order.loglet_ids))
        others = [r.address for r in order.replicas if r.storage_node_id != me]
        progress = self._scrubber.order(scope, others, start=order.start)
        if progress is None:
            raise NotFound("nothing of it was scrubbed since this node was started")
        return pb.Frame(scrub_response=progress)

    async def _list_stored(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        stream, loglet = frame.list_stored.log_stream_id, frame.list_stored.loglet_id
        found = [
            replica
            for protocol in self.protocols.values()
            for replica in protocol.stored()
            if not (stream or loglet)
            or replica.log_stream_id == stream != 0
            or replica.loglet_id == loglet != 0
        ]
        spaces: dict[Volume, Space] = {}
        for replica in found:
            volume = self._disks.volume_of(replica.path)
            if volume not in spaces:
                spaces[volume] = await off_loop(self._disks.reader, volume.space)
            replica.volume = volume.name
            replica.free_bytes, replica.total_bytes = spaces[volume]
        return pb.Frame(stored_list=pb.StoredList(replicas=found))

    def _stored_bytes(self) -> int:
        return sum(protocol.stored_bytes for protocol in self.protocols.values())

    def _volume_changed(self, volume: Volume) -> None:
        for protocol in self.protocols.values():
            protocol.volume_changed(volume)
        self._link.report()

    # ---- HTTP

    @property
    def http_address(self) -> str | None:
        return self._pages.address

    # ---- the metadata repository

    def _leader_announced(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        beat = frame.leader_beat
        if is_signed(beat, self._disks.opened.identity.cluster_secret):
            self._link.leader_announced(beat)
        else:
            self._notices.log("beat", "ignored a leader that is not known here: %s", beat.address)

    def _prove(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        """Prove to a metadata repository that this node is reachable at this address."""
        challenge = frame.prove_node.challenge
        if not 0 < len(challenge) <= limits.CHALLENGE_BYTES_MAX:
            raise InvalidArgument(f"a challenge has 1 to {limits.CHALLENGE_BYTES_MAX} bytes")
        secret = self._disks.opened.identity.node_secret
        proof = pb.NodeProof(
            proof=node_proof(self._settings.node_id, secret, challenge), process=self._process
        )
        self._requests.reply(connection, "prove_node", frame, pb.Frame(node_proof=proof))

    def _registration(self) -> pb.Register:
        self._sizes, self._count_again_at_s = {}, 0.0
        identity = self._disks.opened.identity
        message = pb.Register(
            storage_node_id=self._settings.node_id,
            cluster_id=self._settings.cluster_id,
            address=self.address,
            location=self._settings.location,
            cluster_secret=identity.cluster_secret,
            node_secret=identity.node_secret,
            sync_mode=str(self._settings.storage.sync),
            volumes=[volume.name for volume in self._disks.volumes],
            shards=self._disks.shards,
            given_up=self._disks.opened.given_up,
            known_run=self._disks.known_run.to_wire(),
            generations=self._disks.generations.numbers,
            process=self._process,
            clean=self._disks.generations.is_clean,
            conditions=self._conditions(),
        )
        for protocol in self.protocols.values():
            protocol.register(message)
        return message

    def _registered(self, answer: pb.Registered) -> None:
        self._disks.opened.join(answer.cluster_secret)
        self._disks.generations.registered(answer.generation)
        self._has_registered = True
        there = {volume.name for volume in self._disks.volumes}
        self._disks.drain(there.intersection(answer.draining_volumes))
        if answer.HasField("access"):  # the collector has no rules
            access = Access.from_wire(answer.access)
            self._guard.update(access)
            if access != self._disks.known_access.current:
                self._requests.spawn(self._disks.known_access.save(access))
        for protocol in self.protocols.values():
            protocol.registered(answer)

    def _short_report(self) -> pb.GetReportResponse:
        """Return a short heartbeat."""
        message = pb.GetReportResponse(storage_node_id=self._settings.node_id, clock_us=_now_us())
        for protocol in self.protocols.values():
            protocol.report(message)
        return message

    def _report(self) -> pb.GetReportResponse:
        """Return a long heartbeat."""
        message = pb.GetReportResponse(
            storage_node_id=self._settings.node_id,
            clock_us=_now_us(),
            generations=self._disks.generations.numbers,
            conditions=self._conditions(),
            volumes=self._spaces(),
            denials=self._guard.denials,
            audit_dropped=self.audit.dropped,
            refusals=pb.LimitRefusals(**self._guard.refusals),
            scrub=self._scrubber.status() if self._settings.scrub_bytes_per_s else None,
            sizes=self._changed_sizes(),
        )
        for protocol in self.protocols.values():
            protocol.report(message)
        return message

    def _spaces(self) -> list[pb.VolumeSpace]:
        disks = self._disks
        listed = disks.opened.identity.volumes
        failed = [
            pb.VolumeSpace(path=name, shard=listed.index(name), failed=True)
            for name in sorted(disks.failed.names)
        ]
        return [*map(_space_of, disks.volumes, disks.shards), *failed]

    def _changed_sizes(self) -> list[pb.LogletSize]:
        """Return the sizes that changed since the last report. They are measured periodically."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._count_again_at_s:
            return []
        self._count_again_at_s = now_s + COUNT_S
        before, self._sizes = self._sizes, {}
        for protocol in self.protocols.values():
            self._sizes |= protocol.sizes()
        changed = {
            key: self._sizes.get(key, 0)
            for key in before.keys() | self._sizes.keys()
            if self._sizes.get(key) != before.get(key)
        }
        return [
            pb.LogletSize(loglet_id=loglet, part=part, stored_bytes=size)
            for (loglet, part), size in sorted(changed.items())
        ]

    async def _check(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        settings, credentials = self._settings, self._codec.credentials
        checked = server_check(settings.cluster_id, settings.node_id, credentials)
        for volume in self._disks.volumes:
            checked.volumes.append(volume_check(volume.name, *await volume.measure()))
        return pb.Frame(server_check=checked)

    def _conditions(self) -> pb.NodeConditions:
        message = pb.NodeConditions(
            takes_nothing=self._disks.take_nothing, volume_missing=bool(self._disks.opened.missing)
        )
        conditions = self._disks.conditions
        conditions += self._scrubber.conditions()
        if (credentials := self._codec.credentials) is not None:
            conditions += credentials.conditions()
        for protocol in self.protocols.values():
            conditions += protocol.conditions()
            protocol.restrictions(message)
        message.conditions.extend(map(condition_to_wire, conditions))
        return message


class _Requests(Service):
    """Answers clients and other nodes."""

    def __init__(
        self,
        codec: Codec,
        routes: dict[str, Route],
        guard: Guard,
        protocols: Mapping[str, NodeProtocol],
    ) -> None:
        super().__init__(codec, routes, guard)
        self._protocols = protocols
        self._closed = guard.closed

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        self._closed(connection)
        for protocol in self._protocols.values():
            protocol.connection_closed(connection)


def _space_of(volume: Volume, shard: int) -> pb.VolumeSpace:
    return pb.VolumeSpace(
        path=volume.name,
        shard=shard,
        full=volume.nearly_full,
        failed=not volume.works,
        **volume.room._asdict(),
    )


def _now_us() -> int:
    return time.time_ns() // 1000

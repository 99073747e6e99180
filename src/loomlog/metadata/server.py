"""The metadata repository (vmr) as a process: its listeners, services and terms.

While it leads, a term serves nodes and clients (term.py, requests.py). A single vmr (SQLite and a
round file) leads from its start to its end. One of several leads after it took over
(leadership.py), and is always a member of the round log; while it does not lead, it redirects
clients and nodes.

The simulator injects everything that has side effects (data_directory.py; rng for secrets). Time
comes from the loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from loomlog import limits, metrics
from loomlog.config import MetadataSettings
from loomlog.core.audit import AuditTrail
from loomlog.core.conditions import Condition
from loomlog.core.quorum.member import Leader
from loomlog.errors import (
    InvalidArgument,
    LoomError,
    NotLeader,
    Unavailable,
)
from loomlog.metadata.access import CatalogNames, access_of
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import ACCESS, AccessRecord, decode
from loomlog.metadata.data_directory import DataDirectory
from loomlog.metadata.leader.leadership import Leadership
from loomlog.metadata.leader.membership import check_granted
from loomlog.metadata.metrics import leader_metrics, reader_metrics
from loomlog.metadata.requests import Front, Requests
from loomlog.metadata.rounds.round_files import FILE_BYTES
from loomlog.metadata.store.contract import MetaStore
from loomlog.metadata.term import Mandate, Term, explained
from loomlog.meters import SYNC_TIMES, Traffic
from loomlog.metrics import Metric
from loomlog.net.credentials import Credentials
from loomlog.storage.files import Files, Worker
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.guard import Guard
from loomlog.wire.link import Connection, Frame, Route, Server
from loomlog.wire.operations import OPERATIONS
from loomlog.wire.server_check import server_check
from loomlog.wire.server_metrics import disk_metrics, server_metrics

if TYPE_CHECKING:
    from loomlog.http import Content, HttpServer

logger = logging.getLogger(__name__)

SECRET_BITS: Final = 128
ACCESS_LOOK_S: Final = 5.0  # between reads of the access rules while another one leads
LONE_MEMBER: Final = 1  # the id of a single metadata repository


class MetadataRepository:
    """A vmr. By default it uses the real disk, SQLite or etcd, and the system's randomness."""

    def __init__(
        self,
        settings: MetadataSettings,
        *,
        files: Files | None = None,
        worker: Worker | None = None,
        store: MetaStore | None = None,
        rng: random.Random | None = None,
        round_file_bytes: int = FILE_BYTES,
    ) -> None:
        self._settings = settings
        cluster, tls = settings.cluster_id, settings.tls
        credentials = None
        if tls:
            credentials = Credentials.of_server(tls, "metadata", settings.member_id, cluster)
        self._codec = Codec("vmr", cluster_id=cluster, credentials=credentials)
        self._is_real = files is None
        self._directory = DataDirectory(settings, files, worker, store, round_file_bytes)
        self._rng = rng or random.SystemRandom()
        self._round_file_bytes = round_file_bytes
        self._http: HttpServer | None = None
        self._leadership: Leadership | None = None  # of one of several
        self.term: Term | None = None  # while it leads
        self._routes: dict[str, Route] = {
            "ask_leader": self._ask_leader,
            "check_server": self._check,
        }
        self.audit = AuditTrail()
        names, limited = CatalogNames(self._catalog), settings.identity_limits
        self._guard = Guard(names, self.audit, identity_limits=limited)
        self._knows_access = credentials is None  # requests from a network need permission checks
        self._front = Front(self._codec, self._routes, self._guard, self.not_leader)
        self._at_stop = AsyncExitStack()  # undone in reverse
        self._traffic = Traffic(OPERATIONS)
        self._started_at = 0.0  # by the loop's clock
        self._at_stop.push_async_callback(self._directory.close)
        if credentials is not None:
            self._at_stop.push_async_callback(credentials.wait_closed)

    # ---- life

    async def start(self) -> None:
        """Recover, then listen. When this has returned, nodes and clients are served."""
        self._started_at = asyncio.get_running_loop().time()
        self.failed: asyncio.Future[LoomError] = asyncio.get_running_loop().create_future()
        try:
            await (self._start_one_of_several() if self._settings.peers else self._start_alone())
        except OSError as error:
            await self.stop()
            raise InvalidArgument(
                f"cannot use {self._settings.directory}: {error.strerror or error}"
            ) from error
        except BaseException:
            await self.stop()
            raise
        if self._is_real:
            watch = asyncio.get_running_loop().create_task(self._watch_directory())
            self._at_stop.callback(watch.cancel)
        logger.info("cluster %r is served on %s", self._settings.cluster_id, self.address)

    async def stop(self) -> None:
        """Stop cleanly, after writes in progress. May be called again."""
        self._guard.stop()
        await self._at_stop.aclose()

    async def _watch_directory(self) -> None:
        self._fail(await self._directory.until_gone())

    # ---- a single vmr

    async def _start_alone(self) -> None:
        store, round_log = await self._directory.open_alone()
        self._store = store
        leader = Leader(round_log.epoch, LONE_MEMBER, "")
        await self.begin_term(
            Mandate(
                leader=leader,
                store=store,
                round_log=round_log,
                confirm=_holds,
                members=self._lone_member,
                change_members=_cannot_change,
            )
        )
        assert self.term is not None
        self.term.over.add_done_callback(lambda over: self._fail(explained(over.result())))
        self._at_stop.push_async_callback(self.end_term)
        await self._listen()

    def _lone_member(self) -> list[pb.MetadataMember]:
        return [
            pb.MetadataMember(
                member_id=LONE_MEMBER,
                address=self._settings.advertise or self.address,
                reachable=True,
                connected_s=asyncio.get_running_loop().time() - self._started_at,
            )
        ]

    # ---- one of several

    async def _start_one_of_several(self) -> None:
        store, member = await self._directory.open_of_several()
        self._store = store
        self._leadership = Leadership(
            settings=self._settings,
            store=store,
            member=member,
            codec=self._codec,
            begin_term=self.begin_term,
            end_term=self.end_term,
            failed=self._fail,
            resigned=lambda: self._server.disconnect({"vmr"}),
            file_bytes=self._round_file_bytes,
        )
        member.failed.add_done_callback(lambda failed: self._fail(failed.result()))

        async def seal(connection: Connection, frame: Frame, payload: memoryview) -> Frame:
            return await member.seal(frame.round_seal, partial(check_granted, store))

        self._routes |= {**member.routes(self._codec), "round_seal": seal}
        if self._codec.credentials is not None:
            await self._learn_access()  # before the first connection
            following = asyncio.get_running_loop().create_task(self._follow_access())
            self._at_stop.callback(following.cancel)
        await self._listen()
        self._leadership.start()
        self._at_stop.push_async_callback(self._leadership.stop)

    def not_leader(self) -> NotLeader:
        """Return the error for clients that connect although another process leads, or none
        does."""
        return self._leadership.not_leader() if self._leadership else NotLeader("about to stop")

    # ---- leading

    async def begin_term(self, mandate: Mandate) -> Term:
        """Serve nodes and clients as the leader."""
        self.term = await Term.begin(self._settings, mandate, self._new_secret, self._conditions)
        self._front.requests = Requests(self.term, self._codec, self._guard)
        if self._is_real:
            self.term.watch_timeline()
        return self.term

    def _conditions(self) -> list[Condition]:
        """Return the conditions of this process: its disk, its store, its certificate."""
        credentials = self._codec.credentials
        certificate = credentials.conditions() if credentials is not None else ()
        return [*self._directory.conditions(), *certificate]

    async def end_term(self) -> None:
        """Stop serving; connected peers have to find the new leader."""
        term, self.term = self.term, None
        requests, self._front.requests = self._front.requests, None
        if term is not None and requests is not None:
            try:
                await requests.stop()
            finally:
                self._server.disconnect({"client", "vsn"})
                await term.end()

    def _catalog(self) -> Catalog | None:
        return None if self.term is None else self.term.catalog

    def _fail(self, error: LoomError) -> None:
        if not self.failed.done():
            logger.critical("this process must end: %s", error)
            self.failed.set_result(error)

    # ---- listening

    async def _listen(self) -> None:
        self._server = Server(self._codec, self._front, self._admit, self._traffic)
        await self._server.start(self._settings.listen)
        self._at_stop.push_async_callback(self._server.stop)
        self._at_stop.push_async_callback(self._front.stop)
        if self._settings.http is not None:
            await self._listen_http(self._settings.http)

    def _admit(self, connection: Connection) -> None:
        if connection.token and self.term is None and not self._knows_access:
            raise Unavailable("this metadata repository does not know the keys of tokens yet")
        self._guard.admit(connection)

    async def _follow_access(self) -> None:
        """Follow the access rules while another vmr leads, because tokens are checked here, too."""
        while True:
            await self._learn_access()
            await asyncio.sleep(ACCESS_LOOK_S)

    async def _learn_access(self) -> None:
        if self.term is not None:
            self._knows_access = True
            return
        try:
            item = await self._store.get(ACCESS)
            record = decode(AccessRecord, ACCESS, item.value) if item else AccessRecord()
        except LoomError as error:
            logger.warning("the access rules cannot be read: %s", error)
            return
        if self.term is None:
            self._guard.update(access_of(record))
            self._knows_access = True

    async def _listen_http(self, address: str) -> None:
        from loomlog.http import HttpServer

        http = HttpServer(
            {
                "/healthz": lambda: ("text/plain; charset=utf-8", b"ok\n"),
                "/readyz": self._readiness,
                "/status": self._status_page,
                "/metrics": self._metrics_page,
            },
            self._codec.credentials,
            public=("/healthz", "/readyz"),
            permits=self._guard.permits_metrics,
        )
        await http.start(address)
        self._http = http
        self._at_stop.push_async_callback(http.stop)

    async def _check(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        checked = server_check(self._settings.cluster_id, credentials=self._codec.credentials)
        checked.volumes.append(await self._directory.check())
        checked.store = "etcd" if self._settings.etcd else "SQLite"
        store, loop = self._store, asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            async with asyncio.timeout(limits.REQUEST_TIMEOUT_S / 2):
                await store.get("cluster")
        except (LoomError, TimeoutError) as error:
            checked.store_error = str(error) or "no answer in time"
        checked.store_read_s = loop.time() - begun_s
        return pb.Frame(server_check=checked)

    async def _ask_leader(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        return pb.Frame(leader_beat=self._beat())

    def _beat(self) -> pb.LeaderBeat:
        if self._leadership is not None:
            return self._leadership.beat()
        assert self.term is not None
        epoch, member, address = self.term.leader
        return pb.LeaderBeat(epoch=epoch, leader=member, address=address, heard=True)

    # ---- secrets

    def _new_secret(self) -> str:
        return f"{self._rng.getrandbits(SECRET_BITS):032x}"

    # ---- status

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def http_address(self) -> str | None:
        return self._http.address if self._http is not None else None

    async def status(self) -> dict[str, Any]:
        """Return the output of `loom status --json`, or a part of it if this vmr does not lead."""
        if self.term is not None:
            return {"role": "leader", **await self.term.view.as_dict()}
        assert self._leadership is not None
        return {"role": "follower", **self._leadership.as_dict()}

    def _readiness(self) -> Content:
        """Return that it leads, or knows the leader. Raise Unavailable otherwise."""
        if self.term is not None:
            if reason := self.term.gate.condition:
                raise Unavailable(reason)
            return "text/plain; charset=utf-8", b"ready: leads\n"
        beat = self._beat()
        if not beat.heard or not beat.address:
            raise Unavailable("no metadata repository leads")
        return "text/plain; charset=utf-8", f"ready: follows {beat.address}\n".encode()

    async def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return metrics.text(self._cluster_metrics(await self._status()))

    async def _status_page(self) -> Content:
        return "application/json", json.dumps(await self.status()).encode()

    async def _status(self) -> pb.Status | None:
        return None if self.term is None else await self.term.view.status()

    def _cluster_metrics(self, status: pb.Status | None) -> list[Metric]:
        if self.term is None or status is None:
            return leader_metrics(leads=False, epoch=self._beat().epoch)
        return self.term.view.metrics(status)

    async def _metrics_page(self) -> Content:
        status = await self._status()
        found = [metrics.server_info("vmr"), *self._cluster_metrics(status)]
        if self.term is not None and status is not None:
            with suppress(LoomError):  # the store may be away
                found += await reader_metrics(self.term.registers, status)
        found += server_metrics(self._traffic, self._server, SYNC_TIMES)
        found += disk_metrics({self._settings.directory: await self._directory.space()})
        return metrics.CONTENT_TYPE, await metrics.page(found)


async def _holds() -> None:
    """Return at once: a single vmr always leads."""


async def _cannot_change(term: Term, request: pb.ChangeMetadata) -> pb.Changed:
    raise InvalidArgument(
        "this metadata repository is alone: to have several, move its metadata with "
        "`loom metadata export` and `loom metadata import`"
    )

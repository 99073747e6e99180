"""The metadata repository (vmr): its parts put together, and who may ask what.

Under the simulator everything that touches the outside is handed in: files and worker (round log),
store (metadata), rng (secrets). Time comes from the loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, Final

from loomlog.config import MetadataSettings
from loomlog.errors import InvalidArgument, LoomError
from loomlog.metadata.admin import Admin
from loomlog.metadata.background import Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.committer import Committer
from loomlog.metadata.file_round_log import FileRoundLog
from loomlog.metadata.leases import Leases
from loomlog.metadata.members import Members
from loomlog.metadata.node_choice import NodeChoice
from loomlog.metadata.operator import Operator
from loomlog.metadata.orders import Orders
from loomlog.metadata.reconcile import Reconciler
from loomlog.metadata.registers import Registers
from loomlog.metadata.registration import Registration
from loomlog.metadata.relief import Relief
from loomlog.metadata.round_file import FILE_BYTES
from loomlog.metadata.steps import Steps
from loomlog.metadata.store import MetaStore
from loomlog.metadata.view import View
from loomlog.net.address import split_address
from loomlog.net.connection import Connection, Frame
from loomlog.net.endpoints import Server
from loomlog.net.service import Service
from loomlog.storage.files import Files, Worker
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec

if TYPE_CHECKING:
    from loomlog.http import HttpServer

logger = logging.getLogger(__name__)

SECRET_BITS: Final = 128


class MetadataRepository:
    """A vmr. What is not handed in is the real thing: this machine's disk, SQLite, the system's
    source of randomness."""

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
        self._files = files
        self._worker = worker
        self._store = store
        self._rng = rng or random.SystemRandom()
        self._round_file_bytes = round_file_bytes
        self._http: HttpServer | None = None
        self._at_stop = AsyncExitStack()  # undone in reverse

    # ---- life

    async def start(self) -> None:
        """Recover, listen. Nodes and clients may come when this returned."""
        self.failed: asyncio.Future[LoomError] = asyncio.get_running_loop().create_future()
        try:
            await self._recover()
            await self._listen()
        except OSError as error:
            await self.stop()
            raise InvalidArgument(
                f"cannot use {self._settings.directory}: {error.strerror or error}"
            ) from error
        except BaseException:
            await self.stop()
            raise
        logger.info("cluster %r is served on %s", self._settings.cluster_id, self.address)

    async def stop(self) -> None:
        """Clean: what is under way on the disk is finished. Fine if it is stopped already."""
        await self._at_stop.aclose()

    async def _recover(self) -> None:
        directory = self._settings.directory
        files = self._files or _real_files()
        files.make_directory(directory)
        store = self._store or await self._open_store(f"{directory}/metadata.sqlite")
        round_log = await self._open_round_log(files, f"{directory}/rounds", store)
        self._catalog = await Catalog.load(store, self._settings.cluster_id, self._new_secret)
        self._leases = await Leases.load(store)
        self._registers = Registers(store, self._leases)
        self._wire_up(round_log)

    async def _open_round_log(self, files: Files, directory: str, store: MetaStore) -> FileRoundLog:
        # The cluster's record is written after the first file of rounds: once it is there, a
        # missing round log is a loss and not a beginning.
        create = await store.get("cluster") is None
        with ExitStack() as closing:  # the file is closed after its worker has ended
            worker = self._worker or self._new_worker("loomlog-rounds", closing)
            round_log = FileRoundLog.open(
                files, directory, worker, create=create, file_bytes=self._round_file_bytes
            )
            self._at_stop.callback(round_log.close)
            self._at_stop.push(closing.pop_all())
        return round_log

    def _wire_up(self, round_log: FileRoundLog) -> None:
        settings, catalog = self._settings, self._catalog
        self._background = Background()
        self._members = Members(settings.failure_detection_s, self._liveness_changed)
        self._committer = Committer(
            round_log,
            self._members,
            lambda stream_id: self._reconciler.wake(stream_id),
            self._fail,
        )
        self._orders = Orders(catalog, self._committer, self._members, self._background)
        self._wire_up_repair()
        self._registration = Registration(
            catalog, self._committer, self._members, settings.heartbeat_s, self._node_joined
        )
        for log in catalog.logs.values():
            self._committer.add(self._admin.rounds_of(log))
        self._committer.start()
        self._at_stop.callback(self._committer.stop)
        self._members.start(catalog.nodes)
        self._at_stop.callback(self._members.stop)
        self._at_stop.callback(self._reconciler.stop)
        self._at_stop.push_async_callback(self._background.stop)

    def _wire_up_repair(self) -> None:
        settings, catalog = self._settings, self._catalog
        committer, members, orders = self._committer, self._members, self._orders
        replace_after_s = settings.replace_after_s
        if replace_after_s is None:
            replace_after_s = settings.failure_detection_s
        self._nodes = NodeChoice(catalog, members, replace_after_s)
        steps = Steps(
            *(catalog, committer, members, orders, self._nodes),
            request_timeout_s=settings.failure_detection_s,
            sync_bytes_per_s=settings.sync_bytes_per_s,
        )
        self._reconciler = Reconciler(
            catalog, committer, members, self._background, self._nodes, steps
        )
        self._admin = Admin(catalog, committer, members, orders, self._reconciler)
        self._relief = Relief(catalog, committer, members, self._admin, self._background)
        self._operator = Operator(
            *(catalog, committer, members, orders, self._nodes),
            *(steps, self._reconciler, self._admin),
        )

    async def _listen(self) -> None:
        codec = Codec("vmr", cluster_id=self._settings.cluster_id)
        self._service = _Requests(self, codec)
        self._server = Server(codec, self._service)
        self._view = View(
            *(self._catalog, self._committer, self._members, self._reconciler, self._operator)
        )
        await self._server.start(self._settings.listen)
        self._at_stop.push_async_callback(self._server.stop)
        self._at_stop.push_async_callback(self._service.stop)
        self._view.address = self.address
        if self._settings.http is not None:
            await self._listen_http(self._settings.http)

    async def _listen_http(self, address: str) -> None:
        from loomlog.http import HttpServer

        http = HttpServer(
            {
                "/healthz": lambda: ("text/plain; charset=utf-8", b"ok\n"),
                "/status": lambda: ("application/json", json.dumps(self.status()).encode()),
                "/metrics": lambda: ("text/plain; version=0.0.4", self._view.metrics().encode()),
            }
        )
        await http.start(*split_address(address))
        self._http = http
        self._at_stop.push_async_callback(http.stop)

    # ---- the real things

    async def _open_store(self, path: str) -> MetaStore:
        from loomlog.metadata.sqlite import SqliteStore

        store = await SqliteStore.open(path, self._new_worker("loomlog-metadata", self._at_stop))
        self._at_stop.push_async_callback(store.close)
        return store

    def _new_worker(self, name: str, at_stop: ExitStack | AsyncExitStack) -> Worker:
        from loomlog.storage.disk import ThreadWorker

        worker = ThreadWorker(asyncio.get_running_loop(), name)
        at_stop.callback(worker.close)
        return worker

    def _new_secret(self) -> str:
        return f"{self._rng.getrandbits(SECRET_BITS):032x}"

    # ---- events

    def _fail(self, error: BaseException) -> None:
        """Rounds cannot be made durable: nothing may be committed by this process any more."""
        if not self.failed.done():
            logger.critical("the round log failed, this process must end: %s", error)
            self.failed.set_result(LoomError(f"the round log failed: {error}"))

    def _liveness_changed(self, node: NodeId, alive: bool) -> None:
        logger.info("node %d is %s", node, "alive" if alive else "silent")
        self._reconciler.node_changed(node, alive=alive)
        if not alive:
            self._relief.node_silent(node)

    def _node_joined(self, node: NodeId) -> None:
        self._committer.catch_up(node)
        self._nodes.came_back(node)
        self._reconciler.node_changed(node, alive=True)
        self._orders.greet(node)

    def connection_closed(self, connection: Connection) -> None:
        node = self._members.node_of(connection)
        if node is not None:
            logger.info("node %d disconnected", node)
            self._members.lost(connection)

    # ---- who we are

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def http_address(self) -> str | None:
        return self._http.address if self._http is not None else None

    def status(self) -> dict[str, Any]:
        """As `loom status --json` shows it."""
        return self._view.as_dict()

    # ---- what nodes say

    async def register(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        answer = await self._registration.register(connection, frame.register)
        return pb.Frame(registered=answer)

    def report(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        node = self._members.node_of(connection)
        if node is not None:  # else it was replaced, or never registered
            self._registration.take_reports(node, frame.report.uncommit_reports)

    # ---- what clients ask

    async def create_log(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        log = await self._admin.create_log(frame.create_log)
        return pb.Frame(log=self._view.log(log))

    async def describe_log(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        return pb.Frame(log=self._view.log(self._catalog.log(frame.describe_log.name)))

    async def list_logs(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        logs = [self._view.log(log) for log in self._view.logs()]
        return pb.Frame(log_list=pb.LogList(logs=logs))

    async def delete_log(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        await self._admin.delete_log(frame.delete_log.name)
        return pb.Frame(done=pb.Done())

    async def trim_log(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        log = await self._admin.trim_log(frame.trim_log.name, frame.trim_log.position)
        return pb.Frame(bounds=self._view.bounds(log))

    async def get_bounds(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        return pb.Frame(bounds=self._view.bounds(self._catalog.log(frame.get_bounds.name)))

    async def change_stream(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        return pb.Frame(changed=await self._operator.change_stream(frame.change_stream))

    async def change_node(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        return pb.Frame(changed=await self._operator.change_node(frame.change_node))

    async def get_status(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        return pb.Frame(status=self._view.status())

    async def get_register(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        return pb.Frame(register_value=await self._registers.get(frame.get_register))

    async def swap_register(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        return pb.Frame(register_value=await self._registers.swap(frame.swap_register))

    async def list_registers(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        return pb.Frame(register_list=await self._registers.list(frame.list_registers))

    async def change_lease(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        return pb.Frame(lease=await self._leases.change(frame.change_lease))

    async def list_leases(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        return pb.Frame(lease_list=self._leases.list(frame.list_leases))


class _Requests(Service):
    """What may be asked of a metadata repository."""

    def __init__(self, repository: MetadataRepository, codec: Codec) -> None:
        self._repository = repository
        super().__init__(
            codec,
            {
                "register": repository.register,
                "report": repository.report,
                "create_log": repository.create_log,
                "describe_log": repository.describe_log,
                "list_logs": repository.list_logs,
                "delete_log": repository.delete_log,
                "trim_log": repository.trim_log,
                "get_bounds": repository.get_bounds,
                "get_status": repository.get_status,
                "change_stream": repository.change_stream,
                "change_node": repository.change_node,
                "get_register": repository.get_register,
                "swap_register": repository.swap_register,
                "list_registers": repository.list_registers,
                "change_lease": repository.change_lease,
                "list_leases": repository.list_leases,
            },
        )

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        self._repository.connection_closed(connection)


def _real_files() -> Files:
    from loomlog.storage.disk import RealFiles

    return RealFiles()

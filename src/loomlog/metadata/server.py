"""The metadata repository (vmr) as a process: what it opens, where it listens, who answers.

While it leads, nodes and clients are served by a term (term.py, requests.py). The embedded form
(SQLite and a file of rounds) leads from its start to its end. One of several leads when it took
over (leadership.py), and is always a member of the round log; who comes to one that does not lead
is sent on.

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
from loomlog.core.quorum.member import Leader
from loomlog.errors import InvalidArgument, LoomError, NotLeader, Retryable, SwapUnknown
from loomlog.metadata.file_round_log import FileRoundLog
from loomlog.metadata.late_store import LateStore
from loomlog.metadata.leadership import Leadership
from loomlog.metadata.member_disk import is_begun
from loomlog.metadata.membership import has_lost_nothing
from loomlog.metadata.quorum_member import QuorumMember
from loomlog.metadata.requests import Requests
from loomlog.metadata.round_file import FILE_BYTES
from loomlog.metadata.store import MetaStore
from loomlog.metadata.term import Mandate, Term, explained
from loomlog.metadata.view import follower_metrics
from loomlog.net.address import split_address
from loomlog.net.connection import Connection, Frame
from loomlog.net.endpoints import Server
from loomlog.net.service import Route, Service
from loomlog.storage.files import Files, Worker
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec

if TYPE_CHECKING:
    from loomlog.http import HttpServer
    from loomlog.storage.disk import DirectoryLock

logger = logging.getLogger(__name__)

SECRET_BITS: Final = 128
STORE_RETRY_S: Final = 0.5
LONE_MEMBER: Final = 1  # the id of a metadata repository that has no others beside it


class MetadataRepository:
    """A vmr. What is not handed in is the real thing: this machine's disk, SQLite or etcd, the
    system's source of randomness."""

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
        self._codec = Codec("vmr", cluster_id=settings.cluster_id)
        self._files = files
        self._worker = worker
        self._store = store
        self._rng = rng or random.SystemRandom()
        self._round_file_bytes = round_file_bytes
        self._http: HttpServer | None = None
        self._leadership: Leadership | None = None  # of one of several
        self.term: Term | None = None  # while it leads
        self._requests: Requests | None = None  # likewise
        self._at_stop = AsyncExitStack()  # undone in reverse

    # ---- life

    async def start(self) -> None:
        """Recover, listen. Nodes and clients may come when this returned."""
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
        logger.info("cluster %r is served on %s", self._settings.cluster_id, self.address)

    async def stop(self) -> None:
        """Clean: what is under way on the disk is finished. Fine if it is stopped already."""
        await self._at_stop.aclose()

    # ---- alone

    async def _start_alone(self) -> None:
        directory = self._settings.directory
        files = self._files or _real_files()
        files.make_directory(directory)
        store = self._store or await self._open_sqlite(f"{directory}/metadata.sqlite")
        round_log = await self._open_round_log(files, f"{directory}/rounds", store)
        leader = Leader(round_log.epoch, LONE_MEMBER, "")
        await self.begin_term(
            Mandate(leader, store, round_log, _holds, self._lone_member, _cannot_change)
        )
        assert self.term is not None
        self.term.over.add_done_callback(lambda over: self._fail(explained(over.result())))
        self._at_stop.push_async_callback(self.end_term)
        await self._listen({})

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

    def _lone_member(self) -> list[pb.MetadataMember]:
        return [pb.MetadataMember(member_id=LONE_MEMBER, address=self.address, reachable=True)]

    # ---- one of several

    async def _start_one_of_several(self) -> None:
        settings = self._settings
        store = self._store or await self._open_etcd()
        member = await self._open_member(store)
        self._leadership = Leadership(
            *(settings, store, member, self._codec, self.begin_term, self.end_term),
            *(self._fail, self._round_file_bytes),
        )
        member.failed.add_done_callback(lambda failed: self._fail(failed.result()))
        await self._listen(member.routes(self._codec))
        self._leadership.start()
        self._at_stop.push_async_callback(self._leadership.stop)

    async def _open_member(self, store: MetaStore) -> QuorumMember:
        directory = f"{self._settings.directory}/quorum"
        files = self._files or _real_files()
        files.make_directory(self._settings.directory)
        if self._files is None:
            self._at_stop.callback(_lock(self._settings.directory).close)
        create = not is_begun(files, directory) and await self._has_lost_nothing(store)
        with ExitStack() as closing:  # the files are closed after their worker has ended
            worker = self._worker or self._new_worker("loomlog-rounds", closing)
            member = QuorumMember.open(
                *(self._settings.member_id, files, directory, worker),
                create=create,
                file_bytes=self._round_file_bytes,
            )
            self._at_stop.callback(member.close)
            self._at_stop.push(closing.pop_all())
        return member

    async def _has_lost_nothing(self, store: MetaStore) -> bool:
        while True:
            try:
                return await has_lost_nothing(store, self._settings.member_id)
            except (Retryable, SwapUnknown) as error:
                logger.warning("this is a first start, and waits for the MetaStore: %s", error)
                await asyncio.sleep(STORE_RETRY_S)

    def not_leader(self) -> NotLeader:
        """For those who come here although another one leads, or none."""
        return self._leadership.not_leader() if self._leadership else NotLeader("about to stop")

    # ---- leading

    async def begin_term(self, mandate: Mandate) -> Term:
        """This process leads: nodes and clients are served."""
        self.term = await Term.begin(self._settings, mandate, self._new_secret)
        self._requests = Requests(self.term, self._codec)
        return self.term

    async def end_term(self) -> None:
        """It does not lead any more; who is still connected has to look for the one who does."""
        term, self.term = self.term, None
        requests, self._requests = self._requests, None
        if term is not None and requests is not None:
            try:
                await requests.stop()
            finally:
                self._server.disconnect({"client", "vsn"})
                await term.end()

    def _fail(self, error: LoomError) -> None:
        if not self.failed.done():
            logger.critical("this process must end: %s", error)
            self.failed.set_result(error)

    # ---- listening

    async def _listen(self, routes: dict[str, Route]) -> None:
        front = _Front(self, self._codec, routes | {"ask_leader": self._ask_leader})
        self._server = Server(self._codec, front)
        await self._server.start(self._settings.listen)
        self._at_stop.push_async_callback(self._server.stop)
        self._at_stop.push_async_callback(front.stop)
        if self._settings.http is not None:
            await self._listen_http(self._settings.http)

    async def _listen_http(self, address: str) -> None:
        from loomlog.http import HttpServer

        http = HttpServer(
            {
                "/healthz": lambda: ("text/plain; charset=utf-8", b"ok\n"),
                "/status": lambda: ("application/json", json.dumps(self.status()).encode()),
                "/metrics": lambda: ("text/plain; version=0.0.4", self.metrics().encode()),
            }
        )
        await http.start(*split_address(address))
        self._http = http
        self._at_stop.push_async_callback(http.stop)

    def received(self, connection: Connection, frame: Frame, payload: memoryview) -> bool:
        """Whether a term took what a node or a client sent."""
        if self._requests is None:
            return False
        self._requests.frame_received(connection, frame, payload)
        return True

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        if self._requests is not None:
            self._requests.connection_closed(connection, error)

    async def _ask_leader(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        return pb.Frame(leader_beat=self._beat())

    def _beat(self) -> pb.LeaderBeat:
        if self._leadership is not None:
            return self._leadership.beat()
        assert self.term is not None
        epoch, member, address = self.term.leader
        return pb.LeaderBeat(epoch=epoch, leader=member, address=address, heard=True)

    # ---- the real things

    async def _open_sqlite(self, path: str) -> MetaStore:
        from loomlog.metadata.sqlite import SqliteStore

        store = await SqliteStore.open(path, self._new_worker("loomlog-metadata", self._at_stop))
        self._at_stop.push_async_callback(store.close)
        return store

    async def _open_etcd(self) -> MetaStore:
        from loomlog.metadata.etcd import EtcdStore

        settings = self._settings.etcd
        if settings is None:
            raise InvalidArgument("several metadata repositories need an etcd: give its address")
        store = LateStore(lambda: EtcdStore.open(settings))
        self._at_stop.push_async_callback(store.close)
        try:
            await store.open()
        except Retryable as error:
            logger.warning("starts without its MetaStore: %s", error)
        return store

    def _new_worker(self, name: str, at_stop: ExitStack | AsyncExitStack) -> Worker:
        from loomlog.storage.disk import ThreadWorker

        worker = ThreadWorker(asyncio.get_running_loop(), name)
        at_stop.callback(worker.close)
        return worker

    def _new_secret(self) -> str:
        return f"{self._rng.getrandbits(SECRET_BITS):032x}"

    # ---- who we are

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def http_address(self) -> str | None:
        return self._http.address if self._http is not None else None

    def status(self) -> dict[str, Any]:
        """As `loom status --json` shows it; of one that does not lead, what it knows."""
        if self.term is not None:
            return {"role": "leader", **self.term.view.as_dict()}
        assert self._leadership is not None
        return {"role": "follower", **self._leadership.as_dict()}

    def metrics(self) -> str:
        """In Prometheus' text format."""
        if self.term is not None:
            return self.term.view.metrics()
        return follower_metrics(self._beat().epoch)


class _Front(Service):
    """Every connection to a metadata repository. What its peers ask is answered by each of them;
    the rest by the one that leads."""

    def __init__(
        self, repository: MetadataRepository, codec: Codec, routes: dict[str, Route]
    ) -> None:
        super().__init__(codec, routes)
        self._repository = repository
        self._kind = codec.kind
        self._for_all = frozenset(routes)

    def frame_received(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        kind = self._kind(frame)
        if self._stopped or kind in self._for_all:
            super().frame_received(connection, frame, payload)
        elif not self._repository.received(connection, frame, payload):
            self.answer_error(connection, frame, kind, self._repository.not_leader())

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        self._repository.connection_closed(connection, error)


async def _holds() -> None:
    """Whoever is alone leads."""


async def _cannot_change(term: Term, request: pb.ChangeMetadata) -> pb.Changed:
    raise InvalidArgument(
        "this metadata repository is alone: to have several, move its metadata with "
        "`loom metadata export` and `loom metadata import`"
    )


def _real_files() -> Files:
    from loomlog.storage.disk import RealFiles

    return RealFiles()


def _lock(directory: str) -> DirectoryLock:
    from loomlog.storage.disk import lock_directory

    return lock_directory(directory)

"""The metadata repository (vmr) as a process: its files, listeners and services.

While it leads, nodes and clients are served by a term (term.py, requests.py). The embedded form
(SQLite and a file of rounds) leads from its start to its end. One of several leads after it took
over (leadership.py), and is always a member of the round log; it redirects clients and nodes while
it does not lead.

Under the simulator everything that touches the outside is handed in: files and worker (round log),
store (metadata), rng (secrets). Time comes from the loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from loomlog import limits
from loomlog.config import MetadataSettings
from loomlog.core.quorum.member import Leader
from loomlog.errors import (
    DiskFailed,
    InvalidArgument,
    LoomError,
    NotFound,
    NotLeader,
    Retryable,
    SwapUnknown,
)
from loomlog.metadata.leader.leadership import Leadership
from loomlog.metadata.leader.membership import check_granted, has_lost_nothing
from loomlog.metadata.metrics import follower_metrics
from loomlog.metadata.offline.data_directory import (
    check_alone,
    check_of_several,
    database_in,
    has_rounds,
    metadata_missing,
    quorum_in,
    rounds_in,
)
from loomlog.metadata.requests import Front, Requests
from loomlog.metadata.rounds.member_disk import is_begun
from loomlog.metadata.rounds.quorum_member import QuorumMember
from loomlog.metadata.rounds.round_files import FILE_BYTES, FileRoundLog
from loomlog.metadata.store.contract import LateStore, MetaStore
from loomlog.metadata.term import Mandate, Term, explained
from loomlog.net.address import split_address
from loomlog.storage.files import Files, Worker
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Route, Server

if TYPE_CHECKING:
    from loomlog.http import HttpServer
    from loomlog.storage.disk import DirectoryLock

logger = logging.getLogger(__name__)

SECRET_BITS: Final = 128
STORE_RETRY_S: Final = 0.5
LONE_MEMBER: Final = 1  # the id of a metadata repository that runs alone


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
        self._codec = Codec("vmr", cluster_id=settings.cluster_id)
        self._files = files
        self._worker = worker
        self._store = store
        self._rng = rng or random.SystemRandom()
        self._round_file_bytes = round_file_bytes
        self._http: HttpServer | None = None
        self._leadership: Leadership | None = None  # of one of several
        self.term: Term | None = None  # while it leads
        self._routes: dict[str, Route] = {"ask_leader": self._ask_leader}
        self._front = Front(self._codec, self._routes, self.not_leader)
        self._at_stop = AsyncExitStack()  # undone in reverse
        self._troubles: list[Callable[[], str]] = []  # of the disk; empty: none

    # ---- life

    async def start(self) -> None:
        """Recover, then listen. Nodes and clients are served once this has returned."""
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
        if self._files is None:
            watch = asyncio.get_running_loop().create_task(self._watch_directory())
            self._at_stop.callback(watch.cancel)
        logger.info("cluster %r is served on %s", self._settings.cluster_id, self.address)

    async def stop(self) -> None:
        """Stop cleanly, after writes under way. It may be stopped already."""
        await self._at_stop.aclose()

    async def _watch_directory(self) -> None:
        """End the process if its directory is deleted or replaced: writes would be lost."""
        path = self._settings.directory
        inode = _real_files().inode(path)
        while await asyncio.to_thread(_is_at, path, inode):  # noqa: ASYNC110
            await asyncio.sleep(limits.VOLUME_LOOK_S)
        self._fail(
            DiskFailed(
                f"{path} is gone or was replaced: bring it back and start this process again"
            )
        )

    # ---- alone

    async def _start_alone(self) -> None:
        directory = self._settings.directory
        files = self._files or _real_files()
        files.make_directory(directory)
        check_alone(files, directory)
        store = self._store or await self._open_sqlite(files, directory)
        round_log = await self._open_round_log(files, rounds_in(directory), store)
        leader = Leader(round_log.epoch, LONE_MEMBER, "")
        await self.begin_term(
            Mandate(
                leader=leader,
                store=store,
                round_log=round_log,
                confirm=_holds,
                members=self._lone_member,
                change_members=_cannot_change,
                conditions=self._conditions,
            )
        )
        assert self.term is not None
        self.term.over.add_done_callback(lambda over: self._fail(explained(over.result())))
        self._at_stop.push_async_callback(self.end_term)
        await self._listen()

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
            self._troubles.append(lambda: round_log.trouble)
            self._at_stop.push(closing.pop_all())
        return round_log

    def _conditions(self) -> list[str]:
        return [found for trouble in self._troubles if (found := trouble())]

    def _lone_member(self) -> list[pb.MetadataMember]:
        return [pb.MetadataMember(member_id=LONE_MEMBER, address=self.address, reachable=True)]

    # ---- one of several

    async def _start_one_of_several(self) -> None:
        settings = self._settings
        store = self._store or await self._open_etcd()
        member = await self._open_member(store)
        self._leadership = Leadership(
            settings=settings,
            store=store,
            member=member,
            codec=self._codec,
            begin_term=self.begin_term,
            end_term=self.end_term,
            failed=self._fail,
            file_bytes=self._round_file_bytes,
        )
        member.failed.add_done_callback(lambda failed: self._fail(failed.result()))

        async def seal(connection: Connection, frame: Frame, payload: memoryview) -> Frame:
            return await member.seal(frame.round_seal, partial(check_granted, store))

        self._routes |= {**member.routes(self._codec), "round_seal": seal}
        await self._listen()
        self._leadership.start()
        self._at_stop.push_async_callback(self._leadership.stop)

    async def _open_member(self, store: MetaStore) -> QuorumMember:
        directory = quorum_in(self._settings.directory)
        files = self._files or _real_files()
        files.make_directory(self._settings.directory)
        check_of_several(files, self._settings.directory)
        if self._files is None:
            self._at_stop.callback(_lock(self._settings.directory).close)
        create = not is_begun(files, directory) and await self._has_lost_nothing(store)
        with ExitStack() as closing:  # the files are closed after their worker has ended
            worker = self._worker or self._new_worker("loomlog-rounds", closing)
            member = QuorumMember.open(
                self._settings.member_id,
                files,
                directory,
                worker,
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
        """Return the error for clients that come here although another process leads, or none."""
        return self._leadership.not_leader() if self._leadership else NotLeader("about to stop")

    # ---- leading

    async def begin_term(self, mandate: Mandate) -> Term:
        """Serve nodes and clients as the leader."""
        self.term = await Term.begin(self._settings, mandate, self._new_secret)
        self._front.requests = Requests(self.term, self._codec)
        return self.term

    async def end_term(self) -> None:
        """Stop serving; peers that are still connected have to look for the new leader."""
        term, self.term = self.term, None
        requests, self._front.requests = self._front.requests, None
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

    async def _listen(self) -> None:
        self._server = Server(self._codec, self._front)
        await self._server.start(self._settings.listen)
        self._at_stop.push_async_callback(self._server.stop)
        self._at_stop.push_async_callback(self._front.stop)
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

    async def _ask_leader(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        return pb.Frame(leader_beat=self._beat())

    def _beat(self) -> pb.LeaderBeat:
        if self._leadership is not None:
            return self._leadership.beat()
        assert self.term is not None
        epoch, member, address = self.term.leader
        return pb.LeaderBeat(epoch=epoch, leader=member, address=address, heard=True)

    # ---- defaults

    async def _open_sqlite(self, files: Files, directory: str) -> MetaStore:
        from loomlog.metadata.store.sqlite import SqliteStore

        worker = self._new_worker("loomlog-metadata", self._at_stop)
        # The database is made before the first file of rounds.
        create = not has_rounds(files, directory)
        try:
            store = await SqliteStore.open(database_in(directory), worker, create=create)
        except NotFound:
            raise metadata_missing(directory) from None
        self._at_stop.push_async_callback(store.close)
        self._troubles.append(lambda: store.trouble)
        return store

    async def _open_etcd(self) -> MetaStore:
        from loomlog.metadata.store.etcd import EtcdStore

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

    # ---- status

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def http_address(self) -> str | None:
        return self._http.address if self._http is not None else None

    def status(self) -> dict[str, Any]:
        """Return what `loom status --json` shows; what it knows, if it does not lead."""
        if self.term is not None:
            return {"role": "leader", **self.term.view.as_dict()}
        assert self._leadership is not None
        return {"role": "follower", **self._leadership.as_dict()}

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        if self.term is not None:
            return self.term.view.metrics()
        return follower_metrics(self._beat().epoch)


async def _holds() -> None:
    """Return at once: a process that is alone leads."""


async def _cannot_change(term: Term, request: pb.ChangeMetadata) -> pb.Changed:
    raise InvalidArgument(
        "this metadata repository is alone: to have several, move its metadata with "
        "`loom metadata export` and `loom metadata import`"
    )


def _is_at(path: str, inode: int) -> bool:
    try:
        return _real_files().inode(path) == inode
    except OSError:
        return False


def _real_files() -> Files:
    from loomlog.storage.disk import RealFiles

    return RealFiles()


def _lock(directory: str) -> DirectoryLock:
    from loomlog.storage.disk import lock_directory

    return lock_directory(directory)

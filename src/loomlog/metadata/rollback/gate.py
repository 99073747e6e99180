"""The gate lets a metadata repository act only if its metadata is the newest that ever existed.

Every term is a run (core/history.py). Nothing is changed, and no request that depends on current
metadata is served, before enough storage nodes have durably stored the run. A node that knows a run
or a change which this metadata lacks shuts the gate permanently: the metadata lacks acknowledged
changes. This is recorded in the metadata, too, and ends only with `loom metadata catch-up`. The
gate does not wait for a node that an operator removes by force or replaces, which is the only
change that can be written while it is closed.

A majority of all nodes is enough. After EMPTY_WAIT_S, a majority of those that hold data is enough,
too, so that nodes which were only tried out do not stop the cluster. By then every running node has
registered and reported its runs. If no node holds data, all of them count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from loomlog.core.history import History, PastRun, Run, Seen, enough
from loomlog.errors import LoomError, RolledBack, Unauthorized, Unavailable
from loomlog.metadata.catalog.records import (
    HISTORY,
    HistoryRecord,
    NodeRecord,
    decode,
    encode,
    node_key,
)
from loomlog.metadata.store.contract import Fence, FencedStore, MetaStore, StoredItem
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

logger = logging.getLogger(__name__)

WAIT_S: Final = 1.0  # for enough nodes; then the caller tries again
COMMAND_WAIT_S: Final = 10.0  # from this age of a run on, operators' commands fail at once
EMPTY_WAIT_S: Final = 3.0  # for nodes without data; all running ones have tried to register by then
SAVE_S: Final = 2.0  # when a term ends, for the reason why it was shut
TELL_S: Final = 0.1  # between revisions sent to nodes, which store them durably,
TELL_NODE_S: Final = 0.001  # or this for each node, if that is longer


class Gate:
    """Open until `begin`, so that the term can be loaded. `shut` is called when it is shut."""

    def __init__(self, store: MetaStore, shut: Callable[[RolledBack], None]) -> None:
        self._store = store
        self._shut = shut
        self._loop = asyncio.get_running_loop()
        self._record = HistoryRecord()
        self._history = History()
        self._version = 0  # of the record
        self._begun_s = 0.0
        self._required: frozenset[NodeId] = frozenset()
        self._find_holders: Callable[[], set[NodeId]] = set
        self._holders: frozenset[NodeId] = frozenset()  # once nodes without data are not waited for
        self._empty_wait: asyncio.TimerHandle | None = None
        self._given_up: set[NodeId] = set()  # by an operator, while this was closed
        self._agreed: set[NodeId] = set()  # they know nothing that this metadata lacks
        self._noted: set[NodeId] = set()
        self._connections: dict[NodeId, Connection] = {}
        self.doubt = ""  # a node's claim that does not count
        self._confirmed = asyncio.Event()  # enough nodes agreed
        self._opened = asyncio.Event()  # enough nodes have stored the run
        self._opened.set()
        self.rolled_back: RolledBack | None = None  # set once it is shut
        self._revision = 0
        self._telling: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None

    async def begin(
        self,
        run_id: str,
        nodes: Mapping[NodeId, NodeRecord],
        find_holders: Callable[[], set[NodeId]],
    ) -> None:
        """Begin a run, and close until enough of the nodes have stored it. `find_holders` returns
        those that hold data."""
        self._find_holders = find_holders
        item = await self._store.get(HISTORY)
        if item is not None:
            self._record = decode(HistoryRecord, HISTORY, item.value)
        begun_at = item.version if item is not None else 0
        self._history = history_of(self._record).stored_at(begun_at).begin(run_id)
        self._record = replace(self._record, runs=fields_of(self._history))
        self._version = await self._store.compare_and_swap(HISTORY, begun_at, encode(self._record))
        self._history = self._history.stored_at(self._version)
        self._revision = self._version
        staying = (n for n in nodes.values() if not n.removing and not n.replaceable)
        self._required = frozenset(n.node_id for n in staying).difference(self._record.without)
        self._begun_s = self._loop.time()
        if self._required:
            self._opened.clear()
            self._empty_wait = self._loop.call_later(EMPTY_WAIT_S, self._stop_empty_wait)
        if self._record.rolled_back:
            self._close(self._record.rolled_back)

    async def stop(self) -> None:
        for timer in (self._telling, self._empty_wait):
            if timer is not None:
                timer.cancel()
        if self._saving is not None:
            await asyncio.wait({self._saving}, timeout=SAVE_S)
            self._saving.cancel()

    # ---- checks

    @property
    def was_caught_up(self) -> bool:
        """True if this metadata was restored from a copy and brought up to date with the nodes."""
        return self._record.lease_epochs > 0

    @property
    def condition(self) -> str:
        """Return why nothing may be changed, or ""."""
        if self.rolled_back is not None:
            return str(self.rolled_back)
        return "" if self._opened.is_set() else self._waiting()

    def check_not_shut(self) -> None:
        if self.rolled_back is not None:
            raise self.rolled_back

    def check(self) -> None:
        """Raise RolledBack, or Unavailable while waiting for nodes."""
        self.check_not_shut()
        if not self._opened.is_set():
            raise Unavailable(self._waiting())

    def check_write(self, key: str) -> None:
        """Raise like `check`, unless the write gives up a node."""
        self.check_not_shut()
        if key not in map(node_key, self._given_up):
            self.check()

    async def wait(self) -> None:
        """Check like `check`, but wait at the start of a run for nodes that may register."""
        await self.wait_for_nodes()
        self.check()

    async def wait_for_nodes(self) -> None:
        """Wait at the start of a run for nodes that may register, and raise RolledBack if one of
        them has newer information, because the metadata of logs may be old."""
        await _moment(self._opened, WAIT_S - self._age_s())
        self.check_not_shut()

    async def wait_for_command(self) -> None:
        """Wait like `wait`, but fail at once for operators when no more nodes are expected."""
        try:
            await self.wait()
        except Unavailable as error:
            if self._age_s() < COMMAND_WAIT_S:
                raise
            raise LoomError(f"nothing was changed: {error}") from error

    def _age_s(self) -> float:
        return self._loop.time() - self._begun_s

    def _waiting(self) -> str:
        counted = self._counted()
        missing = ", ".join(map(str, sorted(counted - self._agreed)))
        done = len(counted & self._agreed)
        return (
            f"{done} of {len(counted)} storage nodes have confirmed that this metadata is "
            f"the newest, {enough(len(counted))} are needed: start some of node {missing}; "
            "if they are lost, run `loom node replace N` or `loom node remove N --force` for each"
        )

    # ---- nodes

    def is_contradicted_by(self, known: pb.NoteRun) -> bool:
        """Return whether the node stored this run for other metadata than this."""
        return bool(self._history.contradiction(seen_from_wire(known)))

    async def admit(self, node: NodeId, connection: Connection, known: pb.NoteRun) -> None:
        """Admit a node once it and enough others have stored this run. No node stores a run before
        enough agree to it, so that metadata that went back in time leaves no trace."""
        self.compare(node, known, is_registered=True)
        self._agreed.add(node)
        self._look()
        await _moment(self._confirmed, WAIT_S)
        self.check_not_shut()
        if not self._confirmed.is_set():
            raise Unavailable(self._waiting())
        if seen_from_wire(known).run != self._history.newest:
            await connection.request(pb.Frame(note_run=self._to_note()))
        self._connections[node] = connection
        self._noted.add(node)
        self._look()
        await _moment(self._opened, WAIT_S)
        self.check()

    def compare(self, node: NodeId, known: pb.NoteRun, *, is_registered: bool) -> None:
        """Shut the gate if a node of this cluster has newer information than this metadata. A node
        that has stored this run is not evidence: if it has stored another one since, that belongs
        to a copy of this metadata. Nor is an unregistered node, once most registered ones agree."""
        self.check_not_shut()
        contradiction = self._history.contradiction(seen_from_wire(known))
        if not contradiction:
            return
        is_outvoted = self._opened.is_set() and bool(self._noted)
        if node in self._noted or (is_outvoted and not is_registered):
            self._refuse(node, contradiction)
        self._contradicted(node, contradiction)

    def _refuse(self, node: NodeId, what: str) -> None:
        doubt = (
            f"a node {node} was refused that {what}: if it is of this cluster, this metadata is "
            "not the newest, see `loom metadata catch-up`; else check its --mr"
        )
        if self.doubt != doubt:
            logger.error("%s", doubt)
            self.doubt = doubt
        raise Unauthorized(doubt)

    @contextmanager
    def giving_up(self, node: NodeId) -> Iterator[None]:
        """Let an operator record that the node is lost; after that, do not wait for it."""
        self._given_up.add(node)
        try:
            yield
        except BaseException:
            self._given_up.discard(node)
            raise
        self._required -= {node}
        self._look()

    def _look(self) -> None:
        if self._are_enough(self._agreed):
            self._confirmed.set()
        if self._are_enough(self._noted):
            self._opened.set()

    def _are_enough(self, nodes: set[NodeId]) -> bool:
        """Return whether these are a majority of all nodes, or of those that count now."""
        groups = (self._required, self._counted())
        return any(len(group & nodes) >= enough(len(group)) for group in groups)

    def _counted(self) -> frozenset[NodeId]:
        return self._required & self._holders or self._required

    def _stop_empty_wait(self) -> None:
        """Continue without nodes that hold no data and have not registered."""
        if not self._opened.is_set():
            self._holders = self._required & self._find_holders()
            self._look()

    def _contradicted(self, node: NodeId, what: str) -> None:
        if node in self._record.without:
            raise Unauthorized(
                f"node {node} was given up by `loom metadata catch-up`, and {what}: to use it "
                f"again, run `loom node replace {node}` and start it with empty volumes"
            )
        self.shut(f"node {node} {what}")
        self.check_not_shut()

    def _to_note(self) -> pb.NoteRun:
        number, run_id = self._history.newest
        return pb.NoteRun(number=number, id=run_id, revision=self._revision)

    # ---- revisions

    def wrote(self, revision: int) -> None:
        """Called after a change; nodes are notified a moment later."""
        self._revision = max(self._revision, revision)
        if self._telling is None and self._connections:
            delay_s = max(TELL_S, TELL_NODE_S * len(self._connections))
            self._telling = self._loop.call_later(delay_s, self._tell)

    def _tell(self) -> None:
        self._telling = None
        frame = pb.Frame(note_run=self._to_note())
        for node, connection in list(self._connections.items()):
            if connection.closed:
                del self._connections[node]
            else:
                connection.call(frame, (), _ignore)

    # ---- rollback

    def shut(self, reason: str) -> None:
        """Shut the gate permanently, because this metadata is older than that of a node."""
        if self.rolled_back is None:
            logger.critical("the metadata went back in time: %s", reason)
            self._record = replace(self._record, rolled_back=reason)
            self._saving = self._loop.create_task(self._save())
            self._close(reason)

    def _close(self, reason: str) -> None:
        self.rolled_back = RolledBack(
            f"the metadata went back in time, {reason}: restore a newer copy, or stop the metadata "
            "repository and run `loom metadata catch-up`"
        )
        self._confirmed.set()
        self._opened.set()
        self._shut(self.rolled_back)

    async def _save(self) -> None:
        """Record the contradiction, so that the next run knows it even without that node."""
        record = replace(self._record, runs=fields_of(self._history.settled()))
        try:
            await self._store.compare_and_swap(HISTORY, self._version, encode(record))
        except LoomError as error:
            logger.warning("could not record that the metadata went back in time: %s", error)


class ObservedStore(FencedStore):
    """A view of a store that shuts the gate if the store itself went back in time."""

    def __init__(self, store: MetaStore, gate: Gate) -> None:
        super().__init__(store)
        self._gate = gate
        self.get = self._get
        self.list = self._list

    async def _get(self, key: str) -> StoredItem | None:
        with self._shutting():
            return await self._store.get(key)

    async def _list(self, prefix: str) -> dict[str, StoredItem]:
        with self._shutting():
            return await self._store.list(prefix)

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        with self._shutting():
            return await super().compare_and_swap(key, expected, value, fences=fences)

    @contextmanager
    def _shutting(self) -> Iterator[None]:
        try:
            yield
        except RolledBack as error:
            logger.critical("%s", error)
            self._gate.shut("because its store lacks changes that it had confirmed")
            raise


class GatedStore(ObservedStore):
    """A view of a store that also refuses writes while the gate is closed."""

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        self._gate.check_write(key)
        version = await super().compare_and_swap(key, expected, value, fences=fences)
        self._gate.wrote(version)
        return version


async def _moment(event: asyncio.Event, wait_s: float) -> None:
    """Wait for an event for a short time."""
    if not event.is_set() and wait_s > 0:
        try:
            async with asyncio.timeout(wait_s):
                await event.wait()
        except TimeoutError:
            pass


def history_of(record: HistoryRecord) -> History:
    return History(tuple(PastRun(Run(number, id_), until) for number, id_, until in record.runs))


def fields_of(history: History) -> tuple[tuple[int, str, int], ...]:
    return tuple((run.number, run.id, until) for run, until in history.runs)


def seen_from_wire(message: pb.NoteRun) -> Seen:
    return Seen(Run(message.number, message.id), message.revision)


def _ignore(answer: object, payload: memoryview) -> None:
    """Ignore the answer: a node that could not store a revision gets the next one."""

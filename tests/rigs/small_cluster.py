"""A metadata repository on loopback with scripted nodes, real nodes, or both, for tests that tell a
story."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Self, TypedDict

from cluster_requests import ClusterRequests
from log_user import LogUser
from poll import until
from real_nodes import RealNodes
from scripted_node import PATIENCE_S, ScriptedNode

from loomlog.config import MetadataSettings
from loomlog.core.chained.messages import LIST_MAX, List, Listed
from loomlog.core.chained.reconfigure import (
    Goal,
)
from loomlog.core.copyset.record import Lsn
from loomlog.errors import Unavailable
from loomlog.metadata import MetadataRepository
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.keeper import ChainedKeeper
from loomlog.metadata.store.memory import MemoryStore
from loomlog.storage.disk import RealFiles
from loomlog.storage.files import Worker
from loomlog.testing.ports import free_address
from loomlog.types import ReplicaState


class Times(TypedDict):
    failure_detection_s: float
    heartbeat_s: float


QUICK: Final[Times] = {"failure_detection_s": 2.0, "heartbeat_s": 0.1}  # where nodes die


class SmallCluster(ClusterRequests, RealNodes):
    """`async with SmallCluster(path, scripted=3) as cluster:`

    Scripted nodes are in `nodes` and have heartbeats, real ones are in `storage`. The repository
    keeps rounds in real files and metadata in SQLite, unless a store or a worker is handed in: a
    worker decides when rounds are written, and then metadata is in memory."""

    def __init__(
        self,
        directory: Path,
        *,
        scripted: int = 0,
        real: int = 0,
        worker: Worker | None = None,
        store: MemoryStore | None = None,
        failure_detection_s: float = 30.0,
        heartbeat_s: float = 1.0,
        replace_after_s: float | None = None,
        sync_bytes_per_s: int = 0,
        round_file_bytes: int = 64 * 1024,
    ) -> None:
        ClusterRequests.__init__(self)
        RealNodes.__init__(self, directory)
        self.settings = MetadataSettings(
            cluster_id="test",
            directory=str(directory / "vmr"),
            listen=free_address(),
            http=None,
            failure_detection_s=failure_detection_s,
            heartbeat_s=heartbeat_s,
            replace_after_s=replace_after_s,
            sync_bytes_per_s=sync_bytes_per_s,
        )
        self._scripted = scripted
        self._real = real
        self._rng = random.Random(7)
        self._worker = worker
        self._store = MemoryStore() if store is None and worker is not None else store
        self._round_file_bytes = round_file_bytes
        self.nodes: list[ScriptedNode] = []
        self.tails: dict[int, Lsn] = {}  # of copyset loglets, as scripted nodes know them
        self._addresses: dict[str, ScriptedNode] = {}

    async def __aenter__(self) -> Self:
        await self.start_repository()
        self.settings = replace(self.settings, listen=self.address)
        self.log = LogUser(self.address)
        await self.add_beating_nodes(self._scripted)
        await asyncio.gather(*(self.start_node(n) for n in range(1, self._real + 1)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.log.close()
        await asyncio.gather(*map(self.stop_node, list(self.storage)))
        for node in self.nodes:
            await node.crash()
        if self.client.connection is not None:
            await self.client.disconnect()
        await self.repository.stop()

    # ---- the metadata repository

    async def start_repository(self) -> None:
        self.repository = MetadataRepository(
            self.settings,
            files=RealFiles(),
            worker=self._worker,
            store=self._store,
            rng=self._rng,
            round_file_bytes=self._round_file_bytes,
        )
        await self.repository.start()
        await self.client.connect(self.address)

    async def stop_repository(self) -> None:
        await self.repository.stop()
        await self.client.until(lambda: self.client.connection is None)
        for node in self.nodes:
            await node.until(lambda node=node: node.connection is None)  # type: ignore[misc]

    async def restart_repository(self) -> None:
        """Stop and start it on the same data; scripted nodes have to join again."""
        await self.stop_repository()
        await self.start_repository()

    @property
    def address(self) -> str:
        return self.repository.address

    @property
    def keeper(self) -> ChainedKeeper:
        """The keeper of chained segments in this term."""
        assert self.repository.term is not None
        keeper = self.repository.term.keepers["chained"]
        assert isinstance(keeper, ChainedKeeper)
        return keeper

    @property
    def driver(self) -> Driver:
        """Asks replicas of chains as the metadata repository does."""
        return self.keeper.driver

    async def no_records_left(self) -> None:
        """Wait until nothing is known of any chained or copyset segment."""
        keeper, term = self.keeper, self.repository.term
        await until(lambda: not list(keeper.records))
        assert term is not None
        async with asyncio.timeout(PATIENCE_S):
            while await term.store.list("copyset/"):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)

    async def new_epoch(self, loglet: int) -> None:
        """Begin an epoch of chains. If it has to be tried again, the upkeep does that."""
        with suppress(Unavailable):
            await self.keeper.upkeep.epochs.next(loglet, Goal(), "a test wants it")

    async def replicas_agree(self) -> None:
        """Check that all replicas of a chain have the same blocks. Call it when all entries were
        read."""
        for record in self.keeper.records:
            projection = record.projection
            request = List(projection.epoch, 1, LIST_MAX)
            for chain in projection.chains:
                answers = [await self.driver.ask(replica, request) for replica in chain]
                assert all(answer == answers[0] for answer in answers), answers
                assert isinstance(answers[0], Listed)

    # ---- scripted nodes

    async def add_nodes(self, count: int, location: str = "") -> list[ScriptedNode]:
        for _ in range(count):
            node = ScriptedNode(len(self.nodes) + 1, self.tails)
            node.location = location
            node.peers = self._addresses
            await node.join(self.address)
            self._addresses[node.address] = node
            self.nodes.append(node)
        return self.nodes

    async def add_beating_nodes(self, count: int, location: str = "") -> list[ScriptedNode]:
        for node in (await self.add_nodes(count, location))[len(self.nodes) - count :]:
            node.start_heartbeat()
        return self.nodes

    def vsn(self, node_id: int) -> ScriptedNode:
        return self.nodes[node_id - 1]

    async def rejoin(self, *nodes: ScriptedNode) -> None:
        """Let nodes join again, after a restart of the repository or of their processes."""
        away = [node for node in nodes if node.connection is None]
        await asyncio.gather(*(node.join(self.address) for node in away))
        for node in nodes:
            node.stop_heartbeat()
            node.start_heartbeat()


async def all_run(nodes: list[ScriptedNode], stream_id: int, *, epoch: int | None = None) -> None:
    """Wait until the stream runs on all these nodes (in that epoch)."""
    for node in nodes:

        def runs(node: ScriptedNode = node) -> bool:
            replica = node.replicas.get(stream_id)
            return (
                replica is not None
                and replica.state is ReplicaState.RUNNING
                and epoch in (None, replica.epoch)
            )

        await node.until(runs)


def write_all(nodes: list[ScriptedNode], stream_id: int, count: int) -> None:
    for node in nodes:
        if stream_id in node.replicas:
            node.write(stream_id, count)


async def told(node: ScriptedNode, stream_id: int, high_watermark: int) -> None:
    """Wait until the node's replica knows the log up to this position."""
    context = node.replicas[stream_id].context
    await node.until(lambda: context.high_watermark >= high_watermark)


def commits(node: ScriptedNode, stream_id: int) -> list[tuple[int, int, int]]:
    """(first position, first LLSN, length) of what the node's replica was given."""
    found = [commit for stream, commit in node.commits if stream == stream_id]
    return [(c.glsn, c.llsn, c.length) for c in found if c.length]


async def turns(count: int = 3) -> None:
    """Let the loop go round, for things that must NOT happen."""
    for _ in range(count):
        await asyncio.sleep(0)

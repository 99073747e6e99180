"""A metadata repository with real storage nodes in this process, and a client of chains."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from chained_client import ChainedClient
from scripted_node import PATIENCE_S
from small_cluster import SmallCluster

from loomlog.config import NodeSettings
from loomlog.core.chained.messages import List, Listed, Refused
from loomlog.core.chained.reconfigure import Goal
from loomlog.errors import Unavailable
from loomlog.limits import CHAIN_LIST_MAX
from loomlog.metadata.chained.driver import Driver
from loomlog.metadata.chained.keeper import ChainedKeeper
from loomlog.node import StorageNode
from loomlog.storage.chained.block_table import BlockTable
from loomlog.testing.services import chained_on
from loomlog.wire import loomlog_pb2 as pb


class ChainedCluster(SmallCluster):
    """`async with ChainedCluster(path, nodes=3) as cluster:`"""

    def __init__(self, directory: Path, nodes: int = 3, **settings: Any) -> None:
        slowly = settings.pop("sync_bytes_per_s", 0)
        settings = {"failure_detection_s": 1.0, "heartbeat_s": 0.1, **settings}
        super().__init__(directory / "vmr", **settings)
        self.settings = replace(self.settings, sync_bytes_per_s=slowly)
        self._directory = directory
        self._count = nodes
        self.storage: dict[int, StorageNode] = {}
        self.chains = ChainedClient(self.client)

    async def __aenter__(self) -> ChainedCluster:
        await super().__aenter__()
        self.settings = replace(self.settings, listen=self.repository.address)
        await asyncio.gather(*(self.start_node(n) for n in range(1, self._count + 1)))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.chains.close()
        await asyncio.gather(*map(self.stop_node, list(self.storage)))
        await super().__aexit__(*error)

    async def start_node(self, node_id: int) -> None:
        volume = self._directory / f"vsn-{node_id}"
        volume.mkdir(exist_ok=True)
        node = StorageNode(
            NodeSettings(
                node_id=node_id,
                cluster_id="test",
                volumes=(str(volume),),
                metadata=(self.address,),
            )
        )
        await node.start()
        self.storage[node_id] = node
        await node.registered()

    async def stop_node(self, node_id: int) -> None:
        await self.storage.pop(node_id).stop()

    def lose_disk(self, node_id: int) -> None:
        """Of a node that does not run."""
        shutil.rmtree(self._directory / f"vsn-{node_id}")

    async def restart_repository(self) -> None:
        await self.stop_repository()
        await self._start()

    async def stop_repository(self) -> None:
        await self.repository.stop()
        await self.client.until(lambda: self.client.connection is None)

    async def start_repository(self) -> None:
        await self._start()

    async def no_chains_left(self, *nodes: int) -> None:
        """Wait until nodes have no replicas of chains."""
        await until(lambda: not any(map(self.replicas_of, nodes)))

    def replicas_of(self, node: int) -> list[pb.ChainReplicaRef]:
        """Of chains."""
        return chained_on(self.storage[node]).found()

    def refuse_chains(self, node: int) -> Callable[[], None]:
        """Keep a node that has no chains from opening a table, until the result is called."""
        (volume,) = chained_on(self.storage[node])._volumes._volumes
        opens = volume._open_table
        volume._open_table = _cannot_open

        def heal() -> None:
            volume._open_table = opens

        return heal

    def fail_disk(self, node: int) -> Callable[[], None]:
        """All that it is asked about chains is refused from now on, until the result is called."""

        def heal() -> None:
            volume._open_table = opens

        (volume,) = chained_on(self.storage[node])._volumes._volumes
        opens = volume._open_table
        assert volume._store is not None
        volume._open_table = _cannot_open
        volume._store.failed = Refused("the disk failed")
        return heal

    @property
    def driver(self) -> Driver:
        """Asks replicas as the metadata repository does."""
        return self.keeper.driver

    @property
    def keeper(self) -> ChainedKeeper:
        """The keeper of this term."""
        assert self.repository.term is not None
        keeper = self.repository.term.keepers["chained"]
        assert isinstance(keeper, ChainedKeeper)
        return keeper

    async def no_records_left(self) -> None:
        """Wait until nothing is known of any chained segment."""
        keeper = self.keeper
        await until(lambda: not list(keeper.records))

    async def new_epoch(self, loglet: int) -> None:
        """Fine if it has to be tried again: the loop does that."""
        with suppress(Unavailable):
            await self.keeper.upkeep.epochs.next(loglet, Goal(), "a test wants it")

    async def replicas_agree(self) -> None:
        """When all entries were read: every replica has all blocks of its chain."""
        for projection in await self.chains.projections():
            request = List(projection.epoch, 1, CHAIN_LIST_MAX)
            for chain in projection.chains:
                answers = [await self.driver.ask(replica, request) for replica in chain]
                assert all(answer == answers[0] for answer in answers), answers
                assert isinstance(answers[0], Listed)

    # ---- what a client asks

    async def create_chained(
        self, name: str = "events", chains: int = 1, replicas: int = 3
    ) -> pb.Log:
        request = pb.CreateLog(name=name, protocol="chained", streams=chains, replicas=replicas)
        return (await self.client.ask(pb.Frame(create_log=request))).log

    async def switch(
        self, protocol: str, name: str = "events", streams: int = 0, replicas: int = 0
    ) -> pb.Changed:
        request = pb.SwitchLog(name=name, protocol=protocol, streams=streams, replicas=replicas)
        return (await self.client.ask(pb.Frame(switch_log=request))).changed

    async def log_is(self, true: Callable[[pb.Log], bool], name: str = "events") -> pb.Log:
        """Wait until the metadata repository says so about a log."""
        log = pb.Log()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not true(log := await self.describe(name)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"it never came true; the log is {log}") from None
        return log


def _cannot_open(path: str) -> BlockTable:
    raise OSError("the disk failed")


def chained(log: pb.Log) -> pb.LogStream:
    """The stream of its newest chained segment."""
    return [stream for stream in log.streams if stream.protocol == "chained"][-1]


def nodes_of(stream: pb.LogStream) -> list[list[int]]:
    """Chain by chain, head first."""
    chains = stream.projection.chains
    return [[replica.storage_node_id for replica in chain.replicas] for chain in chains]


def is_whole(log: pb.Log, replicas: int = 3) -> bool:
    """Every chain of its newest chained segment has all its replicas."""
    return all(len(nodes) == replicas for nodes in nodes_of(chained(log)))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)

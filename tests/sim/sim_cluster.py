"""A whole cluster on simulated hosts: the real servers on the simulated clock, network and disks.

    vmr      the metadata repository; its MetaStore outlives it, as a durable store would
    vmr-N    several of them, which share that store
    vsn-N    storage nodes
    …        clients

What can be set is drawn from the seed (`Shape.draw`), with small files, so that rolls, recycling
and snapshots happen all the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Unpack
from unittest.mock import patch

import certificates
from shared_store import SharedStore
from sim_tables import SimLogs, SimTable

from loomlog import limits
from loomlog.client.cluster import Cluster, connect
from loomlog.client.settings import ClientOptions
from loomlog.config import MetadataSettings, NodeSettings, StorageSettings
from loomlog.core.ordered import repair
from loomlog.core.segments import Settings
from loomlog.errors import AlreadyExists, LoomError, Retryable, RolledBack
from loomlog.metadata import MetadataRepository
from loomlog.metadata.ordered import relief
from loomlog.node import StorageNode
from loomlog.testing.sim.host import Main, Process
from loomlog.testing.sim.simulation import Simulation
from loomlog.types import SyncMode

CLUSTER_ID = "sim"
METADATA = "vmr"
METADATA_PORT = 7400
NODE_PORT = 7401
VOLUME = "/data"
CONNECT_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers that are large in life, and made small here, so that little data reaches them."""

    nearly_entries: int
    far_entries: int
    copy_part_bytes: int
    read_chunk_bytes: int
    unneeded_s: float

    @classmethod
    def draw(cls, random: Random) -> Bounds:
        nearly = random.choice((3, 30, BOUNDS.nearly_entries))
        return cls(
            nearly_entries=nearly,
            far_entries=random.choice((nearly, 3 * nearly, BOUNDS.far_entries)),
            copy_part_bytes=random.choice((1, 2048, BOUNDS.copy_part_bytes)),
            read_chunk_bytes=random.choice((2048, BOUNDS.read_chunk_bytes)),
            unneeded_s=random.choice((0.0, 0.5, BOUNDS.unneeded_s)),
        )

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with (
            patch.object(repair, "NEARLY_ENTRIES", self.nearly_entries),
            patch.object(repair, "FAR_ENTRIES", self.far_entries),
            patch.object(limits, "COPY_PART_BYTES", self.copy_part_bytes),
            patch.object(limits, "READ_CHUNK_BYTES", self.read_chunk_bytes),
            patch.object(relief, "UNNEEDED_S", self.unneeded_s),
        ):
            yield


BOUNDS = Bounds(
    repair.NEARLY_ENTRIES,
    repair.FAR_ENTRIES,
    limits.COPY_PART_BYTES,
    limits.READ_CHUNK_BYTES,
    relief.UNNEEDED_S,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The kind of cluster, and of the log in it."""

    nodes: int
    streams: int
    replicas: int
    storage: StorageSettings
    round_file_bytes: int
    failure_detection_s: float
    heartbeat_s: float
    replace_after_s: float | None = None
    rebuild_after_s: float = limits.REBUILD_AFTER_S
    bounds: Bounds = BOUNDS
    metadata: int = 1  # repositories
    spare_metadata: int = 0  # that are not started with the others, and no members yet
    leader_silence_s: float = 2.0
    retention_interval_s: float = limits.RETENTION_INTERVAL_S
    min_replicas: int | None = None  # of logs that SimCluster.create_log creates; None: the default

    @property
    def replicas_least(self) -> int:
        """The number of replicas that an acknowledged entry has if nodes are away."""
        settings = Settings("", self.streams, self.replicas, min_replicas=self.min_replicas or 0)
        return settings.replicas_least

    @classmethod
    def draw(cls, random: Random, *, power_losses: bool) -> Shape:
        """Draw one of all shapes; with power losses, only those with sync=always."""
        nodes = random.choice((3, 4, 4, 5))
        careless = not power_losses and random.random() < 0.4
        return cls(
            nodes=nodes,
            streams=random.randint(1, 3),
            replicas=random.choice((1, 2, 2, 2, 3, 3, 3)),
            storage=StorageSettings(
                sync=SyncMode.INTERVAL if careless else SyncMode.ALWAYS,
                data_file_bytes=random.choice((2048, 4096, 16384)),
                commit_file_bytes=random.choice((1280, 2048, 8192)),
                index_interval_bytes=random.choice((256, 1024)),
                commit_sync_delay_s=random.choice((0.005, 0.05)),
                spare_files_max=random.choice((0, 1, 2)),
            ),
            round_file_bytes=random.choice((1024, 4096, 65536)),
            failure_detection_s=random.choice((0.4, 0.8, 2.0)),
            heartbeat_s=0.1,
            replace_after_s=random.choice((None, None, 1.0)),
            bounds=Bounds.draw(random),
        )


class SimCluster:
    """The servers of a cluster. `servers` is what a Nemesis may stop and start."""

    def __init__(self, sim: Simulation, shape: Shape) -> None:
        self.sim = sim
        self.shape = shape
        # Of the life that runs, or ran last:
        self.repositories: dict[str, MetadataRepository] = {}
        self.nodes: dict[str, StorageNode] = {}
        self.store = SharedStore(sim.world)
        self.metadata_names = [METADATA]
        if shape.metadata > 1:
            count = shape.metadata + shape.spare_metadata
            self.metadata_names = [f"{METADATA}-{number}" for number in range(1, count + 1)]
        self.node_names = [f"vsn-{number}" for number in range(1, shape.nodes + 1)]
        self.servers: Mapping[str, Main] = {
            **dict.fromkeys(self.metadata_names, self._serve_metadata),
            **dict.fromkeys(self.node_names, self._serve_node),
        }

    @property
    def leader(self) -> str | None:
        """The host whose metadata repository leads, or believes so."""
        for name, repository in self.repositories.items():
            if repository.term is not None and self.sim.host(name).running:
                return name
        return None

    @property
    def metadata_addresses(self) -> list[str]:
        return [f"{name}:{METADATA_PORT}" for name in self.metadata_names]

    def slow_down(self, network: float, disks: float) -> None:
        """Multiply how long messages and disks take; 1 is as on a good day."""
        self.sim.network.settings.delay_s *= network
        for name in self.servers:
            settings = self.sim.host(name).disk.settings
            settings.step_delay_s *= disks
            settings.tail_delay_s *= disks

    def start(self) -> None:
        spare = self.metadata_names[self.shape.metadata :]
        for name, main in self.servers.items():
            if name in spare:
                continue
            host = self.sim.host(name)
            if name in self.node_names:
                files = host.disk.mount()
                files.make_directory(VOLUME)
                files.sync_directory("/")
            host.start(main)

    async def connect(
        self, process: Process, name: str = "", **settings: Unpack[ClientOptions]
    ) -> Cluster:
        """Connect a client; wait for the metadata repository if necessary. Several in one process
        need names, from which their producer ids are made."""
        rng = Random(f"{self.sim.world.seed} {process.host.name}{name} {len(process.host.lives)}")
        settings["spin_s"] = 0.0  # a loop that does not sleep would stop the simulated time
        addresses = self.metadata_addresses
        rng.shuffle(addresses)
        while True:
            try:
                return await connect(addresses, rng=rng, clock=lambda: time.time(), **settings)
            except (Retryable, RolledBack):
                await asyncio.sleep(CONNECT_AGAIN_S)

    async def create_log(self, cluster: Cluster, name: str, protocol: str) -> None:
        """Create a log of this shape; repeat that while nodes are just starting."""
        streams = 1 if protocol == "copyset" else self.shape.streams
        while True:
            try:
                await cluster.create_log(
                    name,
                    protocol=protocol,
                    streams=streams,
                    replicas=self.shape.replicas,
                    min_replicas=self.shape.min_replicas,
                )
                return
            except LoomError:
                await asyncio.sleep(CONNECT_AGAIN_S)

    async def _serve_metadata(self, process: Process) -> None:
        name = process.host.name
        addresses = dict(enumerate(self.metadata_addresses, 1))
        number = self.metadata_names.index(name) + 1
        peers = {n: at for n, at in addresses.items() if n <= self.shape.metadata or n == number}
        repository = MetadataRepository(
            MetadataSettings(
                cluster_id=CLUSTER_ID,
                directory="/vmr",
                listen=addresses[number],
                http=None,
                failure_detection_s=self.shape.failure_detection_s,
                heartbeat_s=self.shape.heartbeat_s,
                replace_after_s=self.shape.replace_after_s,
                rebuild_after_s=self.shape.rebuild_after_s,
                member_id=number,
                peers=peers if self.shape.metadata > 1 else {},
                leader_silence_s=self.shape.leader_silence_s,
                retention_interval_s=self.shape.retention_interval_s,
                tls=certificates.place(self.sim),
            ),
            files=process.files,
            worker=process.worker(),
            store=self.store,
            rng=Random(f"{self.sim.world.seed} {name} {len(process.host.lives)}"),
            round_file_bytes=self.shape.round_file_bytes,
        )
        await repository.start()
        self.repositories[name] = repository
        raise await repository.failed

    async def _serve_node(self, process: Process) -> None:
        name = process.host.name
        node = StorageNode(
            NodeSettings(
                node_id=int(name.removeprefix("vsn-")),
                cluster_id=CLUSTER_ID,
                volumes=(VOLUME,),
                metadata=tuple(self.metadata_addresses),
                listen=f"{name}:{NODE_PORT}",
                storage=self.shape.storage,
                tls=certificates.place(self.sim),
            ),
            files=process.files,
            new_worker=process.worker,
            open_store={
                "chained": partial(SimTable, process.files),
                "copyset": partial(SimLogs, process.files),
            },
            rng=Random(f"{self.sim.world.seed} {name} {len(process.host.lives)}"),
        )
        try:
            await node.start()
        except (OSError, LoomError) as failure:
            if process.host.disk.failed or isinstance(failure, AlreadyExists):
                return  # as the command does, with an error; started again some time
            raise
        self.nodes[name] = node
        if not isinstance(error := await node.failed, AlreadyExists):
            raise error

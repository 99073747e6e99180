"""A whole cluster in this process: real servers, real files, real sockets on loopback.

For tests and notebooks. One process serves everything, so it says little about speed.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loomlog import limits
from loomlog.client.cluster import Cluster, connect
from loomlog.config import MetadataSettings, NodeSettings, StorageSettings
from loomlog.core.principal import Kind, Principal
from loomlog.errors import InvalidArgument
from loomlog.metadata import MetadataRepository
from loomlog.metadata.store.memory import MemoryStore
from loomlog.net.credentials import AUTHORITIES
from loomlog.node import StorageNode
from loomlog.testing.ports import free_address
from loomlog.types import NodeId, SyncMode

CLUSTER_ID = "local"


class LocalCluster:
    """`async with LocalCluster(nodes=3) as cluster:` gives a connected client.

    Servers can be stopped and started again on the same data with `stop_node`, `start_node`,
    `stop_metadata` and `start_metadata`. With `metadata=3` there are three metadata repositories,
    numbered from 1, with a store in memory in place of etcd. `locations` are assigned to the nodes
    in turn. With `secure`, all connections use TLS; `certificate` creates a certificate.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        metadata: int = 1,
        secure: bool = False,
        locations: Sequence[str] = (),
        directory: str | Path | None = None,
        sync: SyncMode | str = SyncMode.ALWAYS,
        storage: StorageSettings | None = None,
        failure_detection_s: float = limits.FAILURE_DETECTION_S,
        leader_silence_s: float = limits.LEADER_SILENCE_S,
        retention_interval_s: float = limits.RETENTION_INTERVAL_S,
    ) -> None:
        self._count = nodes
        self._secure = secure
        self._locations = locations
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._directory = Path(directory) if directory is not None else None
        self._storage = replace(storage or StorageSettings(), sync=SyncMode(sync))
        self._failure_detection_s = failure_detection_s
        self._leader_silence_s = leader_silence_s
        self._retention_interval_s = retention_interval_s
        self._listen = {number: free_address() for number in range(1, metadata + 1)}
        self._store = MemoryStore() if metadata > 1 else None
        self._node_listen: dict[NodeId, str] = {}
        self._clients: list[Cluster] = []
        self.repositories: dict[int, MetadataRepository] = {}
        self.nodes: dict[NodeId, StorageNode] = {}

    @property
    def address(self) -> str:
        """The addresses of the metadata repositories, for `loomlog.connect`."""
        return ",".join(self._listen.values())

    @property
    def leader(self) -> int | None:
        """The number of the metadata repository that leads now."""
        leads = (number for number, found in self.repositories.items() if found.term is not None)
        return next(leads, None)

    @property
    def metadata(self) -> MetadataRepository | None:
        """The metadata repository that leads now."""
        return self.repositories[self.leader] if self.leader is not None else None

    async def __aenter__(self) -> Cluster:
        if self._directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="loomlog-")
            self._directory = Path(self._temporary.name)
        try:
            await asyncio.gather(*map(self.start_metadata, self._listen))
            await asyncio.gather(*(self.start_node(n) for n in range(1, self._count + 1)))
            return await self.connect()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> Cluster:
        """Connect another client, an operator; it is closed with the cluster."""
        client = await connect(self.address, tls=self._operator())
        self._clients.append(client)
        return client

    def certificate(self, kind: Kind, *, number: int = 0, name: str = "") -> str:
        """Return the file with the key and certificate of a server, client or operator."""
        from loomlog.net.certificates import create_authority, create_certificate

        certs = self._path("certs")
        if not (certs / AUTHORITIES).exists():
            create_authority(certs, CLUSTER_ID)
        file = certs / f"{kind}-{number or name}.pem"
        if not file.exists():
            holder = Principal(kind, name, number, CLUSTER_ID)
            create_certificate(certs, holder, () if name else ("127.0.0.1",))
        return str(file)

    def _operator(self) -> str | None:
        return self.certificate("operator", name="admin") if self._secure else None

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        self._clients.clear()
        await asyncio.gather(*map(self.stop_node, list(self.nodes)))
        for number in list(self.repositories):
            await self.stop_metadata(number)
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary, self._directory = None, None

    # ---- servers

    async def start_metadata(self, number: int = 1) -> None:
        """Start a metadata repository. One with a new number is to be added with `add_metadata`."""
        if self._store is not None:
            self._listen.setdefault(number, free_address())
        name = "vmr" if self._store is None else f"vmr-{number}"
        repository = MetadataRepository(
            MetadataSettings(
                cluster_id=CLUSTER_ID,
                directory=str(self._path(name)),
                listen=self._listen[number],
                http=None,
                heartbeat_s=min(limits.HEARTBEAT_S, self._failure_detection_s / 3),
                failure_detection_s=self._failure_detection_s,
                member_id=number,
                peers={} if self._store is None else self._listen,
                leader_silence_s=self._leader_silence_s,
                retention_interval_s=self._retention_interval_s,
                tls=self.certificate("metadata", number=number) if self._secure else "",
            ),
            store=self._store,
        )
        await repository.start()
        self.repositories[number] = repository
        self._listen[number] = repository.address

    async def stop_metadata(self, number: int = 1) -> None:
        """Stop a metadata repository; does nothing if it is stopped."""
        repository = self.repositories.pop(number, None)
        if repository is not None:
            await repository.stop()

    async def start_node(self, node_id: NodeId) -> StorageNode:
        """Start a node on its data; call `wipe_node` first to start it without."""
        node = StorageNode(self.node_settings(node_id))
        await node.start()
        self.nodes[node_id] = node
        self._node_listen[node_id] = node.address
        registering = asyncio.ensure_future(node.registered())
        await asyncio.wait((registering, node.held_back), return_when="FIRST_COMPLETED")
        if not registering.done():
            registering.cancel()
            await self.stop_node(node_id)
            raise InvalidArgument(node.held_back.result())
        await registering
        return node

    def node_settings(self, node_id: NodeId) -> NodeSettings:
        """Return the settings with which a node starts; a subclass may change them."""
        return NodeSettings(
            node_id=node_id,
            cluster_id=CLUSTER_ID,
            volumes=(str(self._path(f"vsn-{node_id}")),),
            metadata=tuple(self._listen.values()),
            listen=self._node_listen.get(node_id) or free_address(),
            location=self._location(node_id),
            storage=self._storage,
            tls=self.certificate("node", number=node_id) if self._secure else "",
        )

    async def stop_node(self, node_id: NodeId) -> None:
        await self.nodes.pop(node_id).stop()

    async def wipe_node(self, node_id: NodeId) -> None:
        """Stop a node if it runs, delete its data, and let `start_node` start it empty, as an
        operator does after the loss of a disk."""
        if node_id in self.nodes:
            await self.stop_node(node_id)
        shutil.rmtree(self._path(f"vsn-{node_id}"))
        async with await connect(self.address, tls=self._operator()) as client:
            while any(  # noqa: ASYNC110 - nobody tells
                node.id == node_id and node.alive for node in (await client.status()).nodes
            ):
                await asyncio.sleep(0.01)
            await client.replace_node(node_id)

    def _location(self, node_id: NodeId) -> str:
        return self._locations[(node_id - 1) % len(self._locations)] if self._locations else ""

    def _path(self, name: str) -> Path:
        assert self._directory is not None, "the cluster was not started"
        path = self._directory / name
        path.mkdir(parents=True, exist_ok=True)
        return path

"""A whole cluster in this process: real servers, real files, real sockets on loopback.

For tests and notebooks. One process serves everything, so it says little about speed.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from loomlog import limits
from loomlog.client.cluster import Cluster, connect
from loomlog.config import MetadataSettings, NodeSettings, StorageSettings
from loomlog.metadata import MetadataRepository
from loomlog.node import StorageNode
from loomlog.types import NodeId, SyncMode

CLUSTER_ID = "local"


class LocalCluster:
    """`async with LocalCluster(nodes=3) as cluster:` gives a connected client.

    Servers can be stopped and started again on the same data with `stop_node`, `start_node`,
    `stop_metadata` and `start_metadata`.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        directory: str | Path | None = None,
        sync: SyncMode | str = SyncMode.ALWAYS,
        storage: StorageSettings | None = None,
        failure_detection_s: float = limits.FAILURE_DETECTION_S,
    ) -> None:
        self._count = nodes
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._directory = Path(directory) if directory is not None else None
        self._storage = replace(storage or StorageSettings(), sync=SyncMode(sync))
        self._failure_detection_s = failure_detection_s
        self._listen = "127.0.0.1:0"  # after the first start: the address that it got
        self._node_listen: dict[NodeId, str] = {}
        self._clients: list[Cluster] = []
        self.metadata: MetadataRepository | None = None
        self.nodes: dict[NodeId, StorageNode] = {}

    @property
    def address(self) -> str:
        """Of the metadata repository: what `loomlog.connect` takes."""
        return self._listen

    async def __aenter__(self) -> Cluster:
        if self._directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="loomlog-")
            self._directory = Path(self._temporary.name)
        try:
            await self.start_metadata()
            await asyncio.gather(*(self.start_node(n) for n in range(1, self._count + 1)))
            return await self.connect()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def connect(self) -> Cluster:
        """Another client; closed with the cluster."""
        client = await connect(self.address)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        self._clients.clear()
        for node_id in list(self.nodes):
            await self.stop_node(node_id)
        await self.stop_metadata()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary, self._directory = None, None

    # ---- servers

    async def start_metadata(self) -> None:
        self.metadata = MetadataRepository(
            MetadataSettings(
                cluster_id=CLUSTER_ID,
                directory=str(self._path("vmr")),
                listen=self._listen,
                http=None,
                failure_detection_s=self._failure_detection_s,
            )
        )
        await self.metadata.start()
        self._listen = self.metadata.address

    async def stop_metadata(self) -> None:
        metadata, self.metadata = self.metadata, None
        if metadata is not None:
            await metadata.stop()

    async def start_node(self, node_id: NodeId) -> StorageNode:
        node = StorageNode(
            NodeSettings(
                node_id=node_id,
                cluster_id=CLUSTER_ID,
                volumes=(str(self._path(f"vsn-{node_id}")),),
                metadata=(self.address,),
                listen=self._node_listen.get(node_id, "127.0.0.1:0"),
                storage=self._storage,
            )
        )
        await node.start()
        self.nodes[node_id] = node
        self._node_listen[node_id] = node.address
        await node.registered()
        return node

    async def stop_node(self, node_id: NodeId) -> None:
        await self.nodes.pop(node_id).stop()

    def _path(self, name: str) -> Path:
        assert self._directory is not None, "the cluster was not started"
        path = self._directory / name
        path.mkdir(parents=True, exist_ok=True)
        return path

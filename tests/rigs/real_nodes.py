"""Real storage nodes in this process, on real files."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

from node_services import chained_on
from poll import until

from loomlog.config import NodeSettings
from loomlog.core.generation import Generation
from loomlog.node import StorageNode
from loomlog.storage.age_marks import load_generation, save_generation
from loomlog.storage.chained.block_table import BlockTable
from loomlog.storage.disk import RealFiles
from loomlog.storage.volumes import node_path
from loomlog.wire import loomlog_pb2 as pb


class RealNodes:
    """Storage nodes in directories `vsn-1`, `vsn-2`, …"""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.storage: dict[int, StorageNode] = {}

    @property
    def address(self) -> str:
        """The address of the metadata repository."""
        raise NotImplementedError

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

    async def crash_node(self, node_id: int) -> None:
        """Leave what a power failure leaves, if the disk has forgotten nothing."""
        await self.stop_node(node_id)
        path, files = (
            node_path(str(self._directory / f"vsn-{node_id}"), "test", node_id),
            RealFiles(),
        )
        mark = load_generation(files, path)
        assert mark is not None
        save_generation(files, path, Generation(mark.number))

    def lose_disk(self, node_id: int) -> None:
        """Delete the data of a node that does not run."""
        shutil.rmtree(self._directory / f"vsn-{node_id}")

    # ---- their chains

    def replicas_of(self, node: int) -> list[pb.ChainReplicaRef]:
        """Return its replicas of chains."""
        return chained_on(self.storage[node]).found()

    async def no_chains_left(self, *nodes: int) -> None:
        """Wait until nodes have no replicas of chains."""
        await until(lambda: not any(map(self.replicas_of, nodes)))

    def refuse_chains(self, node: int) -> Callable[[], None]:
        """Keep a node that has no chains from opening a table, until the result is called."""
        (volume,) = chained_on(self.storage[node])._volumes._volumes
        opens = volume._open_table
        volume._open_table = _cannot_open

        def heal() -> None:
            volume._open_table = opens

        return heal

    def fail_disk(self, node: int) -> Callable[[], None]:
        """Refuse all that the node is asked about chains, as after a commit that failed, until
        the result is called."""
        heal = self.refuse_chains(node)
        (volume,) = chained_on(self.storage[node])._volumes._volumes
        assert volume.store is not None
        error = OSError(errno.EIO, "the disk failed")
        volume.store.fail(error)
        volume.volume.failed(error)
        return heal


def _cannot_open(path: str, was_used: bool) -> BlockTable:
    raise OSError("the disk failed")

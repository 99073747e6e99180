"""`/readyz` of a storage node: it is ready while it serves all that it stores."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from poll import until

from loomlog.config import NodeSettings
from loomlog.node import StorageNode
from loomlog.testing import LocalCluster
from loomlog.types import NodeId

NODE = 2


class TwoVolumes(LocalCluster):
    """A cluster whose node 2 has two volumes, and pages."""

    leaves_out = ""  # a volume, when it is started

    def node_settings(self, node_id: NodeId) -> NodeSettings:
        settings = super().node_settings(node_id)
        if node_id != NODE:
            return settings
        both = (*settings.volumes, f"{settings.volumes[0]}-more")
        volumes = tuple(each for each in both if each != self.leaves_out)
        return replace(settings, volumes=volumes, http="127.0.0.1:0")


def asked(address: str | None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def readiness(node: StorageNode) -> tuple[int, str]:
    return await asyncio.to_thread(asked, node.http_address)


@asynccontextmanager
async def two_nodes(directory: Path) -> AsyncIterator[TwoVolumes]:
    more = directory / f"vsn-{NODE}-more"
    more.mkdir()
    servers = TwoVolumes(nodes=2, directory=directory)
    async with servers:
        yield servers


async def test_a_node_is_ready_while_the_metadata_repository_knows_it(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as servers:
        node = servers.nodes[NODE]
        assert await readiness(node) == (200, "ready\n")
        await servers.stop_metadata()
        status, text = await until(lambda: readiness(node), lambda found: found[0] != 200)
        assert (status, text) == (503, "not registered with the metadata repository\n")
        await servers.start_metadata()
        await until(lambda: readiness(node), lambda found: found == (200, "ready\n"))


async def test_a_node_without_one_of_its_volumes_is_not_ready(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as servers:
        await servers.stop_node(NODE)
        servers.leaves_out = str(tmp_path / f"vsn-{NODE}-more")
        status, text = await readiness(await servers.start_node(NODE))
        assert (status, servers.leaves_out in text) == (503, True)
        await servers.stop_node(NODE)
        servers.leaves_out = ""
        assert await readiness(await servers.start_node(NODE)) == (200, "ready\n")


async def test_a_node_is_not_ready_while_a_volume_fails(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as servers:
        node = servers.nodes[NODE]
        volume = tmp_path / f"vsn-{NODE}-more"
        away = volume.rename(tmp_path / "away")
        volume.write_text("no directory")
        status, text = await until(lambda: readiness(node), lambda found: found[0] != 200)
        assert (status, str(volume) in text) == (503, True)
        volume.unlink()
        away.rename(volume)
        await until(lambda: readiness(node), lambda found: found == (200, "ready\n"))

"""`loom node drain --volume` empties one volume of a node and puts nothing new there."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cli_rig import Loom, loom_up, storage_node

from loomlog.client.log import Log
from loomlog.config import NodeSettings, StorageSettings
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.testing import LocalCluster
from loomlog.types import NodeId

PROTOCOLS = (ORDERED, CHAINED, COPYSET)
LINES = [f"line {n}" for n in range(500)]


def replicas_in(volume: Path) -> list[Path]:
    return list(volume.glob("cid=*/snid=*/lsid=*"))


def test_one_volume_is_emptied_and_takes_nothing_new(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with loom_up(tmp_path / "data", "--nodes", "3", "--sync", "none") as up:
        loom = Loom(up.mr)
        with storage_node(up.mr, 4, first, second):
            for name in PROTOCOLS:
                streams = () if name == COPYSET else ("--streams", "6")
                loom.says("log", "create", name, "--protocol", name, *streams)
                loom.says("append", name, given="\n".join(LINES))
            assert replicas_in(first)
            assert replicas_in(second)
            wrong = loom.fails("node", "drain", "4", "--volume", "/nowhere")
            assert "it has no volume /nowhere" in wrong
            drain = ("node", "drain", "4", "--volume", str(first))
            said = loom.says(*drain, "--wait", "--timeout", "50")
            assert f"volume {first} is empty: start the vsn of node 4 without it" in said
            left = loom.json(*drain)
            assert left["replicas_left"] == 0
            assert replicas_in(second), "the other volume stays as it is"
            loom.says("log", "create", "new", "--streams", "4", "--replicas", "3")
        with storage_node(up.mr, 4, first, second):  # it is still drained after a restart
            loom.says("log", "create", "newer", "--streams", "4", "--replicas", "3")
            assert loom.json(*drain)["replicas_left"] == 0
        shutil.rmtree(first)
        with storage_node(up.mr, 4, second):
            for name in PROTOCOLS:
                assert loom.says("tail", name, "--from", "1").splitlines() == LINES
            loom.says("node", "undrain", "4", "--volume", str(first))


class TwoVolumes(LocalCluster):
    """All nodes have two volumes."""

    def node_settings(self, node_id: NodeId) -> NodeSettings:
        settings = super().node_settings(node_id)
        [first] = settings.volumes
        volumes = [f"{first}/{name}" for name in "ab"]
        for volume in volumes:
            Path(volume).mkdir(exist_ok=True)
        return replace(settings, volumes=tuple(v for v in volumes if v not in self.removed))

    removed: tuple[str, ...] = ()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_without_a_spare_node_replicas_go_to_the_other_volume(
    protocol: str, tmp_path: Path
) -> None:
    storage = StorageSettings(data_file_bytes=1 << 16)
    local = TwoVolumes(nodes=3, directory=tmp_path, storage=storage, sync="none")
    async with local as cluster, asyncio.timeout(90):
        streams = 1 if protocol == COPYSET else 4
        log = await cluster.create_log("events", protocol, streams=streams, replicas=3)
        values = [b"%06d" % number + bytes(2000) for number in range(400)]
        await asyncio.gather(*map(log.append, values[:300]))
        appending = asyncio.create_task(append_all(log, values[300:]))
        drained = str(tmp_path / "vsn-1" / "a")
        while (await cluster.drain_volume(1, drained)).replicas_left:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await appending
        while {c.kind for c in (await cluster.status()).conditions} != {"volume-draining"}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert not replicas_in(Path(drained))
        if protocol != COPYSET:  # RocksDB keeps the bytes of deleted copies until it compacts
            files = (path for path in Path(drained).rglob("*") if path.is_file())
            assert not any(b"000299" in path.read_bytes() for path in files)
        await local.stop_node(1)
        local.removed = (drained,)
        await local.start_node(1)
        await cluster.replace_volume(1, drained)
        await local.stop_node(2)  # so that the moved ones are needed
        found = [entry.value async for entry in log.subscribe(1, await log.tail())]
        assert sorted(found) == values


async def append_all(log: Log, values: list[bytes]) -> None:
    for value in values:
        await log.append(value)


async def test_a_drained_volume_is_shown_until_another_takes_its_place(tmp_path: Path) -> None:
    local = TwoVolumes(nodes=1, directory=tmp_path, sync="none")
    async with local as cluster, asyncio.timeout(60):
        drained = str(tmp_path / "vsn-1" / "a")
        await cluster.drain_volume(1, drained)
        [shown] = (await cluster.status()).conditions
        assert (shown.kind, shown.severity, shown.node) == ("volume-draining", "work", 1)
        assert shown.volume == drained
        assert f"--volume {drained}" in shown.help
        await cluster.undrain_volume(1, drained)
        assert not (await cluster.status()).conditions
        await cluster.drain_volume(1, drained)
        await local.stop_node(1)
        local.removed = (drained,)
        await local.start_node(1)
        await cluster.replace_volume(1, drained)
        await local.stop_node(1)
        shutil.rmtree(drained)
        local.removed = ()
        await local.start_node(1)
        assert not (await cluster.status()).conditions
        await cluster.create_log("events", streams=4, replicas=1)
        assert replicas_in(Path(drained)), "an empty disk at the same place is used"

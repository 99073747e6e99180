"""`loom node drain --volume` empties one volume of a node and puts nothing new there."""

from __future__ import annotations

import shutil
from pathlib import Path

from cli_rig import Loom, loom_up, storage_node

from loomlog.protocol_names import CHAINED, COPYSET, ORDERED

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
            assert "finished after" in loom.says(*drain, "--wait", "--timeout", "50")
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

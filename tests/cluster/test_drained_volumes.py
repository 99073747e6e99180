"""`loom node drain --volume` empties one volume of a node and puts nothing new there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli_rig import Loom, environment, loom_up, program

from loomlog.protocol_names import CHAINED, COPYSET, ORDERED

PROTOCOLS = (ORDERED, CHAINED, COPYSET)
LINES = [f"line {n}" for n in range(500)]


@contextmanager
def node_with_volumes(mr: str, number: int, *volumes: Path) -> Iterator[None]:
    for volume in volumes:
        volume.mkdir(exist_ok=True)
    command = program(
        *("vsn", "start", "--cluster-id", "local", "--storage-node-id", str(number)),
        *(word for volume in volumes for word in ("--volumes", str(volume))),
        *("--mr", mr, "--listen", "127.0.0.1:0", "--sync", "none"),
    )
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield
        finally:
            process.terminate()
            process.wait(30)


def replicas_in(volume: Path) -> list[Path]:
    return list(volume.glob("cid=*/snid=*/lsid=*"))


def test_one_volume_is_emptied_and_takes_nothing_new(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with loom_up(tmp_path / "data", "--nodes", "3", "--sync", "none") as up:
        loom = Loom(up.mr)
        with node_with_volumes(up.mr, 4, first, second):
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
        with node_with_volumes(up.mr, 4, first, second):  # it is still drained after a restart
            loom.says("log", "create", "newer", "--streams", "4", "--replicas", "3")
            assert loom.json(*drain)["replicas_left"] == 0
        shutil.rmtree(first)
        with node_with_volumes(up.mr, 4, second):
            for name in PROTOCOLS:
                assert loom.says("tail", name, "--from", "1").splitlines() == LINES
            loom.says("node", "undrain", "4", "--volume", str(first))

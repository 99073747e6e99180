"""Swapped or missing volumes of real processes do no harm, and messages tell the operator what to
do."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_rig import Loom, environment, program, storage_node
from poll import wait_until

from loomlog import BlockingCluster, connect_sync
from loomlog.wire.info import NodeInfo

pytestmark = pytest.mark.timeout(120)

PATIENCE_S = 60.0
VALUES = [b"%d" % number for number in range(50)]
PROTOCOLS = ("ordered", "chained", "copyset")


@contextmanager
def running(data: Path) -> Iterator[Loom]:
    """Run a cluster of two nodes; the standard error of `loom up` goes to a file."""
    command = program("loom", "up", "--port", "0", "--nodes", "2", "--data", str(data), "--json")
    command.append("--no-console")
    with (
        (data / "stderr").open("w") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment()
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (data / "stderr").read_text()
            yield Loom(json.loads(line)["mr"])
        finally:
            process.terminate()
            process.wait(30)


def start_alone(data: Path, number: int) -> str:
    """Return the message of a vsn that does not start."""
    volume = ("--volumes", str(data / f"vsn-{number}"))
    options = ("--cluster-id", "local", "--storage-node-id", str(number), "--mr", "127.0.0.1:1")
    done = subprocess.run(
        program("vsn", "start", *options, *volume, "--listen", "127.0.0.1:0"),
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


def swap(data: Path) -> None:
    (data / "vsn-1").rename(data / "kept")
    (data / "vsn-2").rename(data / "vsn-1")
    (data / "kept").rename(data / "vsn-2")


def snapshot(data: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in data.glob("v*/**/*")
        if path.is_file()
    }


def write(cluster: BlockingCluster) -> None:
    for protocol in PROTOCOLS:
        log = cluster.create_log(protocol, protocol=protocol, replicas=2)
        log.append_many(VALUES)


def read_back(cluster: BlockingCluster) -> None:
    for protocol in PROTOCOLS:
        log = cluster.log(protocol)
        assert [entry.value for entry in log.subscribe(1, log.tail())] == VALUES, protocol


def node(cluster: BlockingCluster, number: int) -> NodeInfo:
    return next(node for node in cluster.status().nodes if node.id == number)


def secrets_in(data: Path) -> set[str]:
    """Return the conditions of the cluster and of every node."""
    found = set()
    for path in data.glob("vsn-*/cid=local/snid=*/identity"):
        identity = json.loads(path.read_bytes().splitlines()[0])
        found |= {identity["cluster_secret"], identity["node_secret"]}
    return found


def test_volumes_are_mixed_up_put_right_and_lost(tmp_path: Path) -> None:
    with running(tmp_path) as loom, connect_sync(loom.cluster) as cluster:
        write(cluster)
    secrets = secrets_in(tmp_path)
    assert len(secrets) == 3
    open_to_others = [
        f"{path} {path.stat().st_mode:o}"
        for path in tmp_path.rglob("*")
        if path.name != "stderr" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    ]
    assert not open_to_others

    swap(tmp_path)
    before = snapshot(tmp_path)
    said = start_alone(tmp_path, 1)
    assert "expected cluster local, storage node 1" in said
    assert "found cluster local, storage node 2" in said
    said += start_alone(tmp_path, 2)
    assert snapshot(tmp_path) == before, "nothing is written"
    swap(tmp_path)
    with running(tmp_path) as loom, connect_sync(loom.cluster) as cluster:
        read_back(cluster)

    (tmp_path / "vsn-2").rename(tmp_path / "lost")
    with running(tmp_path) as loom, connect_sync(loom.cluster) as cluster:
        wait_until(lambda: "run `loom node replace 2`" in (tmp_path / "stderr").read_text())
        assert not node(cluster, 2).alive
        wait_until(lambda: "run `loom node replace 2`" in "".join(node(cluster, 2).conditions))
        said += loom.says("status") + (tmp_path / "stderr").read_text()
        loom.says("node", "replace", "2", "--yes")
        wait_until(lambda: node(cluster, 2).alive)
        wait_until(lambda: not node(cluster, 2).conditions)  # its copies are rebuilt
        read_back(cluster)
    said += "".join(path.read_text() for path in (tmp_path / "logs").iterdir())
    assert not [secret for secret in secrets if secret in said]


def test_a_node_that_was_given_the_number_of_another_starts_with_its_own(tmp_path: Path) -> None:
    volumes = [tmp_path / "a", tmp_path / "b"]
    for volume in volumes:
        volume.mkdir()
    data = tmp_path / "data"
    data.mkdir()
    with running(data) as loom:
        options = (
            *("vsn", "start", "--cluster-id", "local", "--mr", loom.cluster),
            *("--listen", "127.0.0.1:0", "--volumes", str(volumes[0])),
            *("--volumes", str(volumes[1]), "--storage-node-id"),
        )
        refused = subprocess.run(
            program(*options, "1"), capture_output=True, text=True, timeout=60, env=environment()
        )
        assert refused.returncode == 1
        assert "give this one another storage node id" in refused.stderr
        with storage_node(loom.cluster, 3, *volumes), connect_sync(loom.cluster) as cluster:
            assert node(cluster, 3).alive

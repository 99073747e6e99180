"""The metadata is restored from an older copy: nothing is acknowledged until it was brought up to
date with the storage nodes, and then all that the copy knows goes on. On real processes."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio
from agreeing_readers import LOST, content
from cli_rig import Loom, environment, program
from poll import until

import loomlog
from loomlog.core.history import Seen
from loomlog.errors import Conflict, LoomError, NotFound, Retryable, RolledBack
from loomlog.storage.age_marks import load_run
from loomlog.storage.disk import RealFiles
from loomlog.testing.ports import free_address

pytestmark = pytest.mark.timeout(180)

PROTOCOLS = {"ordered": 3, "chained": 3, "copyset": 2}
NODES = (1, 2, 3, 4)
PATIENCE_S = 60.0


class CatchUpRig:
    """A vmr and four storage nodes, each a process; and what was acknowledged."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.address = free_address()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.loom = Loom(self.address)
        self.appended: dict[str, dict[int, bytes]] = {name: {} for name in PROTOCOLS}

    @property
    def data(self) -> Path:
        return self._directory / "vmr"

    def start_vmr(self) -> None:
        quick = ("--heartbeat-timeout", "1", "--replace-after", "1")
        where = ("--data", str(self.data), "--listen", self.address, "--http", "none")
        self._start("vmr", *where, *quick)

    def start_node(self, node: int) -> None:
        volume = self._directory / f"vsn-{node}"
        volume.mkdir(exist_ok=True)
        listen = ("--listen", "127.0.0.1:0", "--volumes", str(volume))
        self._start(f"vsn-{node}", "--storage-node-id", str(node), "--mr", self.address, *listen)

    def _start(self, name: str, *arguments: str) -> None:
        command = program(name.partition("-")[0], "start", "--cluster-id", "local", *arguments)
        process = subprocess.Popen(
            [*command, "--log-level", "error"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self._processes[name] = process

    def known_run(self, node: int) -> Seen:
        """Return what a node was told of the metadata."""
        volume = self._directory / f"vsn-{node}" / "cid=local" / f"snid={node}"
        return load_run(RealFiles(), [str(volume)])

    def ready(self, name: str) -> None:
        stdout = self._processes[name].stdout
        assert stdout is not None
        assert json.loads(stdout.readline())["ready"]

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        process = self._processes.pop(name)
        process.send_signal(how)
        process.communicate(timeout=30)

    def close(self) -> None:
        for name in list(self._processes):
            self.stop(name, signal.SIGKILL)

    def copy(self) -> None:
        """Copy the metadata, for which the vmr is stopped for a moment."""
        self.stop("vmr")
        self.back_up()
        self.start_vmr()
        self.ready("vmr")

    def back_up(self) -> None:
        shutil.copytree(self.data, self._directory / "copy")

    def restore(self) -> None:
        shutil.rmtree(self.data)
        shutil.copytree(self._directory / "copy", self.data)

    async def append(self, cluster: loomlog.Cluster, what: str, count: int = 10) -> None:
        for name, known in self.appended.items():
            values = [f"{name} {what} {number}".encode() for number in range(count)]
            async with asyncio.timeout(PATIENCE_S):
                placed = await cluster.log(name).append_many(values)
            at = {each.position: value for each, value in zip(placed, values, strict=True)}
            assert not set(at) & set(known), "a position was given twice"
            known |= at

    async def runs(self, cluster: loomlog.Cluster) -> None:
        """Wait until all logs run. A `copyset` append that waits some seconds for a sequencer is
        sent again. Nodes that were started a moment ago, and have trimmed young entries, cannot
        tell whether they had it before."""
        for name in self.appended:
            await until(partial(is_running, cluster.log(name)))

    async def reads_all(self, cluster: loomlog.Cluster) -> None:
        for name, known in self.appended.items():
            log = cluster.log(name)
            async with asyncio.timeout(PATIENCE_S):
                assert await log.head() <= min(known)
                found = log.subscribe(start="earliest", stop=max(known))
                read = {entry.position: entry.value async for entry in found}
            assert read == known, name

    def catch_up(self, *more: str) -> dict[str, Any]:
        done = self.loom.run(
            *("metadata", "catch-up", "--json", *more),
            *("--data", str(self.data), "--listen", self.address),
        )
        found: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode == 0) == found["up_to_date"], found
        return found

    async def cleans_up(self) -> None:
        """Delete what nodes have of logs that are not known; then all is well."""
        async with asyncio.timeout(PATIENCE_S):
            while "the restored metadata does not know" not in self.conditions():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        for node in NODES:
            self.loom.run("node", "cleanup", str(node), "--yes")
        async with asyncio.timeout(PATIENCE_S):
            while self.conditions():  # noqa: ASYNC110 - nodes that refused copies are avoided a while
                await asyncio.sleep(0.1)

    def conditions(self) -> str:
        status: dict[str, Any] = self.loom.json("status")
        return " ".join(condition["text"] for condition in status["conditions"])


async def is_running(log: loomlog.Log) -> bool:
    try:
        streams = (await log.describe()).active_streams
    except Retryable:
        return False
    epochs = [(each.copyset, each.epoch) for each in streams if each.copyset is not None]
    return all(each.state == "running" for each in streams) and all(
        copyset.sequencer and copyset.last_clean == epoch - 1 for copyset, epoch in epochs
    )


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[CatchUpRig]:
    rig = CatchUpRig(tmp_path)
    try:
        rig.start_vmr()
        for node in NODES:
            rig.start_node(node)
        rig.ready("vmr")
        for node in NODES:
            rig.ready(f"vsn-{node}")
        yield rig
    finally:
        rig.close()


async def fail_over(rig: CatchUpRig, cluster: loomlog.Cluster, node: int) -> None:
    """Kill a node, let the logs continue without it, and start it again."""
    rig.stop(f"vsn-{node}", signal.SIGKILL)
    await rig.append(cluster, f"without {node}")
    rig.start_node(node)
    rig.ready(f"vsn-{node}")
    await rig.append(cluster, f"with {node} again")


async def test_a_restored_copy_is_brought_up_to_date(rig: CatchUpRig) -> None:
    async with await loomlog.connect(rig.address, append_timeout_s=60) as cluster:
        for name, replicas in PROTOCOLS.items():
            await cluster.create_log(name, protocol=name, replicas=replicas)
        await cluster.create_log("switched", protocol="chained", replicas=2)
        rig.appended["switched"] = {}
        await rig.append(cluster, "first")
        await cluster.switch_log("switched", protocol="copyset")
        version = await cluster.register("r").swap(b"old", expected=0)
        lease = await cluster.acquire_lease("l", holder="a", ttl_s=60)
        rig.stop("vmr")
        rig.back_up()
        rig.start_vmr()
        rig.ready("vmr")
        await fail_over(rig, cluster, 1)
        await fail_over(rig, cluster, 2)
        for name, known in rig.appended.items():
            trimmed = sorted(known)[14 if name == "switched" else 4]  # its first segment as a whole
            await cluster.log(name).trim(trimmed)
            rig.appended[name] = {at: value for at, value in known.items() if at > trimmed}
        late = await cluster.create_log("late", replicas=2)
        await late.append(b"lost")
        newer = await cluster.register("r").swap(b"new", expected=version)
        rig.stop("vmr")

        rig.restore()
        rig.start_vmr()
        rig.ready("vmr")
        async with asyncio.timeout(PATIENCE_S):
            while "went back in time" not in rig.conditions():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)
        with pytest.raises(RolledBack, match="loom metadata catch-up"):
            await cluster.register("r").swap(b"newest", expected=version)
        with pytest.raises(RolledBack):
            await cluster.create_log("another", replicas=2)
        assert "went back in time" in rig.loom.fails("log", "describe", "ordered")
        rig.stop("vmr")

        found = rig.catch_up()
        assert found["up_to_date"], found
        assert any("cannot be read" in note for note in found["notes"])
        rig.start_vmr()
        rig.ready("vmr")
        await rig.runs(cluster)
        await rig.append(cluster, "last")
        await rig.reads_all(cluster)
        for name, known in rig.appended.items():
            first = await anext(cluster.log(name).subscribe(1, gaps=True))
            assert first == loomlog.Gap(1, min(known) - 1, "trim")
        assert len((await cluster.log("switched").describe()).segments) == 1
        await rig.cleans_up()
        with pytest.raises(NotFound):
            await cluster.log("late").describe()
        for stale in (version, newer):
            with pytest.raises(Conflict):
                await cluster.register("r").swap(b"x", expected=stale)
        found_register = await cluster.register("r").get()
        assert found_register is not None
        assert (found_register.value, found_register.version > newer) == (b"old", True)
        assert lease is not None
        with pytest.raises(LoomError, match="epoch 1 is over"):
            await lease.renew()
        other = await cluster.acquire_lease("m", holder="b", ttl_s=60)
        assert other is not None
        assert other.epoch > 1_000_000


async def test_transactions_and_publications_that_the_copy_does_not_know_are_lost(
    rig: CatchUpRig,
) -> None:
    """A condition says so, readers get DataLoss for exactly their entries, and new ones work."""
    async with await loomlog.connect(rig.address, append_timeout_s=60) as cluster:
        for name, replicas in PROTOCOLS.items():
            await cluster.create_log(name, protocol=name, replicas=replicas)
        await rig.append(cluster, "before")
        rig.stop("vmr")
        rig.back_up()
        rig.start_vmr()
        rig.ready("vmr")
        log = cluster.log("ordered")
        async with cluster.transaction() as transaction:
            for name in PROTOCOLS:
                transaction.append(name, b"in a transaction")
        writer = await log.writer("w")
        rows = await writer.publish(1, await log.stage(pa.record_batch({"value": [b"a", b"b"]})))
        await rig.append(cluster, "after")
        rig.stop("vmr")
        rig.restore()

        found = rig.catch_up()
        assert not found["up_to_date"]
        [segment] = re.findall(r"--leave (\d+)", " ".join(found["reasons"]))
        found = rig.catch_up("--leave", segment)
        assert found["up_to_date"], found
        assert any("entries that depend on it are lost" in note for note in found["notes"])
        rig.start_vmr()
        rig.ready("vmr")
        lost = {name: {transaction.positions[name][0].position} for name in PROTOCOLS}
        lost["ordered"] |= {*range(rows.first, rows.last + 1)}
        async with await loomlog.connect(rig.address) as other:  # that remembers no decision
            for name, positions in lost.items():
                written = rig.appended[name] | dict.fromkeys(positions, LOST)
                async with asyncio.timeout(PATIENCE_S):
                    assert await content(other.log(name), sorted(written)) == written
        async with cluster.transaction() as again:
            for name in PROTOCOLS:
                again.append(name, b"again")
        for name in PROTOCOLS:
            [at] = again.positions[name]
            assert (await cluster.log(name).read(at.position)).value == b"again"
        writer = await log.writer("v")
        rows = await writer.publish(1, await log.stage(pa.record_batch({"value": [b"c"]})))
        assert (await log.read(rows.first)).value == b"c"
        await rig.cleans_up()


@pytest.mark.parametrize("knows", [True, False])
async def test_a_further_stream_came_while_a_node_was_dead_and_is_removed_since(
    rig: CatchUpRig, knows: bool
) -> None:
    """The copy was made while the log had that stream, or before."""
    async with await loomlog.connect(rig.address, append_timeout_s=60) as cluster:
        for name, replicas in PROTOCOLS.items():
            wanted = len(NODES) if name == "ordered" else replicas  # no spare takes the place
            await cluster.create_log(name, protocol=name, replicas=wanted)
        await rig.append(cluster, "first")
        log = cluster.log("ordered")
        [stream] = (await log.describe()).streams
        dead = stream.replicas[0].node
        if not knows:
            rig.copy()
        rig.stop(f"vsn-{dead}", signal.SIGKILL)
        await rig.append(cluster, "on a further stream")
        assert len((await log.describe()).streams) == 2
        if knows:
            rig.copy()
        rig.start_node(dead)
        rig.ready(f"vsn-{dead}")
        await until(log.describe, lambda found: any(each.removing for each in found.streams))
        await rig.append(cluster, "later")
        for name, known in rig.appended.items():
            trimmed = sorted(known)[22]
            await cluster.log(name).trim(trimmed)
            rig.appended[name] = {at: value for at, value in known.items() if at > trimmed}
        await until(log.describe, lambda found: len(found.streams) == 1)
        rig.stop("vmr")

        rig.restore()
        found = rig.catch_up()
        assert found["up_to_date"], found
        rig.start_vmr()
        rig.ready("vmr")
        await rig.runs(cluster)
        await rig.append(cluster, "last")
        await rig.reads_all(cluster)
        assert [each.id for each in (await log.describe()).streams] == [stream.id]


async def start(rig: CatchUpRig, *names: str) -> None:
    for name in names:
        rig.start_vmr() if name == "vmr" else rig.start_node(int(name.removeprefix("vsn-")))
    for name in names:
        rig.ready(name)


async def test_nodes_that_are_as_old_as_the_metadata_do_not_say_where_logs_end(
    rig: CatchUpRig, tmp_path: Path
) -> None:
    """The machines of the vmr and of three nodes were restored together. If logs continued where
    these nodes end, positions would be given out twice."""
    servers = ["vmr", *(f"vsn-{node}" for node in NODES)]
    async with await loomlog.connect(rig.address, append_timeout_s=60) as cluster:
        for name in PROTOCOLS:
            await cluster.create_log(name, protocol=name, replicas=2)
        await rig.append(cluster, "first")
        [stream] = (await cluster.log("ordered").describe()).streams
        newer = next(n for n in NODES if n not in {each.node for each in stream.replicas})
        restored = [name for name in servers if name != f"vsn-{newer}"]
        for name in reversed(servers):
            rig.stop(name)
        for name in restored:
            shutil.copytree(tmp_path / name, tmp_path / "old" / name)
        await start(rig, *servers)
        await rig.append(cluster, "the copies lack this")
        for name in servers:
            rig.stop(name)

        for name in restored:
            (tmp_path / name).rename(tmp_path / f"newest-{name}")
            shutil.copytree(tmp_path / "old" / name, tmp_path / name)
        for node in NODES:
            rig.start_node(node)
        found = rig.catch_up()
        assert not found["up_to_date"], "positions would be given out twice"
        [reason] = [why for why in found["reasons"] if "--was-away" in why]
        assert "where log chained, copyset, ordered ends" in reason
        for node in NODES:
            assert (f"node {node} may be" in reason) == (node != newer)
            rig.stop(f"vsn-{node}")

        for name in restored[1:]:  # their newest data is found after all
            shutil.rmtree(tmp_path / name)
            (tmp_path / f"newest-{name}").rename(tmp_path / name)
        for node in NODES:
            rig.start_node(node)
        found = rig.catch_up()
        assert found["up_to_date"], found
        rig.start_vmr()
        await rig.runs(cluster)
        await rig.append(cluster, "last")
        await rig.reads_all(cluster)


async def test_an_operator_says_that_nodes_were_only_away(rig: CatchUpRig) -> None:
    """Otherwise they count as older copies: they know less of the metadata than others."""
    async with await loomlog.connect(rig.address, append_timeout_s=60) as cluster:
        for name in PROTOCOLS:
            await cluster.create_log(name, protocol=name, replicas=2)
        rig.copy()
        await rig.append(cluster, "before they were away")
        for node in (1, 2):
            rig.stop(f"vsn-{node}")
        await cluster.register("r").swap(b"they do not hear of this", expected=0)
        await until(lambda: rig.known_run(3) > max(map(rig.known_run, (1, 2))))
        rig.stop("vmr")
        rig.restore()
        for node in (1, 2):
            rig.start_node(node)
        found = rig.catch_up()
        assert not found["up_to_date"]
        [reason] = found["reasons"]
        assert "node 1 may be: it lacks changes of the metadata" in reason
        found = rig.catch_up("--was-away", "1", "--was-away", "2")
        assert found["up_to_date"], found
        rig.start_vmr()
        await rig.runs(cluster)
        await rig.append(cluster, "last")
        await rig.reads_all(cluster)


async def test_damaged_replicas_are_not_taken_for_removed_ones(
    rig: CatchUpRig, tmp_path: Path
) -> None:
    """A further stream ends once it is trimmed, so it may have been removed since the copy."""
    async with await loomlog.connect(rig.address, append_timeout_s=60) as cluster:
        rig.appended = {"ordered": {}}
        log = await cluster.create_log("ordered", replicas=len(NODES))
        await rig.append(cluster, "first")
        [stream] = (await log.describe()).streams
        dead = stream.replicas[0].node
        rig.stop(f"vsn-{dead}", signal.SIGKILL)
        await rig.append(cluster, "on a further stream")
        further = next(s for s in (await log.describe()).streams if s.id != stream.id)
        rig.copy()
        rig.stop("vmr")
        rig.restore()
        with_it = [each.node for each in further.replicas]
        for node in NODES:
            if node != dead:
                rig.stop(f"vsn-{node}")
        metas = list(tmp_path.glob(f"vsn-*/cid=local/snid=*/lsid={further.id}/meta"))
        assert len(metas) == len(with_it)
        whole = {meta: meta.read_bytes() for meta in metas}
        for meta in metas:
            meta.write_bytes(b"damaged")
        for node in NODES:
            rig.start_node(node)
        found = rig.catch_up()
        assert not found["up_to_date"]
        nodes = ", ".join(map(str, sorted(with_it)))
        wanted = f"stream {further.id} of log ordered has a replica on node {nodes} that cannot be"
        assert any(wanted in reason for reason in found["reasons"]), found

        for node in NODES:
            rig.stop(f"vsn-{node}")
        for meta, content_ in whole.items():
            meta.write_bytes(content_)
        for node in NODES:
            rig.start_node(node)
        known = (f"--was-away={node}" for node in NODES)
        assert rig.catch_up(*known)["up_to_date"]
        rig.start_vmr()
        await rig.runs(cluster)
        await rig.append(cluster, "last")
        await rig.reads_all(cluster)

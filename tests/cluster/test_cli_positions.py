"""Commands about positions: checkpoints, times, retention; and where nodes are."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from cli_rig import Loom, environment, program

from loomlog.testing import LocalCluster

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


async def with_loom(story: Callable[[Loom], None], servers: LocalCluster) -> None:
    await asyncio.to_thread(story, Loom(servers.address))


async def test_a_reader_that_goes_on_behind_its_checkpoint() -> None:
    def story(loom: Loom) -> None:
        tail = ("tail", "events", "--checkpoint", "printer")
        assert loom.says(*tail, "--max", "2") == "1\n2\n"
        assert loom.says(*tail) == "3\n4\n5\n"
        (found,) = loom.json("checkpoint", "list", "events")
        assert (found["name"], found["position"]) == ("printer", 5)
        assert (found["tail"], found["behind"]) == (5, 0)
        assert loom.json("checkpoint", "set", "events", "printer", "3")["position"] == 3
        assert loom.json("checkpoint", "list", "events")[0]["behind"] == 2
        assert "events ends at 5" in loom.fails("checkpoint", "set", "events", "printer", "6")
        assert "printer" in loom.says("checkpoint", "list", "events")
        loom.json("log", "create", "other", "--replicas", "1")
        loom.json("checkpoint", "set", "other", "copier", "0")
        everywhere = loom.json("checkpoint", "list")
        assert [(each["log"], each["behind"]) for each in everywhere] == [
            ("events", 2),
            ("other", 0),
        ]
        assert "copier" in loom.says("checkpoint", "list")
        loom.json("checkpoint", "delete", "other", "copier")
        assert loom.says(*tail) == "4\n5\n"
        assert loom.json("checkpoint", "delete", "events", "printer")["deleted"] == "printer"
        assert "no checkpoint 'printer'" in loom.fails("checkpoint", "delete", "events", "printer")

    servers = LocalCluster(nodes=1)
    async with servers as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append_many([b"%d" % n for n in range(1, 6)])
        await with_loom(story, servers)


async def test_a_reader_that_follows_leaves_its_checkpoint_when_it_is_interrupted() -> None:
    def story(loom: Loom) -> None:
        command = program("loom", "tail", "events", "--follow", "--checkpoint", "printer")
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment(LOOM_CLUSTER=loom.cluster)
        ) as process:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130

    servers = LocalCluster(nodes=1)
    async with servers as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append_many([b"1", b"2"])
        await with_loom(story, servers)
        assert await log.checkpoint("printer").get() == 2


async def test_what_was_trimmed_unread_is_said() -> None:
    def story(loom: Loom) -> None:
        done = loom.run("tail", "events", "--checkpoint", "printer")
        assert (done.returncode, done.stdout) == (0, b"5\n")
        assert done.stderr == b"positions 2 to 4 were trimmed unread\n"

    servers = LocalCluster(nodes=1)
    async with servers as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append_many([b"%d" % n for n in range(1, 6)])
        await log.checkpoint("printer").set(1)
        await log.trim(4)
        await with_loom(story, servers)


async def test_times_and_retention() -> None:
    def story(loom: Loom) -> None:
        assert "7d" in loom.says("log", "create", "kept", "--replicas", "1", "--retention", "7d")
        assert "7d" in loom.says("log", "list")
        assert loom.json("log", "retention", "kept", "none")["retention_s"] is None
        assert "not a duration" in loom.fails("log", "retention", "kept", "soon")
        found = loom.json("log", "retention", "kept", "--retention-bytes", "10G")
        assert (found["retention_s"], found["retention_bytes"]) == (None, 10 << 30)
        assert "10.0 GiB" in loom.says("log", "retention", "kept", "7d")
        assert "10 GiB" in loom.says("log", "list")
        assert "1 MiB" in loom.fails("log", "retention", "kept", "--retention-bytes", "10")
        assert loom.run("log", "retention", "kept").returncode == 2, "nothing would change"
        assert loom.json("log", "describe", "kept")["retention_bytes"] == 10 << 30
        found = loom.json("log", "find-time", "events", "2026-11-16T12:01")
        assert (found["position"], found["found"]) == (2, True)

    servers = LocalCluster(nodes=1)
    async with servers as cluster:
        log = await cluster.create_log("events", replicas=1)
        times = [NOON + timedelta(minutes=n) for n in range(3)]
        columns = [pa.array([b"x"] * 3, pa.binary()), pa.array(times, pa.timestamp("us", "UTC"))]
        await log.append_arrow(pa.RecordBatch.from_arrays(columns, names=["value", "timestamp"]))
        await with_loom(story, servers)


async def test_locations_show_and_count() -> None:
    def story(loom: Loom) -> None:
        assert "rack=b" in loom.says("node", "list")
        assert [node["location"] for node in loom.json("node", "list")] == ["rack=a", "rack=b"] * 2

    servers = LocalCluster(nodes=4, locations=["rack=a", "rack=b"])
    async with servers as cluster:
        log = await cluster.create_log("events", streams=4, replicas=2)
        for stream in (await log.describe()).streams:
            assert {replica.node % 2 for replica in stream.replicas} == {0, 1}
        await with_loom(story, servers)


async def test_queues_and_headers() -> None:
    def append(loom: Loom) -> None:
        loom.says("append", "jobs", "--header", "trace=7", "--header", "by=ann", given="a\nb\n")
        shown = loom.says("tail", "jobs", "--json")
        loom.says("append", "jobs", "--format", "json", given=shown)
        assert loom.run("append", "jobs", "--header", "trace", given="a\n").returncode == 2
        assert "no queues" in loom.says("queue", "list")

    def look(loom: Loom) -> None:
        [listed] = loom.json("queue", "list")
        assert (listed["log"], listed["name"], listed["taken"]) == ("jobs", "q", 2)
        assert "2 positions wait" in loom.says("queue", "describe", "jobs", "q")
        assert "stop them" in loom.fails("queue", "delete", "jobs", "q", "--yes")

    servers = LocalCluster(nodes=1)
    async with servers as cluster:
        log = await cluster.create_log("jobs", replicas=1)
        await with_loom(append, servers)
        found = [entry.headers async for entry in log.subscribe(1, 4)]
        assert found == 4 * [{"trace": b"7", "by": b"ann"}]
        async with log.queue("q", prefetch=2) as queue, aclosing(queue.__aiter__()) as jobs:
            await anext(jobs)
            [queue_lag] = (await cluster.status()).logs[0].queues
            assert (queue_lag.members, queue_lag.behind, queue_lag.taken) == (1, 2, 2)
            await with_loom(look, servers)
        assert servers.metadata is not None
        assert list(await log.queues()) == ["q"]
        await log.queue("q").delete()
        assert not await log.queues()

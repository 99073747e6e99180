"""Retention on a whole cluster: old entries go, their files too, and nothing that is needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import randbytes

import pyarrow as pa
import pytest
from node_services import copyset_on, shard_on
from poll import until

from loomlog import Log, errors
from loomlog.archive.record import ArchiveInfo, register_name
from loomlog.config import StorageSettings
from loomlog.limits import KIB, MIB
from loomlog.metadata.logs import retention
from loomlog.node import StorageNode
from loomlog.node import node as node_module
from loomlog.node.copyset import logs_volume
from loomlog.node.copyset import service as copyset_service
from loomlog.storage.logsdb.rocks_logs import RocksLogs
from loomlog.storage.logsdb.rows import PartitionSettings
from loomlog.testing import LocalCluster

PATIENCE_S = 20.0
LONG_AGO = pytest.mark.usefixtures("arrived_long_ago")  # they are as old as their timestamps
SMALL = StorageSettings(data_file_bytes=16 * KIB, commit_file_bytes=16 * KIB)


def rows(count: int, hours_old: float, size: int = 100) -> pa.RecordBatch:
    moment = datetime.fromtimestamp(time.time(), UTC) - timedelta(hours=hours_old)
    values = pa.array([b"x" * size] * count, pa.binary())
    times = pa.array([moment] * count, pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([values, times], names=["value", "timestamp"])


async def head_is(log: Log, position: int) -> None:
    await until(log.head, lambda head: head == position)


@LONG_AGO
async def test_what_is_too_old_goes_and_so_do_its_files(tmp_path: Path) -> None:
    servers = LocalCluster(2, directory=tmp_path, storage=SMALL, retention_interval_s=0.02)
    async with servers as cluster:
        log = await cluster.create_log("events", streams=2, replicas=2)
        for _ in range(60):
            await log.append_arrow(rows(10, hours_old=30))
        await log.append_arrow(rows(5, hours_old=23))
        assert len(list(tmp_path.rglob("data/*.seg"))) > 8
        assert (await log.describe()).retention_s is None
        assert await log.head() == 1

        info = await log.set_retention("1d")
        assert info.retention_s == 86_400
        await head_is(log, 601)
        assert len([entry async for entry in log.subscribe(601, 605)]) == 5
        with pytest.raises(errors.Trimmed):
            await log.read(600)
        await until(lambda: len(list(tmp_path.rglob("data/*.seg"))) == 4)  # one of each replica


@LONG_AGO
async def test_a_log_can_be_made_with_it_and_lose_it_again() -> None:
    async with LocalCluster(nodes=1, retention_interval_s=0.02) as cluster:
        log = await cluster.create_log("events", replicas=1, retention=3600)
        assert (await log.describe()).retention_s == 3600
        assert (await log.set_retention(None)).retention_s is None
        await log.append_arrow(rows(3, hours_old=2))
        other = await cluster.create_log("other", replicas=1, retention="5s")
        await other.append_arrow(rows(3, hours_old=2))
        await head_is(other, 4)
        assert await log.head() == 1


@LONG_AGO
@pytest.mark.parametrize(
    "protocols", [("ordered", "ordered"), ("ordered", "chained"), ("chained", "ordered")]
)
async def test_over_a_switch(protocols: tuple[str, str]) -> None:
    async with LocalCluster(nodes=2, retention_interval_s=0.02) as cluster:
        log = await cluster.create_log("events", protocols[0], streams=2, replicas=2)
        await log.append_arrow(rows(10, hours_old=5))
        await cluster.switch_log("events", protocol=protocols[1], streams=1)
        await log.append_arrow(rows(10, hours_old=3))
        await log.append_arrow(rows(10, hours_old=1))
        await log.set_retention("2h")
        await head_is(log, 21)
        assert len((await log.describe()).segments) == 1
        assert await log.find_time(0.0) == 21


@LONG_AGO
@pytest.mark.parametrize("protocol", ["ordered", "chained"])
async def test_timestamps_of_one_writer_do_not_take_the_others_along(protocol: str) -> None:
    servers = LocalCluster(nodes=2, retention_interval_s=0.02)
    async with servers as cluster:
        log = await cluster.create_log("events", protocol, streams=2, replicas=2)
        for hours_old in (5, 5, 1, 5, 5):
            await log.append_arrow(rows(10, hours_old))
        await log.set_retention("2h")
        await head_is(log, 21)
        assert servers.metadata is not None
        assert servers.metadata.term is not None
        await servers.metadata.term.retention.trim_all()
        assert await log.head() == 21


@LONG_AGO
async def test_an_idle_chained_log_becomes_empty_but_for_its_last_blocks() -> None:
    async with LocalCluster(nodes=2, retention_interval_s=0.02) as cluster:
        log = await cluster.create_log("events", "chained", streams=1, replicas=2)
        for _ in range(10):
            await log.append_arrow(rows(3, hours_old=5))
        await log.set_retention("2h")
        await head_is(log, 31)
        assert await log.is_empty()


async def test_what_a_writer_with_a_slow_clock_appends_stays_as_long_as_anything() -> None:
    servers = LocalCluster(nodes=2, retention_interval_s=0.02)
    async with servers as cluster:
        logs = [
            await cluster.create_log(name, name, replicas=2, retention="5m")
            for name in ("ordered", "chained")
        ]
        for log in logs:
            await log.append_arrow(rows(10, hours_old=24))
        assert servers.metadata is not None
        assert servers.metadata.term is not None
        notes = servers.metadata.term.retention._arrivals._notes
        await until(notes.all, lambda marks: len(marks) == 2)
        await servers.metadata.term.retention.trim_all()
        assert [await log.head() for log in logs] == [1, 1]

        await servers.stop_metadata()  # the next one knows when they arrived
        await servers.start_metadata()
        for log in logs:
            await log.set_retention("1s")
        for log in logs:
            await head_is(log, 11)


async def is_recovered(log: Log) -> bool:
    """Return whether the first epoch is recovered."""
    found = (await log.describe()).streams[0].copyset
    return found is not None and found.last_clean >= 1


async def test_an_idle_copyset_log_becomes_empty_also_behind_the_end_of_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PartitionSettings.__init__, "__defaults__", (0.05, 6144 * MIB, 32 * KIB))
    monkeypatch.setattr(logs_volume, "TEND_S", 0.02)
    servers = LocalCluster(nodes=3, retention_interval_s=0.02, failure_detection_s=2.5)
    async with servers as cluster:
        log = await cluster.create_log("events", "copyset", replicas=2)
        last = (await log.append_many([b"old"] * 30))[-1].position
        state = (await log.describe()).streams[0].copyset
        assert state is not None
        assert state.sequencer is not None
        await servers.stop_node(state.sequencer)  # so that a mark ends its epoch
        await servers.start_node(state.sequencer)

        await until(lambda: is_recovered(log))
        await log.set_retention("1s")
        await head_is(log, last + 1)
        assert await log.is_empty()


async def are_over(servers: LocalCluster) -> bool:
    """Return whether the partitions with copies of the log have ended."""
    tables = [shard_on(node).copies.volume._table for node in servers.nodes.values()]
    found = [table for table in tables if isinstance(table, RocksLogs) and table.logs()]
    return bool(found) and not any(
        table._partitions.beginnings.newest in entry.shares
        for table in found
        for entry in table._entries.values()
    )


def set_sequencer_clock(node: StorageNode, now_us: Callable[[], int]) -> None:
    object.__setattr__(copyset_on(node)._sequencers._context, "now_us", now_us)


async def test_nodes_with_slow_clocks_keep_what_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitions of these nodes seem to have ended long ago, and the next sequencer's clock is
    behind, too."""

    def now_us() -> int:
        return time.time_ns() // 1000

    def an_hour_ago_us() -> int:
        return now_us() - 3_600_000_000

    monkeypatch.setattr(PartitionSettings.__init__, "__defaults__", (0.05, 6144 * MIB, 32 * KIB))
    monkeypatch.setattr(logs_volume, "TEND_S", 0.02)
    for module in (node_module, copyset_service):
        monkeypatch.setattr(module, "_now_us", an_hour_ago_us)
    servers = LocalCluster(nodes=3, retention_interval_s=0.02)
    async with servers as cluster:
        for node in servers.nodes.values():
            set_sequencer_clock(node, now_us)
        log = await cluster.create_log("events", "copyset", replicas=2, retention="5m")
        first = (await log.append(b"young")).position
        await until(lambda: are_over(servers))
        state = (await log.describe()).streams[0].copyset
        assert state is not None
        assert state.sequencer is not None
        await servers.stop_node(state.sequencer)
        for node in servers.nodes.values():
            set_sequencer_clock(node, an_hour_ago_us)
        last = (await log.append(b"young, too")).position
        await until(lambda: is_recovered(log))
        await until(lambda: are_over(servers))
        await log.set_retention("4m")  # so that it is looked at now
        assert servers.metadata is not None
        assert servers.metadata.term is not None
        await servers.metadata.term.retention.trim_all()
        assert await log.head() <= first
        assert [e.position async for e in log.subscribe(first, last)] == [first, last]


@LONG_AGO
async def test_who_publishes_looks_after_a_log_with_staged_rows() -> None:
    servers = LocalCluster(nodes=1, retention_interval_s=0.02)
    async with servers as cluster:
        log = await cluster.create_log("events", replicas=1)
        first = await log.writer("job")
        for sequence in range(1, 4):
            await first.publish(sequence, await log.stage(rows(10, hours_old=5)))
        await log.set_retention("2h")
        there = (await servers.connect()).log("events")  # one that has not looked yet
        second = await there.writer("job")
        await second.publish(4, await there.stage(rows(10, hours_old=1)))
        assert await there.head() == 31
        assert [e.position async for e in log.subscribe(31, 40)] == list(range(31, 41))
        assert await cluster.log("events.staged").head() > 1


@LONG_AGO
@pytest.mark.parametrize("staged", [False, True])
async def test_what_an_archive_does_not_have_yet_stays(staged: bool) -> None:
    async with LocalCluster(nodes=1, retention_interval_s=0.02) as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append_arrow(rows(10, hours_old=5))
        info = ArchiveInfo((await log.describe()).id, "/archive", 1, 6, 1, 1, "", 0, "run")
        await cluster.register(register_name("events")).swap(info.encode(), 0)
        await log.set_retention("2h")
        if staged:
            writer = await log.writer("job")
            await writer.publish(1, await log.stage(rows(1, hours_old=1)))
        await head_is(log, 7)


@pytest.mark.parametrize("retention", ["7", "7 days", "-1d", 0, -5, float("nan"), "1000000d"])
async def test_what_is_no_retention_is_refused(retention: str | float) -> None:
    async with LocalCluster(nodes=1) as cluster:
        with pytest.raises(errors.InvalidArgument):
            await cluster.create_log("events", replicas=1, retention=retention)
        log = await cluster.create_log("events", replicas=1)
        with pytest.raises(errors.InvalidArgument):
            await log.set_retention(retention)


async def test_the_newest_bytes_stay_in_every_protocol() -> None:
    """A log that is limited from the beginning, and one that is limited when it is large."""
    servers = LocalCluster(nodes=3, sync="none", retention_interval_s=0.05)
    async with servers as cluster:
        for protocol in ("ordered", "chained", "copyset"):
            streams = 1 if protocol == "copyset" else 2
            early = await cluster.create_log(
                f"{protocol}-early", protocol, streams, replicas=2, retention_bytes="1M"
            )
            late = await cluster.create_log(f"{protocol}-late", protocol, streams, replicas=2)
            assert (await early.describe()).retention_bytes == MIB
            for log in (early, late):
                positions: list[int] = []
                for _ in range(18):
                    ats = await log.append_many([randbytes(10_000) for _ in range(10)])
                    positions += [at.position for at in ats]
                if log is late:
                    assert await log.head() <= min(positions)
                    await late.set_retention(retention_bytes=MIB)

                async def left(log: Log = log, positions: list[int] = positions) -> int:
                    head = await log.head()
                    return 10_000 * sum(head <= position for position in positions)

                await until(left, lambda size: MIB - 100_000 <= size < 1.2 * MIB)
            head = await late.head()
            await late.set_retention(retention_bytes=None)
            await late.append_many([randbytes(10_000) for _ in range(100)])
            assert servers.metadata is not None
            assert servers.metadata.term is not None
            await servers.metadata.term.retention.trim_all()
            assert await late.head() == head


async def test_many_logs_are_trimmed_on_and_on_while_they_grow_and_the_leader_restarts() -> None:
    servers = LocalCluster(nodes=3, sync="none", retention_interval_s=0.05)
    async with servers as cluster:
        logs = [
            await cluster.create_log(
                f"{protocol}-{number}", protocol, replicas=2, retention="1h", retention_bytes="1M"
            )
            for protocol in ("ordered", "chained", "copyset")
            for number in range(3)
        ]

        async def append_to(log: Log) -> None:
            while True:
                await log.append_many([randbytes(10_000)] * 20)

        async with asyncio.TaskGroup() as tasks:
            appending = [tasks.create_task(append_to(log)) for log in logs]

            async def all_move() -> None:
                heads = {log: await log.head() for log in logs}
                for log, head in heads.items():
                    await until(log.head, lambda now, head=head: now > head)  # type: ignore[misc]

            await all_move()
            await servers.stop_metadata()
            await servers.start_metadata()
            for _ in range(3):
                await all_move()
            for task in appending:
                task.cancel()


async def test_a_log_that_keeps_old_entries_because_a_node_is_away_is_a_condition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "WAITS_S", 0.1)
    servers = LocalCluster(nodes=3, retention_interval_s=0.02)
    async with servers as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append(b"an entry")
        node = (await log.describe()).streams[0].replicas[0].node
        await servers.stop_node(node)
        await log.set_retention("1s")

        async def waiting() -> list[str | None]:
            conditions = (await cluster.status()).conditions
            return [each.log for each in conditions if each.kind == "retention-waits"]

        await until(waiting, lambda found: found == ["events"])
        await servers.start_node(node)
        await until(waiting, lambda found: not found)
        await head_is(log, 2)


async def test_rows_that_were_staged_count_for_their_log() -> None:
    async with LocalCluster(nodes=1, sync="none") as cluster:
        log = await cluster.create_log("events", replicas=1, retention_bytes=MIB)
        writer = await log.writer("writer")
        for sequence in range(1, 31):
            values = pa.array([randbytes(10_000) for _ in range(10)], pa.binary())
            staged = await log.stage(pa.RecordBatch.from_arrays([values], names=["value"]))
            await writer.publish(sequence, staged)
            expired = await log._parts.find_expired()
            assert (sequence * 10 - expired) * 10_000 > min(MIB, sequence * 99_999), "enough stays"
        assert (300 - expired) * 10_000 < 1.3 * MIB
        await cluster.log("events").trim(expired)
        assert len([e async for e in log.subscribe(expired + 1, 300)]) == 300 - expired

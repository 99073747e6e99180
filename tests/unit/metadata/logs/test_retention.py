"""Retention trims entries that are too old, and none in case of doubt."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
from old_arrivals import LongAgo
from poll import until
from scripted_node import PATIENCE_S, ScriptedNode
from small_cluster import SmallCluster, all_run, told, write_all

from loomlog.archive.record import ArchiveInfo, register_name
from loomlog.core.conditions import Kind
from loomlog.core.segments import Segment
from loomlog.errors import InvalidArgument, NotFound, Unavailable
from loomlog.limits import RETENTION_BYTES_MIN, RETENTION_S_MAX
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.logs import retention as retention_module
from loomlog.metadata.logs.retention import RetentionTrimmer
from loomlog.metadata.logs.sizes import Sizes
from loomlog.metadata.protocol import Keepers
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb

NOW_S = 1_000_000.0
WEEK_S = 7 * 86_400


class TimeFinder(Protocol):
    """The part of a keeper that retention needs."""

    async def find_time(
        self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
    ) -> Glsn: ...


def retention(
    cluster: SmallCluster,
    finder: TimeFinder | None = None,
    sizes: Sizes | None = None,
    interval_s: float = 1.0,
) -> RetentionTrimmer:
    term = cluster.repository.term
    assert term is not None
    keepers = Keepers({"ordered": cast("Any", finder)}) if finder else term.keepers
    return RetentionTrimmer(
        term.catalog,
        term.admin,
        term.registers,
        keepers,
        term._background,
        LongAgo(),
        sizes or Sizes(term.store, term.catalog, keepers),
        lambda retention_s: int((NOW_S - retention_s) * 1_000_000),
        interval_s=interval_s,
    )


async def started(
    cluster: SmallCluster, name: str = "events", retention_s: int = WEEK_S
) -> list[ScriptedNode]:
    """A log of ten entries on two nodes, in stream 1."""
    nodes = await cluster.add_nodes(2)
    request = pb.CreateLog(
        name=name, protocol="ordered", streams=1, replicas=2, retention_s=retention_s
    )
    await cluster.client.ask(pb.Frame(create_log=request))
    await all_run(nodes, 1)
    write_all(nodes, 1, 10)
    for node in nodes:
        await told(node, 1, 10)
    return nodes


def young_from(nodes: list[ScriptedNode], position: int) -> None:
    for node in nodes:
        node.young_from[1] = position


async def test_what_is_older_than_the_log_wants_is_trimmed(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await started(cluster)
        young_from(nodes, 7)
        await retention(cluster).trim_all()
        assert await cluster.bounds() == (7, 10)
        assert nodes[0].questions == [(1, int(NOW_S - WEEK_S) * 1_000_000, 1)]


async def test_an_idle_log_becomes_empty(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await started(cluster)
        await retention(cluster).trim_all()
        assert await cluster.bounds() == (11, 10)


class Changed:
    """A log that somebody wants to keep whole while old entries are searched."""

    def __init__(self) -> None:
        self.keeper: RetentionTrimmer | None = None

    async def find_time(
        self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
    ) -> Glsn:
        assert self.keeper is not None
        await self.keeper.set(pb.SetRetention(name="events", retention_s=0))
        return first + 5


async def test_what_was_too_old_stays_if_the_retention_changes_meanwhile(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await started(cluster)
        finder = Changed()
        finder.keeper = keeper = retention(cluster, finder)
        await keeper.trim_all()
        assert await cluster.bounds() == (1, 10)


class AllIsOld:
    """A source that knows of positions behind the log's end, as copyset logs do: they put a mark
    behind the last entry of an epoch."""

    async def find_time(
        self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
    ) -> Glsn:
        return first + 1_000_000


async def test_what_is_older_may_reach_further_than_the_log(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await started(cluster)
        keeper = retention(cluster, AllIsOld())
        await keeper.trim_all()
        assert await cluster.bounds() == (11, 10)
        await keeper.trim_all()
        assert await cluster.bounds() == (11, 10)


async def test_a_log_without_retention_keeps_everything(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await started(cluster, retention_s=0)
        await retention(cluster).trim_all()
        assert await cluster.bounds() == (1, 10)
        assert not nodes[0].questions


async def test_a_log_is_not_looked_at_again_and_again(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await started(cluster)
        young_from(nodes, 5)
        keeper = retention(cluster)
        await keeper.trim_all()
        await keeper.trim_all()
        assert len(nodes[0].questions) == 1
        await keeper.set(pb.SetRetention(name="events", retention_s=60))
        await keeper.trim_all()
        assert nodes[0].questions[1:] == [(1, int(NOW_S - 60) * 1_000_000, 5)]


async def test_if_one_replica_cannot_say_another_does(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await started(cluster)
        young_from(nodes, 4)
        nodes[0].refuse["find_time"] = Unavailable("the disk is busy")
        await retention(cluster).trim_all()
        assert await cluster.bounds() == (4, 10)


async def test_what_nobody_can_say_stays_until_somebody_can(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await started(cluster)
        for node in nodes:
            node.refuse["find_time"] = Unavailable("the disk is busy")
        keeper = retention(cluster)
        await keeper.trim_all()
        assert await cluster.bounds() == (1, 10)
        for node in nodes:
            del node.refuse["find_time"]
        await keeper.trim_all()
        assert await cluster.bounds() == (11, 10), "it is looked at again soon"


async def test_a_replica_that_lags_is_not_believed(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await started(cluster)
        for node in nodes:
            node.applies_commits = False
        write_all(nodes, 1, 5)
        async with asyncio.timeout(PATIENCE_S):
            while await cluster.bounds() != (1, 15):
                pass
        await retention(cluster).trim_all()
        assert await cluster.bounds() == (1, 15)


@pytest.mark.parametrize(("archived", "head"), [(3, 4), (9, 7), (0, 1)])
async def test_what_an_archive_does_not_have_yet_stays(
    tmp_path: Path, archived: int, head: int
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await started(cluster)
        young_from(nodes, 7)
        await note_archive(cluster, log_id=1, through=archived)
        await retention(cluster).trim_all()
        assert (await cluster.bounds())[0] == head


async def test_the_archive_of_an_older_log_of_that_name_holds_nothing_back(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await started(cluster)
        young_from(nodes, 7)
        await note_archive(cluster, log_id=99, through=2)
        await retention(cluster).trim_all()
        assert (await cluster.bounds())[0] == 7


async def note_archive(cluster: SmallCluster, log_id: int, through: int) -> None:
    info = ArchiveInfo(log_id, "/archive", 1, through, 0, 0, "", 0, "run")
    request = pb.SwapRegister(name=register_name("events"), value=info.encode(), token=1)
    await cluster.client.ask(pb.Frame(swap_register=request))


async def test_a_log_with_staged_rows_is_left_to_its_writers(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await started(cluster)
        await cluster.create("events.staged")
        await retention(cluster).trim_all()
        assert await cluster.bounds() == (1, 10)
        assert not nodes[0].questions


async def test_a_change_shows_and_outlives_a_restart(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await started(cluster)
        assert (await cluster.describe()).retention_s == WEEK_S
        change = pb.SetRetention(name="events", retention_s=60)
        answer = await cluster.client.ask(pb.Frame(set_retention=change))
        assert answer.log.retention_s == 60
        await cluster.restart_repository()
        assert (await cluster.describe()).retention_s == 60


@pytest.mark.parametrize(
    ("name", "retention_s", "error"),
    [
        ("nothing", 60, NotFound),
        ("events.staged", 60, InvalidArgument),
        ("events", RETENTION_S_MAX + 1, InvalidArgument),
    ],
)
async def test_a_change_that_makes_no_sense_is_refused(
    tmp_path: Path, name: str, retention_s: int, error: type[Exception]
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await started(cluster)
        await cluster.create("events.staged")
        change = pb.SetRetention(name=name, retention_s=retention_s)
        with pytest.raises(error):
            await cluster.client.ask(pb.Frame(set_retention=change))


async def test_a_log_that_is_deleted_meanwhile_is_no_harm(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await started(cluster)
        term = cluster.repository.term
        assert term is not None
        log = term.catalog.log("events")
        await cluster.delete()
        with pytest.raises(NotFound):
            await term.keepers["ordered"].find_time(log, log.layout.active, 0, 1)


async def test_what_fails_unexpectedly_does_not_end_it_for_other_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    looked: list[str] = []

    class Fails:
        """A keeper that finds no time."""

        async def find_time(
            self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
        ) -> Glsn:
            looked.append(log.name)
            raise ZeroDivisionError

    async with SmallCluster(tmp_path) as cluster:
        await started(cluster)
        request = pb.CreateLog(
            name="others", protocol="ordered", streams=1, replicas=2, retention_s=WEEK_S
        )
        await cluster.client.ask(pb.Frame(create_log=request))
        await retention(cluster, Fails()).trim_all()
        assert looked == ["events", "others"]
    assert any(record.exc_info for record in caplog.records)


async def test_a_log_that_is_stuck_does_not_delay_the_others(tmp_path: Path) -> None:
    looked: dict[str, int] = {}

    class Stuck:
        """A keeper that never says where a time begins in one log."""

        async def find_time(
            self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
        ) -> Glsn:
            looked[log.name] = looked.get(log.name, 0) + 1
            if log.name == "events":
                await asyncio.Event().wait()
            raise Unavailable("try again")

    async with SmallCluster(tmp_path) as cluster:
        await started(cluster)
        request = pb.CreateLog(
            name="others", protocol="ordered", streams=1, replicas=2, retention_s=WEEK_S
        )
        await cluster.client.ask(pb.Frame(create_log=request))
        running = asyncio.create_task(retention(cluster, Stuck(), interval_s=0.01).run())
        await until(lambda: looked.get("others", 0) >= 3)
        assert looked["events"] == 1
        running.cancel()


async def test_a_log_that_cannot_be_trimmed_for_long_is_a_condition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await started(cluster)
        for node in nodes:
            node.refuse["find_time"] = Unavailable("the disk is busy")
        keeper = retention(cluster, interval_s=0.0)
        assert cluster.repository.term is not None
        log = cluster.repository.term.catalog.log("events")
        await keeper.trim_all()
        assert not keeper.conditions(log), "not yet"
        monkeypatch.setattr(retention_module, "WAITS_S", 0.0)
        (condition,) = keeper.conditions(log)
        assert (condition.kind, condition.log) == (Kind.RETENTION_WAITS, "events")
        assert condition.text.endswith("the disk is busy")
        for node in nodes:
            del node.refuse["find_time"]
        await keeper.trim_all()
        assert not keeper.conditions(log)


async def test_the_search_for_old_entries_begins_behind_what_went_for_its_size(
    tmp_path: Path,
) -> None:
    searched: list[Glsn] = []

    class Large:
        """The sizes of logs that have three entries too many."""

        async def last_surplus(self, log: LogRecord) -> Glsn:
            return 3

    class Old:
        """A keeper of logs of which the next entry is too old."""

        async def find_time(
            self, log: LogRecord, segment: Segment, timestamp_us: int, first: Glsn
        ) -> Glsn:
            searched.append(first)
            return first + 1

    async with SmallCluster(tmp_path) as cluster:
        await started(cluster)
        change = pb.SetRetention(name="events", retention_bytes=RETENTION_BYTES_MIN)
        await cluster.client.ask(pb.Frame(set_retention=change))
        await retention(cluster, Old(), cast("Any", Large())).trim_all()
        assert searched == [4]
        assert await cluster.bounds() == (5, 10)

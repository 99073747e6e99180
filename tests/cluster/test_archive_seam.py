"""A log and its archive form one sequence for all readers, whatever is trimmed meanwhile."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from archive_rig import ArchiveRig, local_cluster

import loomlog
from loomlog import Entry, Gap
from loomlog.columns import SCHEMA
from loomlog.errors import Corrupt, DataLoss, Trimmed


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with local_cluster() as address:
        yield address


@pytest.fixture
def rig(address: str, tmp_path: Path) -> Iterator[ArchiveRig]:
    with loomlog.connect_sync(address) as cluster:
        rig = ArchiveRig.make(cluster, address, tmp_path)
        yield rig
        cluster.delete_log(rig.log.name)


def test_every_reader_sees_one_sequence_from_position_1(rig: ArchiveRig) -> None:
    rig.fill(200)
    before = list(rig.log.subscribe(1, 200))
    arrow = pa.Table.from_batches(rig.log.subscribe_arrow(1, 200))
    outcome = rig.archive(until=130, trim=True)
    assert (outcome.first, outcome.through, outcome.head) == (1, 130, 131)
    assert (outcome.files_written, outcome.files_checked) == (7, 7)
    assert rig.log.head() == 131
    assert rig.log.earliest() == 1
    assert list(rig.log.subscribe(1, 200)) == before
    assert pa.Table.from_batches(rig.log.subscribe_arrow(1, 200), SCHEMA).equals(arrow)
    assert [rig.log.read(n) for n in range(1, 201)] == before
    for start, stop in [(1, 1), (20, 21), (57, 130), (130, 131), (131, 140), (99, 99), (5, 3)]:
        assert list(rig.log.subscribe(start, stop)) == before[start - 1 : stop]
    with pytest.raises(Trimmed):
        list(rig.log.subscribe_arrow(1, 200, archived=False))


async def test_the_async_client_sees_it_and_follows_what_comes(rig: ArchiveRig) -> None:
    await asyncio.to_thread(rig.fill, 60)
    await asyncio.to_thread(rig.archive, 41, trim=True)
    async with await loomlog.connect(rig.address) as cluster:
        log = cluster.log(rig.log.name)
        assert (await log.read(41)).value == b"41"
        values = []
        async for entry in log.subscribe("earliest"):
            values.append(entry.value)
            if entry.position == 60:
                await log.append_many([b"61", b"62"])
            if entry.position == 62:
                break
        assert values == [b"%d" % n for n in range(1, 63)]
        rows = [batch.num_rows async for batch in log.subscribe_arrow(1, 62)]
        assert sum(rows) == 62


def test_what_is_archived_and_not_trimmed_comes_from_the_log(rig: ArchiveRig) -> None:
    rig.fill(50)
    rig.archive()
    for file in rig.files:
        file.unlink()
    assert len(list(rig.log.subscribe(1, 50))) == 50


def test_trimmed_and_not_archived_stays_trimmed(rig: ArchiveRig) -> None:
    rig.fill(80)
    rig.log.trim(10)
    rig.archive(until=40, trim=True)
    assert rig.info.first == 11
    assert rig.log.earliest() == 11
    for position in (1, 10):
        with pytest.raises(Trimmed, match=f"position {position}"):
            rig.log.read(position)
        with pytest.raises(Trimmed, match=f"position {position}"):
            list(rig.log.subscribe(position, 50))
    rig.log.trim(60)
    assert rig.log.earliest() == 61  # from 11 on a reader would not get through
    assert len(list(rig.log.subscribe(11, 40))) == 30
    found = []
    with pytest.raises(Trimmed, match="position 41"):
        found += [entry.position for entry in rig.log.subscribe(11, 80)]
    with pytest.raises(Trimmed, match="position 41"):
        rig.log.read(41)


def test_trims_while_somebody_reads_leave_no_gap_and_nothing_twice(rig: ArchiveRig) -> None:
    rig.fill(400, batch=3)
    seen = []
    runs = threading.Thread(
        target=lambda: [rig.archive(until=n, trim=True) for n in range(25, 401, 25)]
    )
    with loomlog.connect_sync(rig.address, read_ahead_bytes=1) as cluster:
        entries = cluster.log(rig.log.name).subscribe(1, 400)
        runs.start()
        for entry in entries:
            seen.append(entry.position)
            if entry.position == 30:
                runs.join(60)  # all is trimmed under the reader, which is far behind
    assert seen == list(range(1, 401))
    assert rig.log.head() == 401


def test_readers_go_on_while_each_range_is_moved(rig: ArchiveRig) -> None:
    rig.fill(120)
    done = threading.Event()
    failures: list[BaseException] = []

    def read_again_and_again() -> None:
        try:
            with loomlog.connect_sync(rig.address) as cluster:
                log = cluster.log(rig.log.name)
                while not done.is_set():
                    assert [e.position for e in log.subscribe(1, 120)] == list(range(1, 121))
                    assert log.read(55).value == b"55"
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read_again_and_again)
    reader.start()
    for until in range(10, 121, 10):
        rig.archive(until=until, trim=True)
    done.set()
    reader.join(60)
    assert not failures


async def test_rows_that_were_published_are_archived_like_others(rig: ArchiveRig) -> None:
    """References and staged rows are gone with the trim; their rows are in the archive."""
    async with await loomlog.connect(rig.address) as cluster:
        log = cluster.log(rig.log.name)
        await log.append_many([b"%d" % n for n in range(1, 11)])
        writer = await log.writer("pipeline")
        for sequence in (1, 2):
            first = await log.tail() + 1
            values = pa.array([b"%d" % n for n in range(first, first + 30)], pa.binary())
            staged = await log.stage(pa.RecordBatch.from_arrays([values], ["value"]))
            await writer.publish(sequence, staged)
        before = [entry async for entry in log.subscribe(1, 70)]
        assert [entry.value for entry in before] == [b"%d" % n for n in range(1, 71)]
        for until in (25, 55):  # both within a reference
            await asyncio.to_thread(rig.archive, until, trim=True)
            assert [entry async for entry in log.subscribe(1, 70)] == before
            assert [await log.read(n) for n in (1, 11, 25, 26, 55, 56, 70)] == [
                before[n - 1] for n in (1, 11, 25, 26, 55, 56, 70)
            ]


def test_a_missing_or_damaged_file_is_named(rig: ArchiveRig) -> None:
    rig.fill(60)
    rig.archive(trim=True)
    second = rig.files[1]
    content = second.read_bytes()
    second.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    with pytest.raises(Corrupt, match=second.name):
        list(rig.log.subscribe(1, 60))
    second.unlink()
    first, last = map(int, re.findall(r"\d+", second.name)[:2])
    advice = (
        f"positions {first} to {last} of log '{rig.log.name}' cannot be read: .*{second.name}.*; "
        f"continue at {last + 1}, or ask for gaps"
    )
    with pytest.raises(DataLoss, match=advice):
        list(rig.log.subscribe(1, 60))
    found = list(rig.log.subscribe(1, 60, gaps=True))
    assert [item for item in found if isinstance(item, Gap)] == [
        Gap(first, last, "dataloss", exact=False)
    ]
    assert [item.position for item in found if isinstance(item, Entry)] == [
        *range(1, first),
        *range(last + 1, 61),
    ]
    with pytest.raises(DataLoss, match=second.name):
        rig.log.read(first)
    second.write_bytes(content)
    assert len(list(rig.log.subscribe(1, 60))) == 60


@pytest.mark.parametrize("kind", ["group", "queue"])
def test_members_continue_when_a_missing_file_is_back(rig: ArchiveRig, kind: str) -> None:
    rig.fill(60)
    rig.archive(trim=True)
    second = rig.files[1]
    content = second.read_bytes()
    member: Any = getattr(rig.log, kind)("g")
    found: list[int] = []

    def take() -> None:
        for item in member:
            found.append(item.position)
            if kind == "queue":
                item.ack()
            if item.position == 60:
                return

    with member:
        for harm in (second.unlink, lambda: second.write_bytes(content[:100])):
            harm()
            with pytest.raises((DataLoss, Corrupt), match=second.name):
                take()
            second.write_bytes(content)
        take()
    assert found == list(range(1, 61))


def test_a_log_that_is_made_anew_has_no_archive(rig: ArchiveRig) -> None:
    rig.fill(30)
    rig.archive(trim=True)
    assert rig.log.read(1).value == b"1"  # this client knows the archive
    rig.cluster.delete_log(rig.log.name)
    log = rig.cluster.create_log(rig.log.name, streams=1, replicas=1)
    log.append_many([b"new"] * 10)
    log.trim(5)
    assert log.archive() is None
    assert log.earliest() == 6
    with pytest.raises(Trimmed):
        log.read(1)
    rig.archive(trim=True)
    assert log.earliest() == 6
    assert {entry.value for entry in log.subscribe("earliest", 10)} == {b"new"}


def test_ordinary_readers_do_not_ask_for_an_archive(rig: ArchiveRig) -> None:
    rig.fill(20)
    rig.cluster.register(f"archive/{rig.log.name}").swap(b"nobody reads this", 0)
    assert len(list(rig.log.subscribe("earliest", 20))) == 20
    assert rig.log.read(1).value == b"1"
    rig.log.trim(1)
    assert len(list(rig.log.subscribe(2, 20))) == 19
    with pytest.raises(Corrupt, match="archive/"):
        rig.log.read(1)

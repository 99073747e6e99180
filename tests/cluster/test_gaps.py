"""Logs with gaps, of several protocols, as archives and Spark's tasks read them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from archive_rig import ArchiveRig, local_cluster
from loglets_of import chains_of

import loomlog
from loomlog import Gap
from loomlog.client.loglets.chained.fixed_append import reserve
from loomlog.columns import SCHEMA
from loomlog.errors import NotFound, Trimmed
from loomlog.spark.options import ReadOptions, read_options
from loomlog.spark.ranges import plan
from loomlog.spark.tasks import read_range
from loomlog.types import Glsn

HOLES = [11, 12, 13, 25]  # in the chained segment, which reaches from 11 to 30


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with local_cluster() as address:
        yield address


@pytest.fixture
def rig(address: str, tmp_path: Path) -> Iterator[ArchiveRig]:
    """Make a log of three segments, with 40 positions in all."""
    with loomlog.connect_sync(address, hole_timeout_s=0.05) as cluster:
        rig = ArchiveRig.make(cluster, address, tmp_path, streams=2)
        fill(rig, 1, 10)
        cluster.switch_log(rig.log.name, protocol="chained")
        leave_hole(rig, 3)
        fill(rig, 14, 24)
        leave_hole(rig, 1)
        fill(rig, 26, 30)
        cluster.switch_log(rig.log.name, protocol="ordered")
        fill(rig, 31, 40)
        yield rig
        cluster.delete_log(rig.log.name)


def fill(rig: ArchiveRig, first: Glsn, last: Glsn) -> None:
    """Append entries one by one, whose values are their positions."""
    for position in range(first, last + 1):
        assert rig.log.append(b"%d" % position).position == position


def leave_hole(rig: ArchiveRig, count: int) -> None:
    """Reserve positions that are never written."""

    async def take() -> None:
        async with await loomlog.connect(rig.address) as cluster:
            log = cluster.log(rig.log.name)
            [stream] = (await log.describe()).active_streams
            await reserve(chains_of(log), stream.id, count)

    asyncio.run(take())


def expected(first: Glsn = 1, last: Glsn = 40) -> dict[Glsn, bytes]:
    return {p: b"%d" % p for p in range(first, last + 1) if p not in HOLES}


def followed(rig: ArchiveRig, first: Glsn = 1, last: Glsn = 40) -> dict[Glsn, bytes]:
    return {entry.position: entry.value for entry in rig.log.subscribe(first, last)}


def read_by_tasks(rig: ArchiveRig, first: Glsn, last: Glsn, **more: str) -> dict[Glsn, bytes]:
    given = {"cluster": rig.address, "log": rig.log.name, **more}
    options: ReadOptions = read_options(given, streaming=False)
    found: dict[Glsn, bytes] = {}
    for wanted in plan(rig.log, options, first, last):
        for batch in read_range(options, wanted, SCHEMA):
            places, values = batch.column("position"), batch.column("value")
            assert not found.keys() & set(places.to_pylist())
            found |= zip(places.to_pylist(), values.to_pylist(), strict=True)
    return dict(sorted(found.items()))


def test_gaps_are_told_to_who_asks(rig: ArchiveRig) -> None:
    found = list(rig.log.subscribe(gaps=True, stop=40))
    gaps = [item for item in found if isinstance(item, Gap)]
    assert gaps == [Gap(11, 13, "hole"), Gap(25, 25, "hole")]
    assert [i.first if isinstance(i, Gap) else i.position for i in found] == [
        p for p in range(1, 41) if p not in (12, 13)
    ]


def test_an_archive_has_what_the_log_had(rig: ArchiveRig) -> None:
    outcome = rig.archive(36, rows_per_file=7, trim=True)
    assert (outcome.rows_written, outcome.head) == (32, 37)
    for first, last in ((1, 40), (11, 13), (12, 24), (25, 36), (30, 38)):
        assert followed(rig, first, last) == expected(first, last)
    assert rig.log.read(24).value == b"24"
    with pytest.raises(NotFound):
        rig.log.read(25)


@pytest.mark.parametrize("more", [{}, {"maxRecordsPerPartition": "4"}])
def test_tasks_read_a_log_with_gaps(rig: ArchiveRig, more: dict[str, str]) -> None:
    for first, last in ((1, 40), (11, 12), (5, 25), (26, 40)):
        assert read_by_tasks(rig, first, last, **more) == expected(first, last)
    rig.archive(27, trim=True)
    assert read_by_tasks(rig, 1, 40, **more) == expected()


def test_what_is_trimmed_before_it_is_read_is_data_loss(rig: ArchiveRig) -> None:
    given = {"cluster": rig.address, "log": rig.log.name}
    options = read_options(given, streaming=False)
    tolerant = read_options({**given, "failOnDataLoss": "false"}, streaming=False)
    [chained] = [r for r in plan(rig.log, options, 14, 30) if r.count == 17]
    rig.log.trim(20)
    with pytest.raises(Trimmed, match="14 to 20"):
        list(read_range(options, chained, SCHEMA))
    [batch] = read_range(tolerant, chained, SCHEMA)
    assert batch.column("position").to_pylist() == list(expected(21, 30))

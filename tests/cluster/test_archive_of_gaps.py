"""Archives of logs with gaps: files are cut by the existing entries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from archive_rig import local_cluster

import loomlog
from loomlog.archive.contents import Archive
from loomlog.client.blocking import BlockingCluster, BlockingLog
from loomlog.core.copyset.record import epoch_of
from loomlog.errors import NotFound
from loomlog.spark import archive_job


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with local_cluster() as address:
        yield address


@pytest.fixture
def cluster(address: str) -> Iterator[BlockingCluster]:
    with loomlog.connect_sync(address) as cluster:
        yield cluster


def filled(cluster: BlockingCluster, name: str, protocols: list[str]) -> tuple[BlockingLog, int]:
    """Make a log with 25 entries in a segment of each protocol; return it and its last position."""
    log = cluster.create_log(name, protocol=protocols[0], streams=1, replicas=2)
    last = 0
    for number, protocol in enumerate(protocols):
        if number:
            cluster.switch_log(name, protocol=protocol)
        for batch in range(5):
            values = [b"%d-%d-%d" % (number, batch, n) for n in range(5)]
            last = log.append_many(values)[-1].position
    return log, last


@pytest.mark.parametrize(
    "protocols",
    [["copyset"], ["copyset", "ordered", "copyset"], ["ordered", "copyset", "chained", "copyset"]],
)
def test_files_are_few_and_have_everything(
    cluster: BlockingCluster, address: str, tmp_path: Path, protocols: list[str]
) -> None:
    name = "-".join(protocols)
    log, last = filled(cluster, name, protocols)
    assert epoch_of(last) >= protocols.count("copyset")
    before = [(entry.position, entry.value) for entry in log.subscribe(1, last)]
    assert len(before) == 25 * len(protocols)
    reports: list[tuple[int, int]] = []
    outcome = archive_job.run(
        *(cluster, address, name),
        to=str(tmp_path),
        until=last,
        rows_per_file=10,
        trim=True,
        report=lambda what, done, total: reports.append((done, total)),
    )
    assert (outcome.through, outcome.rows_written) == (last, len(before))
    assert outcome.files_written <= 4 * len(protocols)
    assert all(done <= total <= 2 * len(before) for done, total in reports)
    assert log.head() == last + 1
    assert [(entry.position, entry.value) for entry in log.subscribe(1, last)] == before
    info = log.archive()
    assert info is not None
    assert all(file.rows for file in Archive(info).files())
    assert not any(found.problem for found in archive_job.verify(cluster, address, name))
    position, value = before[-1]
    assert log.read(position).value == value


def test_a_run_that_ends_within_a_gap_goes_on_there(
    cluster: BlockingCluster, address: str, tmp_path: Path
) -> None:
    log, last = filled(cluster, "gap", ["copyset", "ordered", "copyset"])
    before = [entry.value for entry in log.subscribe(1, last)]
    for until in (1000, last - 10_000, last):
        archive_job.run(
            cluster, address, "gap", to=str(tmp_path), until=until, rows_per_file=10, trim=True
        )
    assert [entry.value for entry in log.subscribe(1, last)] == before
    with pytest.raises(NotFound):
        log.read(1000)

"""Backups are made while programs append, and restored into clusters that never saw the entries."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from archive_rig import ArchiveRig, local_cluster
from cli_rig import Loom, loom_up

import loomlog
from loomlog.archive.location import Location, uri_of
from loomlog.client.backup import backup, restore
from loomlog.client.backup.record import LogSettings, newest
from loomlog.client.publish.stager import Staged
from loomlog.core.permissions import Grant
from loomlog.core.transactions import DECISIONS_LOG
from loomlog.errors import AlreadyExists, Corrupt, DataLoss, InvalidArgument, NotFound, Trimmed
from loomlog.spark.pipelines.store import decode, encode
from loomlog.spark.pipelines.units import Progress, Unit, UnitRange, UnitState
from loomlog.types import Entry


@pytest.fixture(scope="module")
def old() -> Iterator[str]:
    with local_cluster() as address:
        yield address


@pytest.fixture(scope="module")
def new() -> Iterator[str]:
    with local_cluster() as address:
        yield address


@pytest.fixture
def rig(old: str, tmp_path: Path) -> Iterator[ArchiveRig]:
    with loomlog.connect_sync(old) as cluster:
        yield ArchiveRig.make(cluster, old, tmp_path)


@pytest.fixture
def other(new: str) -> Iterator[loomlog.BlockingCluster]:
    with loomlog.connect_sync(new) as cluster:
        yield cluster


def test_a_cluster_is_backed_up_while_it_is_appended_to_destroyed_and_restored(
    tmp_path: Path,
) -> None:
    acknowledged: dict[int, bytes] = {}
    begun, ended = threading.Event(), threading.Event()

    def append(address: str) -> None:
        with loomlog.connect_sync(address) as cluster:
            log = cluster.log("events")
            number = 0
            while not ended.is_set():
                values = [b"%d" % n for n in range(number, number + 50)]
                placed = log.append_many(values, headers=[{"n": value} for value in values])
                acknowledged.update(zip((p.position for p in placed), values, strict=True))
                begun.set()
                number += 50

    backups = str(tmp_path / "backups")
    with loom_up(tmp_path / "old", "--nodes", "2") as up:
        loom = Loom(up.mr)
        assert "there is no backup" in loom.says("backup", "list", backups)
        loom.says("log", "create", "events", "--streams", "2", "--replicas", "2")
        loom.says("append", "events", given="first\n")
        writer = threading.Thread(target=append, args=(up.mr,))
        writer.start()
        try:
            loom.says("checkpoint", "set", "events", "billing", "1")
            assert begun.wait(60)
            before = dict(acknowledged)
            made = loom.json("backup", "run", backups, "--rows-per-file", "500")
            between = loom.json("backup", "run", backups)
        finally:
            ended.set()
            writer.join()
        (log,) = (log for log in made["logs"] if log["log"] == "events")
        (later,) = (log for log in between["logs"] if log["log"] == "events")
        assert log["through"] >= max(before)  # all that was acknowledged when it began
        assert between["rows_written"] == later["through"] - log["through"]
    with loom_up(tmp_path / "new", "--nodes", "2") as up:
        loom = Loom(up.mr)
        assert "is complete" in loom.says("backup", "verify", backups)
        done = loom.json("archive", "restore", backups)
        (events,) = (log for log in done["logs"] if log["name"] == "events")
        assert events["through"] == later["through"]
        assert any("leases" in line for line in done["left_out"])
        with loomlog.connect_sync(up.mr) as cluster:
            log = cluster.log("events")
            entries = list(log.subscribe(1, later["through"]))
            assert [entry.position for entry in entries] == list(range(1, later["through"] + 1))
            expected = {p: v for p, v in acknowledged.items() if p <= later["through"]}
            assert {e.position: e.value for e in entries[1:]} == expected
            assert all(e.headers == {"n": e.value} for e in entries[1:])
            assert log.checkpoint("billing").get() == 1
            assert log.append(b"next").position == later["through"] + 1


def _make(rig: ArchiveRig, directory: str = "backups") -> backup.BackupOutcome:
    to = str(rig.directory / directory)
    return backup.make(rig.cluster, to, only=[rig.log.name], rows_per_file=20)


def _sources(rig: ArchiveRig, directory: str = "backups") -> list[restore.Source]:
    location = Location(uri_of(str(rig.directory / directory)))
    found = restore.sources(location, newest(location))
    return [source.adapted("", 1) for source in found]


def _contents(log: loomlog.BlockingLog, first: int) -> list[tuple[object, ...]]:
    """Return what a restored entry has to share with the old one."""
    tail = log.tail()

    def shared(entry: Entry) -> tuple[object, ...]:
        return entry.position, entry.value, entry.key, entry.timestamp, entry.headers

    return [shared(entry) for entry in log.subscribe(first, tail)]


def test_entries_come_back_as_they_were(rig: ArchiveRig, other: loomlog.BlockingCluster) -> None:
    rig.fill(90)
    rig.log.append(b"old", b"k", headers={"a": b"1"}, timestamp=datetime(2001, 1, 1, tzinfo=UTC))
    rig.log.trim(30)
    _make(rig)
    (restored,) = restore.restore_logs(other, _sources(rig))
    assert (restored.first, restored.through, restored.entries) == (31, 91, 61)
    log = other.log(rig.log.name)
    assert log.head() == 31
    assert _contents(log, 31) == _contents(rig.log, 31)
    with pytest.raises(loomlog.errors.Trimmed):
        log.read(30)


def test_a_second_backup_writes_only_new_entries_and_the_first_stays(
    rig: ArchiveRig, other: loomlog.BlockingCluster
) -> None:
    rig.fill(30)
    first = _make(rig)
    rig.fill(25)
    second = _make(rig)
    assert (first.rows_written, second.rows_written) == (30, 25)
    assert _make(rig).rows_written == 0
    location = Location(uri_of(str(rig.directory / "backups")))
    (then,) = restore.sources(location, newest(location, first.backup.made))
    restore.restore_logs(other, [then.adapted("then-" + then.name, 1)])
    assert other.log("then-" + then.name).tail() == 30
    with pytest.raises(NotFound, match="no backup of yesterday"):
        newest(location, "yesterday")


def test_what_was_trimmed_since_is_not_restored(
    rig: ArchiveRig, other: loomlog.BlockingCluster
) -> None:
    rig.fill(30)
    _make(rig)
    rig.fill(10)
    rig.log.trim(35)  # beyond what the directory has
    assert _make(rig).rows_written == 5
    rig.log.trim(37)
    _make(rig)
    (restored,) = restore.restore_logs(other, _sources(rig))
    assert (restored.first, restored.through) == (38, 40)


def test_a_log_that_is_empty_keeps_its_place(
    rig: ArchiveRig, other: loomlog.BlockingCluster
) -> None:
    rig.fill(5)
    rig.log.trim(5)
    _make(rig)
    restore.restore_logs(other, _sources(rig))
    log = other.log(rig.log.name)
    assert log.is_empty()
    assert log.append(b"six").position == 6


@pytest.mark.parametrize(("protocol", "has_gaps"), [("chained", False), ("copyset", True)])
def test_logs_of_other_protocols_keep_their_positions(
    rig: ArchiveRig, other: loomlog.BlockingCluster, protocol: str, has_gaps: bool
) -> None:
    rig.fill(10)
    rig.cluster.switch_log(rig.log.name, protocol=protocol)
    rig.log.append_many([b"%d" % n for n in range(11, 21)])
    _make(rig)
    sources = _sources(rig)
    if has_gaps:
        with pytest.raises(InvalidArgument, match="--archive"):
            restore.restore_logs(other, sources)
        assert rig.log.name not in {log.name for log in other.logs()}
    place = str(rig.directory / "archive") if has_gaps else None
    restore.restore_logs(other, sources, archive=place)
    log = other.log(rig.log.name)
    assert log.describe().protocol == protocol
    assert _contents(log, 1) == _contents(rig.log, 1)
    after = log.append(b"next").position
    assert after > rig.log.tail()
    assert log.read(after).value == b"next"


def test_entries_may_stay_in_an_archive(rig: ArchiveRig, other: loomlog.BlockingCluster) -> None:
    rig.fill(50)
    rig.log.trim(25)
    _make(rig)
    place = rig.directory / "archive"
    (restored,) = restore.restore_logs(other, _sources(rig), archive=str(place))
    for path in (rig.directory / "backups").rglob("*.parquet"):
        path.unlink()  # the archive has files of its own
    log = other.log(rig.log.name)
    assert (log.head(), log.earliest(), restored.entries) == (51, 26, 25)
    assert log.append(b"51").position == 51
    assert [entry.value for entry in log.subscribe(26, 51)] == [b"%d" % n for n in range(26, 52)]


def test_entries_of_transactions_are_restored_without_the_log_of_decisions(
    rig: ArchiveRig, other: loomlog.BlockingCluster
) -> None:
    """Readers of the backup know what counts, and the decisions on what failed leave gaps."""
    second = rig.cluster.create_log(f"second-{rig.log.name}", replicas=1)
    with rig.cluster.transaction() as both:
        both.append(rig.log.name, b"both", b"key")
        both.append(second.name, b"both")
    made = backup.make(rig.cluster, str(rig.directory / "backups")).backup
    assert DECISIONS_LOG not in {log.name for log in made.logs}
    sources = [each for each in _sources(rig) if each.name in (rig.log.name, second.name)]
    restore.restore_logs(other, sources)
    assert _contents(other.log(rig.log.name), 1) == _contents(rig.log, 1)
    assert _contents(other.log(second.name), 1) == _contents(second, 1)


def test_an_archive_is_restored_without_its_cluster(
    rig: ArchiveRig, other: loomlog.BlockingCluster
) -> None:
    rig.fill(60)
    rig.archive(until=20)
    rig.archive(until=40, trim=True)
    where = Location(rig.info.location)
    source = restore.archived_source(where, "again", LogSettings("ordered", 1, 1))
    restore.restore_logs(other, [source])
    values = [entry.value for entry in other.log("again").subscribe(1, 40)]
    assert values == [b"%d" % n for n in range(1, 41)]
    rig.files[0].unlink()
    with pytest.raises(DataLoss, match="missing"):
        restore.archived_source(where, "again", LogSettings("ordered", 1, 1))
    with pytest.raises(NotFound, match="neither a backup nor an archive"):
        restore.archived_source(Location(uri_of(str(rig.directory / "no"))), "x", source.settings)


def test_readers_find_their_places_again(rig: ArchiveRig, other: loomlog.BlockingCluster) -> None:
    rig.fill(30)
    name = rig.log.name
    rig.log.checkpoint("reader").set(12)
    with rig.log.group("group", shards=2, start=8) as group:
        next(iter(group))
        group.commit()
    with rig.log.queue("jobs") as queue:
        next(iter(queue)).ack()
    rig.cluster.register(f"own-{name}").swap(b"value", 0)
    rig.cluster.register(f"checkpoint/{name}/of-a-program").swap(b"not JSON", 0)
    rig.cluster.register(f"writer/{name}/w").swap(b"{}", 0)
    rig.cluster.grant(Grant("anna", "read", name))
    made = _make(rig).backup
    restored = restore.restore_logs(other, _sources(rig))
    done = restore.restore_metadata(other, made, restored)
    log = other.log(name)
    assert log.checkpoint("reader").get() == 12
    assert log.groups()["group"].members == ()
    with log.queue("jobs") as queue:
        assert next(iter(queue)).entry.position == 2
    own = other.register(f"own-{name}").get()
    assert own is not None
    assert own.value == b"value"
    assert other.register(f"writer/{name}/w").get() is None
    assert any("writer" in line for line in done.left_out)
    assert Grant("anna", "read", name) in other.access().rules.grants
    with pytest.raises(AlreadyExists, match="--as"):
        restore.restore_logs(other, _sources(rig))


def _rows(sequence: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [b"%d" % sequence] * 10})


def test_a_writer_goes_on_behind_what_it_has_published(
    rig: ArchiveRig, other: loomlog.BlockingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The register of a writer fits its log, also if it publishes while the log's end is found."""
    writer = rig.log.writer("w")
    staged: list[Staged] = []

    def publish() -> None:
        sequence = len(staged) + 1
        staged.append(rig.log.stage(_rows(sequence)))
        writer.publish(sequence, staged[-1])

    def find_tail(run: backup._LogRun) -> None:
        if len(staged) < 4:
            publish()
        original(run)

    original = backup._LogRun.find_tail
    monkeypatch.setattr(backup._LogRun, "find_tail", find_tail)
    publish()
    made = _make(rig).backup
    publish()
    restore.restore_metadata(other, made, restore.restore_logs(other, _sources(rig)))
    log = other.log(rig.log.name)
    writer = log.writer("w")
    assert (writer.sequence(), log.tail()) == (4, 40)
    assert writer.publish(4, log.stage(_rows(4))) == (31, 40)
    for lost in staged:  # also what was staged after the backup
        with pytest.raises(Trimmed):
            writer.publish(5, lost)
    assert writer.publish(5, log.stage(_rows(0))) == (41, 50)
    values = [b"%d" % sequence for sequence in (1, 2, 3, 4, 0) for _ in range(10)]
    assert [entry.value for entry in log.subscribe(1, 50)] == values


def test_a_pipeline_goes_on_where_it_was_unless_its_output_is_elsewhere(
    rig: ArchiveRig, other: loomlog.BlockingCluster
) -> None:
    rig.fill(10)
    name = rig.log.name
    definition = {
        "sources": {"events": name},
        "output": f"log {name}",
        "stateful": False,
        "dead_letters": "",
    }
    unit = Unit(7, {name: UnitRange(6, 10)}, UnitState.RUNNING)
    progress = Progress(definition, {name: 5}, next_unit=8, unit=unit, life="x", epoch=9)
    elsewhere = replace(progress, definition=definition | {"output": "parquet /tables/a"})
    stateful = replace(progress, definition=definition | {"stateful": True})
    kinds = {"kept": progress, "table": elsewhere, "state": stateful}
    for kind, value in kinds.items():
        rig.cluster.register(f"pipeline/{kind}-{name}").swap(encode(value), 0)
    made = _make(rig).backup
    done = restore.restore_metadata(other, made, restore.restore_logs(other, _sources(rig)))
    found = other.register(f"pipeline/kept-{name}").get()
    assert found is not None
    created = replace(unit, state=UnitState.CREATED)
    assert decode(found.value) == replace(progress, unit=created, epoch=0)
    for kind, why in (("table", "its output"), ("state", "checkpoint")):
        assert other.register(f"pipeline/{kind}-{name}").get() is None
        assert any(f"{kind}-{name}" in line and why in line for line in done.left_out)


def test_who_publishes_all_the_time_is_left_out(
    rig: ArchiveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "TRY_S", 0.0)
    name = f"pipeline/busy-{rig.log.name}"
    unit = Unit(7, {rig.log.name: UnitRange(1, 1)}, UnitState.COMMITTING, staged={})
    register = rig.cluster.register(name)
    version = register.swap(encode(Progress({}, {}, unit=unit)), 0)
    made = _make(rig).backup
    assert name not in made.registers
    assert any(name.replace("/", " ") in line and "pause it" in line for line in made.left_out)
    register.swap(None, version)
    assert not any("pause it" in line for line in _make(rig).backup.left_out)


def test_settings_come_back_and_tokens_are_named(
    rig: ArchiveRig, other: loomlog.BlockingCluster
) -> None:
    rig.log.set_retention("7d", retention_bytes="1G")
    rig.cluster.create_token("ci", [f"append:{rig.log.name}"], "1h")
    made = _make(rig).backup
    assert any(f"--allow append:{rig.log.name}" in line for line in made.left_out)
    restore.restore_logs(other, _sources(rig))
    info, before = other.log(rig.log.name).describe(), rig.log.describe()
    assert (info.retention_s, info.retention_bytes) == (7 * 86_400, before.retention_bytes)
    assert info.retention_bytes


def test_backups_of_another_cluster_are_never_continued(
    rig: ArchiveRig, other: loomlog.BlockingCluster
) -> None:
    rig.fill(10)
    _make(rig)
    ids = {log.id for log in rig.cluster.logs()}
    while (made := other.create_log(f"{rig.log.name}-like", replicas=1)).describe().id not in ids:
        other.delete_log(made.name)
    made.append_many([b"x"] * 12)
    to = str(rig.directory / "backups")
    assert backup.make(other, to, only=[made.name]).rows_written == 12


def test_damage_is_found(rig: ArchiveRig) -> None:
    rig.fill(30)
    made = _make(rig).backup
    location = Location(uri_of(str(rig.directory / "backups")))
    assert backup.verify(location, made) == 2
    damaged = sorted((rig.directory / "backups").rglob("*.parquet"))[0]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(Corrupt, match=damaged.name):
        backup.verify(location, made)
    (file,) = (rig.directory / "backups").glob("backup-*.json")
    file.write_bytes(file.read_bytes().replace(b'"through": 30', b'"through": 29'))
    with pytest.raises(Corrupt, match="damaged, or not a backup"):
        newest(location)

"""The file of a backup, and what of a writer or pipeline is restored from it.

Backups of clusters: tests/cluster/test_backup.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loomlog.archive.location import Location
from loomlog.client.backup import publishers
from loomlog.client.backup.record import Backup, LogBackup, LogSettings, decode, newest
from loomlog.client.publish.writer_state import WriterState
from loomlog.errors import Corrupt, NotFound, VersionMismatch

LOG = LogBackup("events", 7, LogSettings("chained", 1, 3, 2), "log-7", 11, 20, 1, 300, "m.json", 5)
BACKUP = Backup(
    *("cluster", "2026-11-20T01:02:03Z", (LOG,), {"r": b"\x00\xff"}),
    grants=(("alice", "read", "*"),),
    left_out=("tokens",),
)
WRITER = WriterState(1, 4, (1, 9), 6, 100, 101, 5)


def test_a_backup_is_read_as_it_was_written() -> None:
    assert decode(BACKUP.encode(), "b") == BACKUP
    assert BACKUP.name == "backup-20261120T010203Z.json"
    assert BACKUP.log("events") == LOG
    with pytest.raises(NotFound, match="it has events"):
        BACKUP.log("other")


def test_every_damaged_byte_is_found() -> None:
    data = BACKUP.encode()
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            assert decode(damaged, "b") == BACKUP
        except (Corrupt, VersionMismatch):
            continue
    for end in range(len(data) - len("\n}\n")):
        with pytest.raises(Corrupt, match="b is damaged"):
            decode(data[:end], "b")


def test_a_backup_of_a_later_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loomlog.client.backup.record.VERSION", 2)
    data = BACKUP.encode()
    monkeypatch.undo()
    with pytest.raises(VersionMismatch, match="another version"):
        decode(data, "b")


def test_the_newest_backup_is_taken_unless_one_is_named(tmp_path: Path) -> None:
    place = Location(str(tmp_path))
    with pytest.raises(NotFound, match="no backup in"):
        newest(place)
    older = replace(BACKUP, made="2025-01-01T00:00:00Z")
    for backup in (BACKUP, older):
        (tmp_path / backup.name).write_bytes(backup.encode())
    (tmp_path / "notes.json").write_text("not one of ours")
    assert newest(place) == BACKUP
    assert newest(place, older.made) == older
    with pytest.raises(NotFound, match="no backup of 2024"):
        newest(place, "2024")


def test_a_writer_comes_back_with_its_log_and_without_staged_rows() -> None:
    name = "writer/events/etl"
    value = publishers.restored(name, WRITER.encode(), {"events"})
    assert isinstance(value, bytes)
    assert value == replace(WRITER.expired(), stream=0).encode()
    assert publishers.restored(name, WRITER.encode(), {"other"}) == "its log was not restored"
    assert "not what this version" in str(publishers.restored(name, b"{}", {"events"}))
    assert not publishers.is_at_work(name, WRITER.encode())
    assert not publishers.is_at_work(name, b"{}")


def progress(**changes: Any) -> bytes:
    definition = {"stateful": False, "output": "log out", "sources": {"in": "events"}}
    definition |= {name: changes.pop(name) for name in [*changes] if name in definition}
    unit = {"state": "committing", "staged": [1, 2], "number": 3}
    return json.dumps({"definition": definition, "unit": unit, "epoch": 5, **changes}).encode()


def test_a_pipeline_begins_its_unit_again() -> None:
    value = publishers.restored("pipeline/p", progress(), {"events"})
    assert isinstance(value, bytes)
    found = json.loads(value)
    assert found["epoch"] == 0
    assert found["unit"] == {"state": "created", "staged": None, "number": 3}
    assert publishers.is_at_work("pipeline/p", progress())
    assert not publishers.is_at_work("pipeline/p", progress(unit=None))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (progress(stateful=True), "in a checkpoint"),
        (progress(output="delta /lake/t"), "delta /lake/t, is not in a backup"),
        (progress(sources={"in": "gone"}), "log gone was not restored"),
        (b"[]", "not what this version"),
    ],
)
def test_why_a_pipeline_does_not_come_back(value: bytes, reason: str) -> None:
    assert reason in str(publishers.restored("pipeline/p", value, {"events"}))

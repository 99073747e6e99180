"""Manifests, pages and the register's value: they come back as they were, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loomlog.archive import manifest, record
from loomlog.archive.location import Location, uri_of
from loomlog.archive.manifest import Manifest, Page, RangeFile, holding
from loomlog.archive.record import ArchiveInfo
from loomlog.errors import Corrupt, DataLoss, InvalidArgument, VersionMismatch


def file(first: int, last: int) -> RangeFile:
    return RangeFile(
        f"positions-{first}-{last}", first, last, last - first + 1, 1000, 7, 8, "00-00"
    )


def page(first: int, last: int) -> Page:
    return Page(f"page-{first}-{last}", first, last, 10, 10_000, 9)


INFO = ArchiveInfo(3, "file:///archive/events", 1, 90, 4, 1234, "manifest-90", 5, "run")


def test_a_manifest_comes_back() -> None:
    made = Manifest((page(1, 10), page(11, 30)), (file(31, 40), file(41, 90)))
    assert manifest.decode(made.encode(), "m") == made
    assert made.file_count == 22
    assert made.size_bytes == 22_000
    assert manifest.decode(Manifest().encode(), "m") == Manifest()
    files = [file(1, 10), file(11, 12)]
    assert manifest.decode_page(manifest.encode_page(files), "p") == files


def test_positions_are_found() -> None:
    files = [file(5, 10), file(11, 11), file(12, 40)]
    assert [holding(files, n) for n in (4, 41)] == [None, None]
    assert [holding(files, n) for n in (5, 10, 11, 12, 40)] == [
        *(files[0], files[0], files[1], files[2], files[2])
    ]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"version": 1, "files": [{"first": 1}]}'])
def test_what_is_no_manifest_is_named(data: bytes) -> None:
    with pytest.raises(Corrupt, match="this one"):
        manifest.decode(data, "this one")
    with pytest.raises(Corrupt, match="this one"):
        manifest.decode_page(data, "this one")


def test_gaps_and_overlaps_are_refused() -> None:
    for second in (12, 10):
        with pytest.raises(Corrupt, match="after position 10 comes"):
            manifest.decode(Manifest((), (file(1, 10), file(second, 20))).encode(), "m")


def test_the_register_says_where_and_how_far() -> None:
    assert record.decode(INFO.encode(), "events") == INFO
    assert [INFO.covers(n) for n in (1, 90, 91)] == [True, True, False]
    for value in (b"", b"[]", b"{}", b'{"version": 1}'):
        with pytest.raises(Corrupt, match="archive/events"):
            record.decode(value, "events")


def test_newer_versions_are_refused() -> None:
    newer = json.loads(INFO.encode()) | {"version": 2}
    with pytest.raises(VersionMismatch, match="update"):
        record.decode(json.dumps(newer).encode(), "events")
    with pytest.raises(VersionMismatch, match="update"):
        manifest.decode(Manifest().encode().replace(b": 1", b": 2"), "m")


def test_a_file_has_its_name_when_it_is_complete(tmp_path: Path) -> None:
    location = Location(uri_of(str(tmp_path / "new" / "one")))
    location.create_directory()
    with location.create("a") as sink:
        sink.write(b"1")
        assert location.names() == ["a.partial"]
    assert location.names() == ["a"]
    assert location.read("a") == b"1"
    location.delete("a")
    location.delete("a")
    with pytest.raises(DataLoss, match="one/a is missing"):
        location.read("a")


def test_locations_are_paths_or_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert uri_of("here/it is/") == f"{tmp_path.as_uri()}/here/it%20is"
    assert uri_of(tmp_path.as_uri()) == tmp_path.as_uri()
    inside = Location(uri_of("here")).inside("../a b")
    assert inside.uri == f"{tmp_path.as_uri()}/here/__a_b"
    with pytest.raises(InvalidArgument, match="nonsense://x"):
        uri_of("nonsense://x")

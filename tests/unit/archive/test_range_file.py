"""Range files are read back as written, and any damage is detected."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archive_rows import rows

from loomlog.archive import range_file
from loomlog.archive.location import Location, uri_of
from loomlog.archive.manifest import RangeFile
from loomlog.archive.range_file import Checksum, difference
from loomlog.columns import SCHEMA
from loomlog.errors import Corrupt, DataLoss
from loomlog.types import Gap


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return Location(uri_of(str(tmp_path)))


def checksum_of(*batches: pa.RecordBatch) -> str:
    checksum = Checksum()
    for batch in batches:
        checksum.update(batch)
    return checksum.text()


def table(*batches: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches(batches, SCHEMA)


def test_a_checksum_does_not_depend_on_batches_but_on_every_column() -> None:
    whole = rows(1, 101)
    assert checksum_of(whole) == checksum_of(rows(1, 1), rows(2, 63), rows(64, 101))
    assert checksum_of(whole.slice(30, 40)) == checksum_of(rows(31, 70))
    for index, name in enumerate(SCHEMA.names):
        column = pa.concat_arrays([whole.column(index).slice(0, 100), whole.column(index)[:1]])
        other = whole.set_column(index, SCHEMA.field(index), column)
        assert name in difference(checksum_of(other), checksum_of(whole))
    assert difference(checksum_of(whole), checksum_of(whole)) == ""


def test_an_empty_key_is_not_a_missing_one() -> None:
    none, empty = rows(2, 2), rows(2, 2)
    empty = empty.set_column(4, SCHEMA.field(4), pa.array([b""], pa.binary()))
    assert checksum_of(none) != checksum_of(empty)


def test_bytes_behind_a_null_do_not_count() -> None:
    keys = pa.array([b"abc", b"def"], pa.binary())
    hidden = pa.Array.from_buffers(
        pa.binary(), 2, [pa.py_buffer(b"\x01"), *keys.buffers()[1:]], null_count=1
    )
    plain = pa.array([b"abc", None], pa.binary())
    batches = [rows(1, 2).set_column(4, SCHEMA.field(4), column) for column in (hidden, plain)]
    assert checksum_of(batches[0]) == checksum_of(batches[1])


def test_what_is_written_is_read_back_from_any_position(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_file, "ROWS_PER_GROUP", 100)
    file = range_file.write(location, 11, 1000, [rows(11, 333), rows(334, 340), rows(341, 1000)])
    assert (file.first, file.last, file.rows) == (11, 1000, 990)
    assert location.names() == [file.name]
    assert table(*range_file.read(location, file)).equals(table(rows(11, 1000)))
    for first, last in [(11, 11), (1000, 1000), (110, 111), (99, 512)]:
        found = table(*range_file.read(location, file, first, last))
        assert found.equals(table(rows(first, last)))
    range_file.check(location, file)
    range_file.check(location, file, [rows(11, 500), rows(501, 1000)])
    range_file.check(location, file, [rows(777, 1000)])


def test_large_values_make_small_row_groups(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_file, "BYTES_PER_GROUP", 2000)
    file = range_file.write(location, 1, 200, [rows(n, n + 9) for n in range(1, 200, 10)])
    with location.open(file.name) as source:
        assert pq.ParquetFile(source).num_row_groups > 3
    assert table(*range_file.read(location, file)).equals(table(rows(1, 200)))


def test_gaps_that_the_log_tells_of_are_none_of_the_rows(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_file, "ROWS_PER_GROUP", 10)
    given = [Gap(1, 4, "hole"), rows(5, 30), Gap(31, 31, "hole"), rows(32, 48), Gap(49, 60, "hole")]
    file = range_file.write(location, 1, 50, given)
    assert (file.first, file.last, file.rows) == (1, 50, 43)
    assert table(*range_file.read(location, file)).equals(table(rows(5, 30), rows(32, 48)))
    for first, last in [(1, 5), (30, 32), (31, 31), (45, 50)]:
        found = table(*range_file.read(location, file, first, last)).column(0).to_pylist()
        assert found == [n for n in range(max(first, 5), min(last, 48) + 1) if n != 31]
    range_file.check(location, file, given)
    range_file.check(location, file, [Gap(31, 31, "hole"), rows(32, 48), Gap(49, 50, "hole")])
    with pytest.raises(Corrupt, match="differs"):
        range_file.check(location, file, [rows(31, 50)])


def test_a_range_may_be_one_gap(location: Location) -> None:
    file = range_file.write(location, 1, 50, [Gap(1, 50, "hole")])
    assert file.rows == 0
    assert list(range_file.read(location, file)) == []
    range_file.check(location, file, [Gap(1, 50, "hole")])


@pytest.mark.parametrize("given", [[(1, 5), (7, 10)], [(1, 5), (5, 10)], [(1, 9)], [(2, 10)]])
def test_rows_that_are_not_the_range_make_no_file(
    location: Location, given: list[tuple[int, int]]
) -> None:
    with pytest.raises(DataLoss, match="positions-1-10"):
        range_file.write(location, 1, 10, [rows(*part) for part in given])
    assert [name for name in location.names() if name.endswith(".parquet")] == []


def test_a_flipped_bit_is_found_and_never_read_as_other_rows(
    location: Location, tmp_path: Path
) -> None:
    file = range_file.write(location, 1, 3000, [rows(1, 3000)])
    path = tmp_path / file.name
    whole = path.read_bytes()
    rng = random.Random(7)
    anywhere = [rng.randrange(len(whole)) for _ in range(100)]
    footer = [len(whole) - 1 - rng.randrange(1000) for _ in range(100)]
    for at in [0, len(whole) // 2, len(whole) - 1, *anywhere, *footer]:
        broken = bytearray(whole)
        broken[at] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        with pytest.raises(Corrupt, match=file.name):
            range_file.check(location, file)
        try:
            found = table(*range_file.read(location, file))
        except Corrupt:
            continue
        assert found.equals(table(rows(1, 3000))), f"byte {at}"


def test_a_file_that_is_cut_or_gone_or_another_is_named(location: Location, tmp_path: Path) -> None:
    file = range_file.write(location, 1, 100, [rows(1, 100)])
    path = tmp_path / file.name
    whole = path.read_bytes()
    for content in (b"", whole[:-1], whole + b"\0"):
        path.write_bytes(content)
        with pytest.raises(Corrupt, match=file.name):
            range_file.check(location, file)
    path.unlink()
    with pytest.raises(DataLoss, match=f"{file.name} is missing"):
        list(range_file.read(location, file))
    other = range_file.write(location, 2, 101, [rows(2, 101)])
    (tmp_path / other.name).rename(path)
    with pytest.raises(Corrupt, match=file.name):
        list(range_file.read(location, file))


def test_rows_that_differ_from_the_log_are_found_although_the_file_is_whole(
    location: Location,
) -> None:
    other = rows(1, 50).set_column(5, SCHEMA.field(5), pa.array([b"x"] * 50, pa.binary()))
    file = range_file.write(location, 1, 50, [other])
    range_file.check(location, file)
    with pytest.raises(Corrupt, match="differs from the log in: value"):
        range_file.check(location, file, [rows(1, 50)])
    with pytest.raises(DataLoss, match="the log ends at 49"):
        range_file.check(location, file, [rows(1, 49)])
    with pytest.raises(Corrupt, match="manifest"):
        range_file.check(location, _with_other_checksum(file))


def _with_other_checksum(file: RangeFile) -> RangeFile:
    return replace(file, checksum=checksum_of(rows(1, 50)))

"""A table of Parquet files: readers see exactly the files that manifests name.

    TABLE/data/…                          files; ignored unless a manifest names them
    TABLE/manifests/OWNER-N.unit          the files of unit N, created atomically
    TABLE/manifests/N.snapshot            all files of all units up to the ones it names

From time to time manifests are folded into a snapshot. A manifest of a unit that is already in a
snapshot is ignored, so a publisher that wakes up late does no harm. Each step links a finished file
to its name, which fails if the name is taken.
"""

from __future__ import annotations

import glob
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import pyarrow.parquet as pq

from loomlog.archive.location import make_durable
from loomlog.errors import Busy, Corrupt, InvalidArgument, NotFound
from loomlog.spark.pipelines.outputs import UnitId, versioned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATA: Final = "data"
MANIFESTS: Final = "manifests"
FOLD_AT: Final = 100  # manifests, or a tenth of what the snapshot has: folding stays cheap
_FILES_MAX: Final = 2_000  # their names are recorded with the unit, in a register
_END: Final = "end\n"  # of a complete file
_LOOKS: Final = 20  # attempts to read a directory while other processes fold it


@dataclass(frozen=True, slots=True)
class ParquetOutput:
    """`parquet(path)`: a table at a path that all sites of the pipeline, and Spark, reach."""

    path: str

    def stage(self, frame: DataFrame, unit: UnitId) -> Any:
        files = write_files(frame, Path(unit.place(self.path)), unit)
        return {"files": [file["path"] for file in files], "rows": sum(f["rows"] for f in files)}

    def publish(self, unit: UnitId, staged: Any) -> None:
        publish_files(Path(unit.place(self.path)), unit.owner, unit.number, staged["files"])

    def last_unit(self, unit: UnitId) -> int:
        directory = Path(unit.place(self.path)) / MANIFESTS
        for _ in range(_LOOKS):
            with suppress(FileNotFoundError):  # it was folded while we looked
                return look(directory).units.get(unit.owner, 0)
        raise Busy(f"the manifests in {directory} change all the time: try again")

    def may_have(self, unit: UnitId) -> bool:
        return has_files_of(Path(unit.place(self.path)), unit)

    def describe(self) -> str:
        return f"parquet {self.path}"


def parquet(path: str | Path) -> ParquetOutput:
    """Return an output to a table of Parquet files, for `loomlog.spark.read_table`."""
    return ParquetOutput(str(path))


def read_table(spark: SparkSession, path: str | Path, version: int = 1) -> DataFrame:
    """Return all committed rows of a table of a pipeline."""
    files = table_files(path, version)
    if not files:
        raise NotFound(f"nothing is committed to the table {path} yet")
    return spark.read.parquet(*files)


def table_files(path: str | Path, version: int = 1) -> list[str]:
    """Return the committed files of a table, for any reader of Parquet."""
    table = Path(versioned(str(path), version)).absolute()
    if not table.is_dir():
        raise NotFound(f"there is no table at {table}")
    for _ in range(_LOOKS):
        try:
            found = look(table / MANIFESTS)
            files = [str(table / file) for file in found.files()]
        except FileNotFoundError:
            continue  # it was folded meanwhile
        if _snapshots(table / MANIFESTS)[-1:] == found.snapshots[-1:]:
            return files
    raise Corrupt(f"the manifests of {table} change all the time: try again")


def publish_files(table: Path, owner: str, number: int, files: list[str]) -> None:
    """Make the files of a unit part of the table, once."""
    directory = table / MANIFESTS
    directory.mkdir(parents=True, exist_ok=True)
    try:
        found = look(directory)
    except FileNotFoundError:  # folded concurrently, with or without this unit
        found = Manifests()
    if number > found.units.get(owner, 0):
        _put(directory, f"{owner}-{number:08d}.unit", _lines({}, files))
    if len(found.manifests) + 1 >= max(FOLD_AT, found.folded // 10):
        fold(directory)


def fold(directory: Path) -> None:
    """Fold everything into one snapshot, unless another process does it concurrently."""
    try:
        found = look(directory)
        header = {"units": found.units, "folded": found.folded + len(found.manifests)}
        name = f"{found.number + 1:08d}.snapshot"
        ours = _put(directory, name, _lines(header, found.files()))
    except FileNotFoundError:
        return
    # If ours is late, a newer one describes the directory, and may lack files that we saw.
    if ours and _snapshots(directory)[-1:] == [directory / name]:
        for path in (*found.manifests, *found.snapshots):
            path.unlink(missing_ok=True)


@dataclass(slots=True)
class Manifests:
    """The contents of a directory of manifests."""

    snapshots: list[Path] = field(default_factory=list)  # only the newest counts
    manifests: list[Path] = field(default_factory=list)  # that it does not have yet
    units: dict[str, int] = field(default_factory=dict)  # by owner: the last one of all
    folded: int = 0  # manifests that the snapshot has

    @property
    def number(self) -> int:
        return int(self.snapshots[-1].stem) if self.snapshots else 0

    def files(self) -> Iterator[str]:
        for path in (*self.snapshots[-1:], *self.manifests):
            yield from _files(path)


def look(directory: Path) -> Manifests:
    """Read a directory; raise FileNotFoundError if it is folded concurrently."""
    snapshots = _snapshots(directory)
    header: Any = _header(snapshots[-1]) if snapshots else {"units": {}, "folded": 0}
    found = Manifests(snapshots, units=dict(header["units"]), folded=header["folded"])
    for owner, number, path in sorted(map(_unit, directory.glob("*.unit"))):
        if number > found.units.get(owner, 0):
            found.manifests.append(path)
            found.units[owner] = number
    return found


def _snapshots(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.snapshot"))


def _unit(path: Path) -> tuple[str, int, Path]:
    owner, _, number = path.stem.rpartition("-")
    return owner, int(number), path


def _lines(header: dict[str, Any], files: Iterable[str]) -> Iterator[str]:
    yield json.dumps({"format": 1} | header)
    yield from files
    yield _END.rstrip()


def _header(path: Path) -> Any:
    with path.open() as file:
        return json.loads(file.readline())


def _files(path: Path) -> Iterator[str]:
    with path.open() as file:
        next(file)
        for line in file:
            if line == _END:
                return
            yield line.rstrip("\n")
    raise Corrupt(f"{path} is not complete")


def _put(directory: Path, name: str, lines: Iterator[str]) -> bool:
    """Link a complete file to its name; return False if the name is taken."""
    draft = directory / f".{name}.{uuid.uuid4().hex[:8]}"
    with draft.open("w") as file:
        file.writelines(line + "\n" for line in lines)
    make_durable(draft)
    try:
        os.link(draft, directory / name)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    make_durable(directory)
    return True


# ---- the files of a unit, under a name that nobody else has: also those of Delta tables


def has_files_of(table: Path, unit: UnitId) -> bool:
    """Return whether a pipeline of this name has written files below `table`."""
    return any((table / DATA).glob(f"{glob.escape(unit.pipeline)}-{'[0-9]' * 8}-*"))


class TableFile(TypedDict):
    """A file of the table; `path` is relative to it."""

    path: str
    bytes: int
    rows: int


def write_files(frame: DataFrame, table: Path, unit: UnitId) -> list[TableFile]:
    """Write the rows below `table`, durably."""
    # Not the deprecated 96-bit timestamps that Spark would write.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    place = Path(DATA) / f"{unit.pipeline}-{unit.number:08d}-{uuid.uuid4().hex[:12]}"
    frame.write.mode("error").parquet(str((table / place).absolute()))
    found = [_described(table, path) for path in sorted((table / place).glob("*.parquet"))]
    if len(found) > _FILES_MAX:
        raise InvalidArgument(
            f"a unit of pipeline {unit.pipeline!r} made {len(found)} files, {_FILES_MAX} is the "
            "most: end its function with .coalesce(N), or make its units smaller"
        )
    for file in found:
        make_durable(table / file["path"])
    make_durable(table / place)
    make_durable(table / DATA)
    return [file for file in found if file["rows"]]


def _described(table: Path, path: Path) -> TableFile:
    rows = pq.read_metadata(path).num_rows
    return {"path": str(path.relative_to(table)), "bytes": path.stat().st_size, "rows": rows}

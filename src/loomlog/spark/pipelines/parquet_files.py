"""Rows of a unit as Parquet files under a name nobody else has: what tables are staged as."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

import pyarrow.parquet as pq

from loomlog.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from loomlog.spark.pipelines.outputs import UnitId

DATA: Final = "data"
_FILES_MAX: Final = 2_000  # their names are recorded with the unit, in a register


class DataFile(TypedDict):
    """A file of the table; `path` is relative to it."""

    path: str
    bytes: int
    rows: int


def write_files(frame: DataFrame, table: Path, unit: UnitId) -> list[DataFile]:
    """Write the rows below `table` and see to it that they outlive a power loss."""
    # Not the 96-bit timestamps of old, which only Spark writes.
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


def make_durable(path: Path) -> None:
    """Force a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _described(table: Path, path: Path) -> DataFile:
    rows = pq.read_metadata(path).num_rows
    return {"path": str(path.relative_to(table)), "bytes": path.stat().st_size, "rows": rows}

"""A Delta table as output, through the `deltalake` package.

Spark writes the files; deltalake commits them. The commit records the unit as the newest
transaction of an application that is named after the pipeline and its life.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loomlog.errors import LoomError
from loomlog.spark.pipelines.outputs import UnitId
from loomlog.spark.pipelines.parquet_table import TableFile, has_files_of, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class DeltaOutput:
    """`delta(path)`: a Delta table at a path that Spark and all sites of the pipeline can reach."""

    path: str

    def stage(self, frame: DataFrame, unit: UnitId) -> Any:
        _deltalake()  # before anything is written
        return {"files": write_files(frame, Path(unit.place(self.path)), unit)}

    def publish(self, unit: UnitId, staged: Any) -> None:
        if staged["files"]:
            commit_files(Path(unit.place(self.path)), unit, staged["files"])

    def last_unit(self, unit: UnitId) -> int:
        deltalake, place = _deltalake(), str(Path(unit.place(self.path)).absolute())
        if not deltalake.DeltaTable.is_deltatable(place):
            return 0
        return deltalake.DeltaTable(place).transaction_version(unit.owner) or 0

    def may_have(self, unit: UnitId) -> bool:
        return has_files_of(Path(unit.place(self.path)), unit)

    def describe(self) -> str:
        return f"delta {self.path}"


def delta(path: str | Path) -> DeltaOutput:
    """Return an output to a Delta table; it needs the package deltalake."""
    return DeltaOutput(str(path))


def commit_files(table: Path, unit: UnitId, files: list[TableFile]) -> None:
    """Add the files in one transaction, unless this was done before."""
    import pyarrow.parquet as pq

    deltalake = _deltalake()
    schema = pq.read_schema(table / files[0]["path"]).remove_metadata()
    place = str(table.absolute())
    found = deltalake.DeltaTable.create(place, schema, mode="ignore")
    # deltalake accepts an older transaction after a newer one, so check first. If two processes
    # check at once, both add the same files by the same names, which a Delta table has once.
    done = found.transaction_version(unit.owner)
    if done is not None and done >= unit.number:
        return
    mark = deltalake.Transaction(unit.owner, unit.number, int(time.time() * 1000))
    found.create_write_transaction(
        [_add(table, file) for file in files],
        mode="append",
        schema=schema,
        commit_properties=deltalake.CommitProperties(app_transactions=[mark]),
    )


def _add(table: Path, file: TableFile) -> Any:
    from deltalake.transaction import AddAction

    changed_ms = int((table / file["path"]).stat().st_mtime * 1000)
    stats = f'{{"numRecords": {file["rows"]}}}'
    return AddAction(file["path"], file["bytes"], {}, changed_ms, True, stats)


def _deltalake() -> Any:
    try:
        import deltalake
    except ImportError:
        raise LoomError("the package deltalake is missing: pip install 'loomlog[delta]'") from None
    return deltalake

"""The outputs as definitions name them: `output=parquet("counts.table")`."""

from __future__ import annotations

from pathlib import Path

from loomlog.spark.pipelines.delta_table import DeltaOutput
from loomlog.spark.pipelines.log_output import LogOutput
from loomlog.spark.pipelines.parquet_table import ParquetOutput


def log(name: str, streams: int = 1) -> LogOutput:
    """Another log of the cluster; it is made, with so many streams, if it is not there."""
    return LogOutput(name, streams)


def parquet(path: str | Path) -> ParquetOutput:
    """A table of Parquet files, for `loomlog.spark.read_table`."""
    return ParquetOutput(str(path))


def delta(path: str | Path) -> DeltaOutput:
    """A Delta table; needs the package deltalake."""
    return DeltaOutput(str(path))

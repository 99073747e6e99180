"""A log becomes a Delta table, record by record.

    python examples/pipelines/sample_data.py access
    loom pipeline run examples/pipelines/to_delta.py --once

Needs `pip install 'loomlog[spark,delta]'`. Any reader of Delta tables can read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loomlog.spark import delta, pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = "access.delta"


@pipeline(
    "access-to-delta",
    source="access",
    decode="json",
    schema="time timestamp, path string, status int, bytes long",
    output=delta(TABLE),
)
def access_to_delta(rows: DataFrame) -> DataFrame:
    return rows.select("position", "time", "path", "status", "bytes")

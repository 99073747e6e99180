"""A web access log becomes a table: requests and bytes per minute, path and status.

    python examples/pipelines/sample_data.py access
    loom pipeline run examples/pipelines/access_counts.py --once

Each unit of work adds its own sums, so a minute may be in several rows: readers add them up, as
`show` does. There is no state to keep, and any machine may go on with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from loomlog.spark import parquet, pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = "access-counts.table"


@pipeline(
    "access-counts",
    source="access",
    decode="json",
    schema="time timestamp, path string, status int, bytes long",
    output=parquet(TABLE),
)
def access_counts(rows: DataFrame) -> DataFrame:
    minute = sf.date_trunc("minute", "time").alias("minute")
    return rows.groupBy(minute, "path", "status").agg(
        sf.count("*").alias("requests"), sf.sum("bytes").alias("bytes")
    )


def show(table: DataFrame) -> DataFrame:
    """Print what a reader of the table asks for."""
    sums = table.groupBy("minute", "path").agg(
        sf.sum("requests").alias("requests"),
        sf.sum(sf.when(sf.col("status") >= 500, sf.col("requests"))).alias("failed"),
    )
    return sums.orderBy("minute", "path")

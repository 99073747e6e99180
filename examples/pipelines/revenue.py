"""Impressions of advertisements joined with the clicks that follow within ten minutes.

    python examples/pipelines/sample_data.py impressions
    loom pipeline run examples/pipelines/revenue.py --once

A click may come before its impression is processed, or after: Spark keeps both sides for as long as
the watermarks say, in the checkpoint. All sites of this pipeline need that directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from loomlog.spark import parquet, pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = "revenue.table"


@pipeline(
    "revenue",
    sources={"impressions": "impressions", "clicks": "clicks"},
    decode="json",
    schema={
        "impressions": "impression string, campaign string, price double, shown timestamp",
        "clicks": "clicked string, at timestamp",
    },
    watermark={"impressions": ("shown", "10 minutes"), "clicks": ("at", "10 minutes")},
    stateful=True,
    checkpoint="revenue.checkpoint",
    output=parquet(TABLE),
)
def revenue(impressions: DataFrame, clicks: DataFrame) -> DataFrame:
    in_time = sf.expr("clicked = impression AND at >= shown AND at <= shown + INTERVAL 10 MINUTES")
    joined = impressions.join(clicks, in_time)
    return joined.select("campaign", "impression", "price", "shown", "at")

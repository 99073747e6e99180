"""A package that Spark finds by itself: it looks for data sources in top-level modules named
pyspark_*."""

from loomlog.spark.source import LoomlogSource as DefaultSource

__all__ = ["DefaultSource"]

"""Where Spark looks for data sources by itself: top-level modules named pyspark_*."""

from loomlog.spark.source import LoomlogSource as DefaultSource

__all__ = ["DefaultSource"]

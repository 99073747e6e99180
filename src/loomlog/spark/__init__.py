"""loomlog in Spark: `spark.read.format("loomlog")` and `spark.readStream.format("loomlog")`.

Spark finds the source by itself if both are installed (`pip install loomlog[spark]`); `register` is
for sessions that do not search for it. This module loads without PySpark and says what is missing
when it is used.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from loomlog.spark.java import require_java
from loomlog.spark.offsets import lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from loomlog.spark.pipelines.definition import Pipeline as Pipeline
    from loomlog.spark.pipelines.definition import pipeline as pipeline
    from loomlog.spark.pipelines.delta_table import delta as delta
    from loomlog.spark.pipelines.log_output import log as log
    from loomlog.spark.pipelines.parquet_table import parquet as parquet
    from loomlog.spark.pipelines.parquet_table import read_table as read_table
    from loomlog.spark.pipelines.parquet_table import table_files as table_files
    from loomlog.spark.pipelines.runner import Runner as Runner

_PIPELINES = "loomlog.spark.pipelines."
_HOMES = {
    "Pipeline": "definition",
    "Runner": "runner",
    "delta": "delta_table",
    "log": "log_output",
    "parquet": "parquet_table",
    "pipeline": "definition",
    "read_table": "parquet_table",
    "table_files": "parquet_table",
}

__all__ = [
    "Pipeline",
    "Runner",
    "delta",
    "lag",
    "log",
    "parquet",
    "pipeline",
    "read_table",
    "register",
    "require_java",
    "session",
    "table_files",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'loomlog.spark' has no attribute {name!r}")
    _require_pyspark()
    found = getattr(importlib.import_module(_PIPELINES + _HOMES[name]), name)
    globals()[name] = found
    return found


def register(spark: SparkSession) -> None:
    """Make `format("loomlog")` known to this session."""
    _require_pyspark()
    from loomlog.spark.source import LoomlogSource

    spark.dataSource.register(LoomlogSource)


def session(
    app: str = "loomlog", master: str = "local[*,4]", config: dict[str, str] | None = None
) -> SparkSession:
    """Return a Spark session with this source; check first that a Java can run it."""
    _require_pyspark()
    require_java()
    from pyspark.sql import SparkSession

    # Spark starts `python3`, which need not be the one that has loomlog.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in (config or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _require_pyspark() -> None:
    try:
        import pyspark.sql.datasource  # noqa: F401
    except ImportError as error:
        raise ImportError(f"PySpark is missing ({error}): pip install 'loomlog[spark]'") from None

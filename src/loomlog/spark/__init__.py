"""loomlog in Spark: `spark.read.format("loomlog")` and `spark.readStream.format("loomlog")`.

Installed beside PySpark (`pip install loomlog[spark]`) the source is found by itself; `register` is
for sessions that look nowhere. This module loads without PySpark and says what is missing when it
is used.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from loomlog.spark.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "require_java", "session"]


def register(spark: SparkSession) -> None:
    """Make `format("loomlog")` known to this session."""
    _require_pyspark()
    from loomlog.spark.source import LoomlogSource

    spark.dataSource.register(LoomlogSource)


def session(
    app: str = "loomlog", master: str = "local[*,4]", config: dict[str, str] | None = None
) -> SparkSession:
    """A Spark session with this source, after a check that there is a Java that can run it."""
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

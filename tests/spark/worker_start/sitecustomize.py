"""Python's own hook at start-up, for the Python processes that Spark starts.

Spark has each of them compile PySpark from a zip, although it is installed, and each worker that a
daemon forks import loomlog again: together a third of the CPU of these tests.
"""

from __future__ import annotations

import sys

sys.path[:] = [path for path in sys.path if not path.endswith("pyspark.zip")]
if "pyspark.daemon" in sys.orig_argv:
    import loomlog.spark.source  # noqa: F401

"""What Spark's checkpoint says of a streaming query: its id, and how far a micro-batch reads.

Read through Hadoop's file systems, as Spark itself does: it may be on storage of any kind.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loomlog.errors import Corrupt
from loomlog.types import Glsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Checkpoint:
    """The checkpoint of a stateful pipeline, one directory for each generation of its state."""

    def __init__(self, spark: SparkSession, directory: str, generation: int) -> None:
        # Java may have begun in another directory.
        place = directory if "://" in directory else str(Path(directory).absolute())
        self.path = f"{place.rstrip('/')}/{generation}"
        self._jvm: Any = spark.sparkContext._jvm
        self._configuration = spark.sparkContext._jsc.hadoopConfiguration()

    def query(self) -> str:
        """The id of the query whose it is; empty if there is none yet."""
        text = self._read("metadata")
        return "" if text is None else str(json.loads(text)["id"])

    def offsets(self, batch: int) -> dict[str, Glsn] | None:
        """By log: the last position of a micro-batch; None if the checkpoint does not have it."""
        text = self._read(f"offsets/{batch}")
        if text is None:
            return None
        version, _, *lines = text.splitlines()
        if version != "v1":
            raise Corrupt(f"{self.path}: this Spark writes offsets of a form not known: {version}")
        found = [json.loads(line) for line in lines if line != "-"]
        return {offset["log"]: offset["position"] for offset in found}

    def _read(self, name: str) -> str | None:
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{name}")
        files = path.getFileSystem(self._configuration)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

"""The rig of tests of the source: a log, a way to fill it, and ways to read it with Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import loomlog


@dataclass
class SparkRig:
    spark: SparkSession
    cluster: loomlog.BlockingCluster
    address: str
    log: loomlog.BlockingLog

    @property
    def streams(self) -> list[int]:
        return [stream.id for stream in self.log.describe().streams]

    def fill(self, count: int, batch: int = 10, first: int = 1) -> None:
        """Append the values b"1", b"2", … in batches for each stream in turn; each is its position
        if `first` is the next one."""
        streams = self.streams
        for turn, begin in enumerate(range(first, first + count, batch)):
            numbers = range(begin, min(begin + batch, first + count))
            self.log.append_many(
                [b"%d" % n for n in numbers],
                [b"key-%d" % (n % 7) if n % 2 else None for n in numbers],
                stream=streams[turn % len(streams)],
            )

    def frame(self, **options: Any) -> DataFrame:
        frame: DataFrame = self._with(self.spark.read, options).load()
        return frame

    def stream(self, **options: Any) -> DataFrame:
        frame: DataFrame = self._with(self.spark.readStream, options).load()
        return frame

    def positions(self, **options: Any) -> list[int]:
        return sorted(row.position for row in self.frame(**options).select("position").collect())

    def values(self, frame: DataFrame) -> list[int]:
        return sorted(int(row.value) for row in frame.select("value").collect())

    def run_available(self, output: Path, **options: Any) -> Any:
        """Run a streaming query of what there is now into Parquet; return it when it has ended."""
        query = (
            self.stream(**options)
            .writeStream.format("parquet")
            .option("path", str(output / "rows"))
            .option("checkpointLocation", str(output / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        return query

    def written(self, output: Path) -> list[int]:
        return self.values(self.spark.read.parquet(str(output / "rows")))

    def _with(self, reader: Any, options: dict[str, Any]) -> Any:
        given = {"cluster": self.address, "log": self.log.name, **options}
        return reader.format("loomlog").options(**given)

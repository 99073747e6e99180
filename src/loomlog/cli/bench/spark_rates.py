"""Measures how fast Spark reads and copies a log, and the age of records on arrival.

A private cluster, Spark on `local[2,4]`, rows of 144 bytes. The log is compared with Parquet files
of the same rows, by the same query in the same session: ratios outlive a machine, rates do not.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median_high
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any, Final

from loomlog.cli.bench.measurements import at_once, percentile_ms
from loomlog.cli.bench.private_cluster import Progress, Target, private_cluster
from loomlog.cli.bench.reports import number_table, say
from loomlog.cli.console.output import console
from loomlog.cli.processes.spark_session import LOOPBACK, QUIET
from loomlog.errors import Timeout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from loomlog import Cluster, Log

NODES: Final = 3
STREAMS: Final = 2
RECORD_BYTES: Final = 144
FILL_ROWS: Final = 4096  # of one append
FILLS_IN_FLIGHT: Final = 16
REPEATS: Final = 3  # of each query, in turn; the median counts
AGE_ROWS_PER_S: Final = 10_000
AGE_PIECES_PER_S: Final = 50
AGE_WARM_UP_S_MAX: Final = 10.0  # the first micro-batches of a query compile and start workers
ARRIVAL_S: Final = 60.0
SCENARIOS: Final = 6

_STAMP: Final = struct.Struct("<q")


@dataclass(slots=True)
class SparkReport:
    """Rates of queries and copies, and the age of records at the end of a pipeline."""

    rows: int
    log_s: list[float] = field(default_factory=list)  # of each group-by
    parquet_s: list[float] = field(default_factory=list)
    copy_s: float = 0.0  # log to log, one big micro-batch
    age_p50_ms: float | None = None
    age_p95_ms: float | None = None
    age_max_ms: float | None = None
    age_rows: int = 0

    @property
    def log_rows_per_s(self) -> float:
        return self.rows / median_high(self.log_s)

    @property
    def parquet_rows_per_s(self) -> float:
        return self.rows / median_high(self.parquet_s)

    @property
    def copy_rows_per_s(self) -> float:
        return self.rows / self.copy_s

    @property
    def ratio(self) -> float:
        return self.log_rows_per_s / self.parquet_rows_per_s

    def fields(self) -> dict[str, Any]:
        rates = {
            "log_rows_per_s": round(self.log_rows_per_s),
            "parquet_rows_per_s": round(self.parquet_rows_per_s),
            "log_to_parquet": round(self.ratio, 3),
            "copy_rows_per_s": round(self.copy_rows_per_s),
        }
        return asdict(self) | rates

    def print(self) -> None:
        say(
            f"{self.rows:,} rows of {RECORD_BYTES} B, {STREAMS} streams, {NODES} replicas, "
            "local[2,4]; all on this machine"
        )
        table = number_table("Spark", "rows/s")
        table.add_row("group-by over the log", f"{self.log_rows_per_s:,.0f}")
        table.add_row("group-by over Parquet", f"{self.parquet_rows_per_s:,.0f}")
        table.add_row("log to log, exactly once", f"{self.copy_rows_per_s:,.0f}")
        console().print(table)
        say(f"log / Parquet: {self.ratio:.2f}")
        ages = (self.age_p50_ms, self.age_p95_ms, self.age_max_ms)
        p50, p95, most = ("-" if ms is None else f"{ms / 1e3:.2f} s" for ms in ages)
        say(
            f"age of a record when a reader of the second log has it, {AGE_ROWS_PER_S:,} "
            f"rows/s: p50 {p50}, p95 {p95}, at most {most}"
        )


async def measure(target: Target, rows: int, seconds: float, progress: Progress) -> SparkReport:
    """Measure; everything started or created for it is removed afterwards."""
    from loomlog import spark as spark_source

    async with private_cluster(target, NODES) as private:
        progress("Spark starts", 15)
        config = QUIET | LOOPBACK | {"spark.sql.shuffle.partitions": "2"}
        spark = await asyncio.to_thread(
            lambda: spark_source.session("loom bench", "local[2,4]", config)
        )
        try:
            address = private.processes.address
            place = _SparkCluster(spark, private.client, address, private.directory)
            return await _measure(place, rows, seconds, progress)
        finally:
            await asyncio.to_thread(spark.stop)


@dataclass(frozen=True, slots=True)
class _SparkCluster:
    spark: SparkSession
    cluster: Cluster
    address: str
    directory: Path

    def read(self, log: str) -> DataFrame:
        return self.spark.read.format("loomlog").options(cluster=self.address, log=log).load()


async def _measure(
    place: _SparkCluster, rows: int, seconds: float, progress: Progress
) -> SparkReport:
    report = SparkReport(rows)
    log = await place.cluster.create_log("bench-rows", streams=STREAMS, replicas=NODES)
    progress(f"filling with {rows:,} rows", rows / 300_000)
    await _fill(log, rows)
    parquet = str(place.directory / "rows.parquet")
    progress("the same rows as Parquet", rows / 200_000)
    await asyncio.to_thread(lambda: place.read(log.name).write.parquet(parquet))
    progress("group-by, log and Parquet in turn", 2 * REPEATS * rows / 1_000_000)
    await asyncio.to_thread(_group_bys, place, log.name, parquet, report)
    progress("log to log", rows / 300_000)
    await place.cluster.create_log("bench-copy", streams=STREAMS, replicas=NODES)
    report.copy_s = await asyncio.to_thread(_copy, place, log.name, "bench-copy")
    assert await place.cluster.log("bench-copy").tail() == rows
    progress(f"record age at {AGE_ROWS_PER_S:,} rows/s", 2 * seconds)
    await _ages(place, seconds, report)
    return report


async def _fill(log: Log, rows: int) -> None:
    """Append distinct rows, because Parquet would compress equal ones."""

    async def append(begin: int) -> None:
        content = os.urandom(min(FILL_ROWS, rows - begin) * RECORD_BYTES)
        await log.append_many(
            content[at : at + RECORD_BYTES] for at in range(0, len(content), RECORD_BYTES)
        )

    await at_once(FILLS_IN_FLIGHT, range(0, rows, FILL_ROWS), append)


# ---- a table


def _group_bys(place: _SparkCluster, log: str, parquet: str, report: SparkReport) -> None:
    sources = {
        "log": lambda: place.read(log),
        "parquet": lambda: place.spark.read.parquet(parquet),
    }
    for source in sources.values():  # the first run compiles, starts workers, fills caches
        _group_by(source, report.rows)
    for _ in range(REPEATS):
        report.log_s.append(_group_by(sources["log"], report.rows))
        report.parquet_s.append(_group_by(sources["parquet"], report.rows))


def _group_by(source: Callable[[], DataFrame], rows: int) -> float:
    """Return the seconds of a query that reads every row's value."""
    from pyspark.sql import functions as f

    begun = perf_counter()
    grouped = source().groupBy(f.substring("value", 1, 1).alias("first"))
    found = grouped.agg(f.count("*").alias("rows"), f.sum(f.length("value"))).collect()
    took_s = perf_counter() - begun
    assert sum(row["rows"] for row in found) == rows
    return took_s


# ---- a stream


def _copy(place: _SparkCluster, source: str, target: str) -> float:
    begun = perf_counter()
    query = _stream(place, source, target, trigger=None)
    query.awaitTermination()
    return perf_counter() - begun


def _stream(place: _SparkCluster, source: str, target: str, *, trigger: str | None) -> Any:
    frame = (
        place.spark.readStream.format("loomlog")
        .options(cluster=place.address, log=source, startingPosition="earliest")
        .load()
    )
    writing = (
        frame.select("value")
        .writeStream.format("loomlog")
        .options(cluster=place.address, log=target)
        .option("checkpointLocation", str(place.directory / f"{target}.checkpoint"))
    )
    if trigger is None:
        return writing.trigger(availableNow=True).start()
    return writing.trigger(processingTime=trigger).start()


async def _ages(place: _SparkCluster, seconds: float, report: SparkReport) -> None:
    source = await place.cluster.create_log("bench-fresh", streams=STREAMS, replicas=NODES)
    target = await place.cluster.create_log("bench-arrived", streams=STREAMS, replicas=NODES)
    names = source.name, target.name
    query = await asyncio.to_thread(lambda: _stream(place, *names, trigger="0 seconds"))
    ages: list[float] = []
    warm_up_s = min(AGE_WARM_UP_S_MAX, 2 * seconds)
    wanted = int(AGE_ROWS_PER_S * (warm_up_s + seconds))
    try:
        async with (
            asyncio.timeout(warm_up_s + seconds + ARRIVAL_S),
            asyncio.TaskGroup() as all_,
        ):
            all_.create_task(_write_steadily(source, wanted))
            all_.create_task(_arrivals(target, wanted, ages))
    except TimeoutError:
        raise Timeout(f"the query delivered {len(ages):,} of {wanted:,} rows in time") from None
    finally:
        await asyncio.to_thread(query.stop)
    ordered = sorted(ages[int(AGE_ROWS_PER_S * warm_up_s) :])
    report.age_rows = len(ordered)
    report.age_p50_ms, report.age_p95_ms = percentile_ms(ordered, 0.5), percentile_ms(ordered, 0.95)
    report.age_max_ms = ordered[-1] * 1e3


async def _write_steadily(log: Log, rows: int) -> None:
    """Append at a steady rate, acknowledged or not; each row holds the time of writing."""
    per_piece = AGE_ROWS_PER_S // AGE_PIECES_PER_S
    begun = perf_counter()
    rest = bytes(RECORD_BYTES - _STAMP.size)
    async with asyncio.TaskGroup() as group:
        for piece in range(rows // per_piece):
            await asyncio.sleep(begun + piece / AGE_PIECES_PER_S - perf_counter())
            value = _STAMP.pack(time_ns()) + rest
            group.create_task(log.append_many([value] * per_piece))


async def _arrivals(log: Log, rows: int, ages: list[float]) -> None:
    async for batch in log.subscribe_arrow(stop=rows):
        now = time_ns()
        stamps = (_STAMP.unpack_from(value.as_buffer())[0] for value in batch.column("value"))
        ages.extend((now - stamp) / 1e9 for stamp in stamps)

"""One read of several logs: each position of each log in exactly one micro-batch."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from spark_rig import SparkRig

from loomlog import BlockingCluster
from loomlog.errors import DataLoss, NotFound, Trimmed
from loomlog.spark import lag
from loomlog.spark.options import read_options
from loomlog.spark.readers import BatchReader, MicroBatchReader
from loomlog.spark.source import LoomlogSource


class Family:
    """Logs whose names begin alike, and readers of them without Spark."""

    def __init__(self, cluster: BlockingCluster, address: str) -> None:
        self.cluster = cluster
        self.address = address
        self.prefix = f"family-{uuid.uuid4().hex[:8]}."
        self.readers: list[MicroBatchReader] = []

    @property
    def pattern(self) -> dict[str, str]:
        return {"cluster": self.address, "logPattern": re.escape(self.prefix) + ".*"}

    def name(self, member: str) -> str:
        return self.prefix + member

    def names(self, members: str) -> str:
        return ",".join(map(self.name, members.split(",")))

    def add(self, member: str, count: int) -> None:
        log = self.cluster.create_log(self.name(member), streams=1, replicas=1, exist_ok=True)
        if count:
            log.append_many([b"%d" % n for n in range(count)])

    def reader(self, **options: str) -> MicroBatchReader:
        given = {"cluster": self.address, "startingPosition": "earliest", **options}
        if "logs" not in given and "log" not in given:
            given |= self.pattern
        source = LoomlogSource(given)
        self.readers.append(MicroBatchReader(read_options(given, streaming=True), source.schema()))
        return self.readers[-1]

    def offset(self, **positions: int) -> dict[str, Any]:
        return {"logs": {self.name(member): at for member, at in positions.items()}}

    def rows(self, reader: Any, parts: Any) -> list[tuple[str, int]]:
        batches = [batch for part in parts for batch in reader.read(part)]
        return sorted(
            (row["log"].removeprefix(self.prefix), row["position"])
            for batch in batches
            for row in batch.to_pylist()
        )


@pytest.fixture
def family(cluster: BlockingCluster, cluster_address: str) -> Iterator[Family]:
    made = Family(cluster, cluster_address)
    yield made
    for reader in made.readers:
        reader.stop()
    for info in cluster.logs():
        if info.name.startswith(made.prefix):
            cluster.delete_log(info.name)


def rows_of(**counts: int) -> list[tuple[str, int]]:
    return [(log, at) for log, count in sorted(counts.items()) for at in range(1, count + 1)]


def step(reader: MicroBatchReader, offset: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(offset, reader.getDefaultReadLimit())


def test_a_batch_reads_the_logs_that_are_named_or_match(family: Family) -> None:
    for member, count in {"a": 5, "b": 3, "c": 2, "empty": 0}.items():
        family.add(member, count)
    for given, expected in (
        ({"logs": family.names("a,c"), "cluster": family.address}, rows_of(a=5, c=2)),
        (family.pattern, rows_of(a=5, b=3, c=2)),
        (family.pattern | {"logPattern": "nothing.*"}, []),
        (family.pattern | {"includeHeaders": "true"}, rows_of(a=5, b=3, c=2)),
    ):
        schema = LoomlogSource(given).schema()
        reader = BatchReader(read_options(given, streaming=False), schema)
        assert schema.names[0] == "log"
        assert family.rows(reader, reader.partitions()) == expected


def test_a_new_log_is_named_by_one_micro_batch_and_read_by_the_next(family: Family) -> None:
    family.add("a", 5)
    reader = family.reader()
    start = reader.initialOffset()
    assert start == family.offset(a=0)
    family.add("b", 4)
    named = step(reader, start)
    assert named == family.offset(a=5, b=0)
    assert family.rows(reader, reader.partitions(start, named)) == rows_of(a=5)
    family.add("b", 1)
    read = step(reader, named)
    assert read == family.offset(a=5, b=5)
    assert family.rows(reader, reader.partitions(named, read)) == rows_of(b=5)
    assert step(reader, read) == read
    # A micro-batch that Spark repeats has the same rows, whatever exists now.
    family.add("a", 9)
    family.add("c", 9)
    assert family.rows(reader, reader.partitions(start, named)) == rows_of(a=5)


def test_a_new_log_may_be_trimmed_before_it_is_named_but_not_after(family: Family) -> None:
    family.add("b", 6)
    log = family.cluster.log(family.name("b"))
    log.trim(2)
    reader = family.reader()
    named = step(reader, {"logs": {}})
    assert named == family.offset(b=2)
    log.trim(4)
    read = step(reader, named)
    with pytest.raises(Trimmed, match="positions 3 to 4 were trimmed"):
        reader.partitions(named, read)


def test_available_now_leaves_logs_that_came_since_to_the_next_run(family: Family) -> None:
    family.add("a", 5)
    reader = family.reader()
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    family.add("a", 1)
    family.add("b", 1)
    assert step(reader, start) == family.offset(a=5)
    assert reader.reportLatestOffset() == family.offset(a=6, b=1)


def test_a_limit_is_shared_among_the_logs(family: Family) -> None:
    for member, count in {"a": 100, "b": 10, "c": 100}.items():
        family.add(member, count)
    reader = family.reader(maxRecordsPerTrigger="90")
    assert step(reader, reader.initialOffset()) == family.offset(a=40, b=10, c=40)
    reader = family.reader(maxBytesPerTrigger="30")  # values of one digit, then of two
    assert step(reader, reader.initialOffset()) == family.offset(a=10, b=10, c=10)
    reader = family.reader(minRecordsPerTrigger="211")
    assert step(reader, reader.initialOffset()) == family.offset(a=0, b=0, c=0)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == family.offset(a=100, b=10, c=100)


def test_a_deleted_log_is_data_loss_unless_that_is_allowed(family: Family) -> None:
    family.add("a", 5)
    family.add("b", 5)
    reader = family.reader()
    start = reader.initialOffset()
    end = step(reader, start)
    family.cluster.delete_log(family.name("b"))
    with pytest.raises(DataLoss, match=r"b was deleted.*failOnDataLoss=false"):
        step(reader, end)
    with pytest.raises(NotFound):
        family.reader().partitions(start, end)
    loose = family.reader(failOnDataLoss="false")
    assert family.rows(loose, loose.partitions(start, end)) == rows_of(a=5)
    assert step(loose, end) == family.offset(a=5)


def test_a_checkpoint_of_one_log_serves_several_and_the_other_way_round(family: Family) -> None:
    family.add("a", 5)
    family.add("b", 5)
    one = {"log": family.name("a"), "position": 3}
    several = family.reader(logs=family.names("a,b"))
    named = step(several, one)
    assert named == family.offset(a=5, b=0)
    assert family.rows(several, several.partitions(one, named)) == [("a", 4), ("a", 5)]
    single = family.reader(log=family.name("a"))
    assert step(single, family.offset(a=4, b=2)) == {"log": family.name("a"), "position": 5}


def test_a_query_of_a_pattern_reads_all_logs_once_across_restarts(
    rig: SparkRig, family: Family, tmp_path: Path
) -> None:
    def run(**limits: Any) -> Any:
        query = (
            rig.spark.readStream.format("loomlog")
            .options(**family.pattern, startingOffsets="earliest", **limits)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        return query

    family.add("a", 50)
    run(maxRecordsPerTrigger=40)
    family.add("a", 10)
    family.add("b", 20)
    query = run(minRecordsPerTrigger=1000)
    assert lag(query.lastProgress) == {family.name("a"): 0, family.name("b"): 0}
    found = rig.spark.read.parquet(str(tmp_path / "rows")).select("log", "position").collect()
    assert sorted((r.log.removeprefix(family.prefix), r.position) for r in found) == rows_of(
        a=60, b=20
    )

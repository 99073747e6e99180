"""A pipeline folds what it records about units: neither its registers nor the memory of a commit
grow with the number of units. No Spark is needed to see that."""

from __future__ import annotations

import tracemalloc
import uuid
from pathlib import Path

import pyarrow as pa

import loomlog
from loomlog.client.publish.writer import writers_prefix
from loomlog.spark import table_files
from loomlog.spark.pipelines import units
from loomlog.spark.pipelines.log_output import LogOutput
from loomlog.spark.pipelines.outputs import UnitId
from loomlog.spark.pipelines.parquet_table import FOLD_AT, MANIFESTS, fold, publish_files
from loomlog.spark.pipelines.store import ProgressStore, register_name
from loomlog.spark.pipelines.units import Progress, UnitRange

UNITS = 300
REGISTER_BYTES_MAX = 2_000
MEMORY_MAX = 1 << 20


def test_registers_of_a_pipeline_stay_small(
    cluster: loomlog.BlockingCluster, cluster_address: str
) -> None:
    name = f"p-{uuid.uuid4().hex[:8]}"
    output = LogOutput(f"{name}.out")
    store = ProgressStore(cluster, name)
    lease = cluster.acquire_lease(register_name(name), "here", 60.0)
    assert lease is not None
    store.fence(lease)
    store.create(Progress({"sources": {"rows": "events"}}, {"events": 0}))
    log = cluster.create_log(output.name, streams=1, replicas=1)
    log.writer(name)  # before its first rows are staged
    sizes = []
    for number in range(1, UNITS + 1):
        rows = log.stage(pa.record_batch({"value": [b"%d" % number]}))
        staged = {"output": {"rows": 1, "staged": rows.to_json()}}
        unit = {"events": UnitRange(number, number)}
        store.change(lambda now, unit=unit: units.created(now, unit))  # type: ignore[misc]
        store.change(lambda now, n=number: units.running(now, n))  # type: ignore[misc]
        store.change(lambda now, n=number, s=staged: units.decided(now, n, s))  # type: ignore[misc]
        output.publish(UnitId(cluster_address, name, number, 1), staged["output"])
        store.change(lambda now, n=number: units.committed(now, n, 1.0))  # type: ignore[misc]
        sizes.append(sum(register_sizes(cluster, name, output.name)))
    assert store.load().counters.units == UNITS
    assert [int(entry.value) for entry in log.subscribe(1, UNITS)] == list(range(1, UNITS + 1))
    assert max(sizes) < REGISTER_BYTES_MAX
    assert max(sizes) - sizes[0] < 50  # longer numbers
    cluster.delete_log(output.name)


def register_sizes(cluster: loomlog.BlockingCluster, pipeline: str, output: str) -> list[int]:
    """Return the sizes of the registers for its progress and for the writer of its output."""
    found = cluster.registers(register_name(pipeline)) | cluster.registers(writers_prefix(output))
    assert len(found) == 2
    return [len(register.value) for register in found.values()]


def test_a_commit_to_a_long_table_takes_little_memory(tmp_path: Path) -> None:
    files = 200_000
    publish_files(tmp_path, "p", 1, [f"data/unit-1/part-{n:08d}.parquet" for n in range(files)])
    fold(tmp_path / MANIFESTS)
    tracemalloc.start()
    try:
        for number in range(2, FOLD_AT + 3):  # the last of them folds all of it again
            publish_files(tmp_path, "p", number, [f"data/{number}"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_MAX
    left = sorted(path.name for path in (tmp_path / MANIFESTS).iterdir())
    assert left[0] == "00000002.snapshot"
    assert len(left) < FOLD_AT
    assert len(set(table_files(tmp_path))) == files + FOLD_AT + 1

"""The program of `make demo`: a cluster of real processes on this machine, from start to stop.

Starts `loom up` on free ports in a temporary directory, appends from several writers at once,
reads everything back in order from two readers, checks it, shows `loom status`; then runs the
pipeline examples/pipelines/access_counts.py, which makes a table of a web access log, and stops.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import pyarrow.dataset as ds
from rich.console import Console
from rich.table import Table

import loomlog
from loomlog.spark import table_files
from loomlog.spark.java import require_java

LOOM = [sys.executable, "-m", "loomlog.cli.loom"]
PIPELINES = Path(__file__).parent / "pipelines"
WRITERS = 8
RECORDS_PER_WRITER = 2_500

console = Console(highlight=False)


@contextmanager
def cluster_of_processes() -> Iterator[str]:
    """The address of a cluster that runs for as long as the block does."""
    with tempfile.TemporaryDirectory(prefix="loom-demo-") as directory:
        command = [*LOOM, "up", "--nodes", "3", "--port", "0", "--data", directory, "--json"]
        command.append("--no-console")
        up = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert up.stdout is not None
            line = up.stdout.readline()
            if not line:
                sys.exit("the cluster did not start; the reason is above")
            ready = json.loads(line)
            servers = ", ".join(f"{name} (pid {pid})" for name, pid in ready["pids"].items())
            console.print(f"[green]up[/]        {servers}")
            yield ready["mr"]
        finally:
            up.terminate()
            up.wait()


async def write(log: loomlog.Log, writer: int) -> list[loomlog.Position]:
    """One writer: its appends are all under way at once."""
    values = [f"writer {writer}, record {n}".encode() for n in range(RECORDS_PER_WRITER)]
    return await asyncio.gather(*(log.append(value) for value in values))


async def read(log: loomlog.Log, last: int) -> list[loomlog.Entry]:
    """One reader: everything, in order."""
    return [entry async for entry in log.subscribe(start=1, stop=last)]


async def tour(address: str) -> None:
    async with await loomlog.connect(address) as cluster:
        log = await cluster.create_log("demo", streams=2, replicas=3)
        console.print("[green]created[/]   log demo: 2 streams, 3 replicas of each, fsync on")

        started = perf_counter()
        positions = await asyncio.gather(*(write(log, n) for n in range(WRITERS)))
        seconds = perf_counter() - started
        count = sum(map(len, positions))
        console.print(
            f"[green]appended[/]  {count:,} records of {WRITERS} writers in {seconds:.2f} s, "
            "each on three disks' files before it was acknowledged"
        )

        last = await log.tail()
        one, other = await asyncio.gather(read(log, last), read(log, last))
        check(positions, one, other)
        console.print(
            f"[green]read[/]      {len(one):,} records twice: both readers saw the same sequence, "
            f"positions 1 to {last:,} without a hole, every record where it was acknowledged"
        )


def check(
    positions: list[list[loomlog.Position]],
    one: list[loomlog.Entry],
    other: list[loomlog.Entry],
) -> None:
    """The promises, on what really came back."""
    assert one == other, "two readers saw different sequences"
    assert [entry.position for entry in one] == list(range(1, len(one) + 1)), "a hole"
    found = {entry.position: entry.value for entry in one}
    for writer, acknowledged in enumerate(positions):
        for n, at in enumerate(acknowledged):
            assert found.pop(at.position) == f"writer {writer}, record {n}".encode()
    assert not found, "records nobody wrote"


def run_pipeline(address: str) -> None:
    """A web access log becomes a table of requests per minute, each counted exactly once."""
    with tempfile.TemporaryDirectory(prefix="loom-demo-table-") as directory:
        environment = {**os.environ, "LOOM_CLUSTER": address}

        def call(*command: str | Path) -> None:
            subprocess.run(command, check=True, cwd=directory, env=environment)

        call(sys.executable, PIPELINES / "sample_data.py", "access")
        started = perf_counter()
        run = ("pipeline", "run", PIPELINES / "access_counts.py", "--once")
        call(*LOOM, *run, "--spark-master", "local[2,4]")
        seconds = perf_counter() - started
        console.print(
            f"[green]pipeline[/]  access-counts in {seconds:.0f} s, most of it for Spark to start"
        )
        show(Path(directory) / "access-counts.table")


def show(place: Path) -> None:
    """The table as any reader of Parquet sees it; units add their own sums, so we add them up."""
    rows = ds.dataset(table_files(place)).to_table().group_by(["minute", "path"])
    sums = rows.aggregate([("requests", "sum"), ("bytes", "sum")])
    table = Table("minute", "path", "requests", "bytes", box=None)
    for row in sums.sort_by([("minute", "ascending"), ("path", "ascending")]).to_pylist():
        counts = f"{row['requests_sum']:,}", f"{row['bytes_sum']:,}"
        table.add_row(f"{row['minute']:%H:%M}", row["path"], *counts)
    console.print(table)


def main() -> None:
    with cluster_of_processes() as address:
        asyncio.run(tour(address))
        subprocess.run([*LOOM, "status", "--cluster", address], check=True)
        try:
            require_java()
        except loomlog.errors.LoomError as error:
            console.print(f"[yellow]skipped[/]   the pipeline: {error}")
        else:
            run_pipeline(address)
    console.print("[green]stopped[/]   try it yourself: .venv/bin/loom up")


if __name__ == "__main__":
    main()

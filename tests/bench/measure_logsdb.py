"""Measure the alternatives of docs/design/logsdb.md on the disk of a folder:

python tests/bench/measure_logsdb.py FOLDER [--partitions 20 200 700] [--seconds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from loomlog.core.copyset.messages import Delivered, NodeAnswer, NodeRequest, Read, Release, Store
from loomlog.core.copyset.record import LSN_MAX, OFFSET_MAX, Kind, Record, make
from loomlog.limits import KIB, MIB
from loomlog.storage.disk import ThreadWorker
from loomlog.storage.logsdb.rocks_logs import RocksLogs
from loomlog.storage.logsdb.store import LogsStore

SECOND_US = 1_000_000
PARTITION_US = 900 * SECOND_US
SYNCED = WriteOptions()
SYNCED.sync = True


def options() -> Options:
    made = Options(raw_mode=True)
    made.create_if_missing(True)
    return made


def timed_ms(action: Callable[[], object]) -> float:
    start = perf_counter()
    action()
    return (perf_counter() - start) * 1000


# ---- column families against instances


class Families:
    """Partitions as column families of one database."""

    def __init__(self, path: Path, names: list[str]) -> None:
        families = {name: options() for name in names}
        self.db = Rdict(str(path), options(), families if path.exists() else None)
        self.open = {name: self.db.get_column_family(name) for name in families if path.exists()}

    def create(self, name: str) -> None:
        self.open[name] = self.db.create_column_family(name, options())
        self.open[name].put(b"key", bytes(KIB))

    def drop(self, name: str) -> None:
        del self.open[name]
        self.db.drop_column_family(name)

    def close(self) -> None:
        for table in self.open.values():
            table.close()
        self.db.close()


class Instances:
    """Partitions as databases."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path = path
        there = [name for name in names if (path / name).exists()]
        path.mkdir(exist_ok=True)
        self.open = {name: Rdict(str(path / name), options()) for name in there}

    def create(self, name: str) -> None:
        self.open[name] = Rdict(str(self.path / name), options())
        self.open[name].put(b"key", bytes(KIB))

    def drop(self, name: str) -> None:
        self.open.pop(name).close()
        Rdict.destroy(str(self.path / name), options())

    def close(self) -> None:
        for table in self.open.values():
            table.close()


def measure_partitions(kind: type[Families | Instances], path: Path, count: int) -> None:
    names = [f"p{number}" for number in range(count)]
    made = kind(path, [])
    created = [timed_ms(partial(made.create, name)) for name in names]
    stall = longest_write_ms(made)
    made.close()
    start = perf_counter()
    made = kind(path, names)
    opened = (perf_counter() - start) * 1000
    dropped = [timed_ms(partial(made.drop, name)) for name in names[:10]]
    made.close()
    print(
        f"{count:4} {kind.__name__.lower():9}: create {median(created[-10:]):5.1f} ms, drop"
        f" {median(dropped):5.1f} ms, open all {opened:5.0f} ms; a synced write beside a creation"
        f" takes up to {stall:.0f} ms",
        flush=True,
    )


def longest_write_ms(made: Families | Instances) -> float:
    """Measure writes while another thread makes and drops partitions."""
    table = made.open["p0"]
    waits: list[float] = []
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            waits.append(timed_ms(lambda: table.put(b"key", bytes(KIB), SYNCED)))

    writer = threading.Thread(target=write)
    writer.start()
    for number in range(5):
        made.create(f"beside{number}")
        made.drop(f"beside{number}")
    is_over.set()
    writer.join()
    return max(waits)


def measure_commits(path: Path, seconds: float) -> None:
    """Commit 64 records of 1 KiB to three places, durably."""
    names = ["one", "two", "three"]
    families, instances = Families(path / "families", []), Instances(path / "instances", [])
    for name in names:
        families.create(name)
        instances.create(name)
    handles = [families.db.get_column_family_handle(name) for name in names]

    def together(number: int) -> None:
        batch = WriteBatch(raw_mode=True)
        for at in range(64):
            batch.put(b"%d/%d" % (number, at), bytes(KIB), handles[at % 3])
        families.db.write(batch, SYNCED)

    def apart(number: int) -> None:
        for part, name in enumerate(names):
            batch = WriteBatch(raw_mode=True)
            for at in range(part, 64, 3):
                batch.put(b"%d/%d" % (number, at), bytes(KIB))
            instances.open[name].write(batch, SYNCED)

    for kind, commit in (("families", together), ("instances", apart)):
        times: list[float] = []
        while sum(times) < seconds * 1000:
            times.append(timed_ms(partial(commit, len(times))))
        print(f"a synced commit of 64 KiB to 3 {kind}: p50 {median(times):.2f} ms", flush=True)
    handles.clear()
    families.close()
    instances.close()


# ---- LogsDB


class Running:
    """LogsDB with its threads."""

    def __init__(self, path: Path) -> None:
        self.loop = asyncio.get_running_loop()
        self.table = RocksLogs(str(path), 0)
        self.workers = [ThreadWorker(self.loop, name) for name in ("commits", "looks", "upkeep")]
        commits, look_ups, upkeep = self.workers
        self.store = LogsStore(1, self.table, commits, look_ups, upkeep)

    async def ask(self, request: NodeRequest) -> NodeAnswer:
        answer: asyncio.Future[NodeAnswer] = self.loop.create_future()
        self.store.ask(request, answer.set_result)
        return await answer

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.table.close()


def record(offset: int, batch: bytes, timestamp_us: int = 0) -> Record:
    lsn = make(1, offset)
    return Record(lsn, 1, Kind.DATA, timestamp_us, (1, 2, 3), 1, max(0, offset - 100), 0, batch)


async def measure_stores(path: Path, size: int, logs: int, in_flight: int, seconds: float) -> None:
    running = Running(path)
    batch = Random(1).randbytes(size)
    waits: list[float] = []
    end = perf_counter() + seconds

    async def write(writer: int) -> None:
        offset = 0
        while offset == 0 or perf_counter() < end:
            offset += 1
            start = perf_counter()
            log = writer % logs + 1
            await running.ask(Store(log, record(offset * in_flight + writer, batch)))
            waits.append((perf_counter() - start) * 1000)

    await asyncio.gather(*(write(writer) for writer in range(in_flight)))
    waits.sort()
    rate = len(waits) / seconds
    print(
        f"store {size // KIB:3} KiB, {logs:4} logs, {in_flight:4} in flight: {rate:7.0f}/s"
        f" {rate * size / 1e6:4.0f} MB/s, p50 {median(waits):.1f} ms, p99"
        f" {waits[len(waits) * 99 // 100]:.1f} ms",
        flush=True,
    )
    await measure_reads(running, size)
    running.close()


async def measure_reads(running: Running, size: int) -> None:
    end = make(1, OFFSET_MAX)
    await running.ask(Release(1, end))
    for batches in (True, False):
        at, count, start = make(1, 1), 0, perf_counter()
        while at < end and perf_counter() < start + 2:
            request = Read(1, at, end, MIB, everything=True, batches=batches)
            found = await running.ask(request)
            assert isinstance(found, Delivered)
            at, count = found.next_lsn, count + len(found.records)
        rate = count / (perf_counter() - start)
        what = f"{rate * size / 1e6:.0f} MB/s" if batches else "without batches"
        print(f"    read back {rate:.0f}/s, {what}", flush=True)


async def measure_many(path: Path, partitions: int) -> None:
    """Measure a log that spans `partitions` quarters of an hour."""
    running = Running(path)
    begun = []
    for number in range(partitions):
        await running.ask(Store(1, record(number + 1, bytes(KIB), number * PARTITION_US)))
        begun.append(timed_ms(partial(running.table.tend, (number + 1) * PARTITION_US)))
    running.close()
    start = perf_counter()
    running = Running(path)
    opened = (perf_counter() - start) * 1000
    log = running.table.look(1)
    found = timed_ms(lambda: running.table.ages(1, partitions * PARTITION_US // 3))
    scanned = timed_ms(lambda: list(log.scan(0, LSN_MAX)))
    print(
        f"LogsDB, {partitions} partitions: begin one {median(begun[-10:]):.1f} ms, start"
        f" {opened:.0f} ms, find a time {found:.2f} ms, scan all {scanned:.1f} ms",
        flush=True,
    )
    running.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--partitions", type=int, nargs="+", default=[20, 200, 700])
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    folder: Path = arguments.folder / "measured"
    folder.mkdir(parents=True)
    for count in arguments.partitions:
        measure_partitions(Families, folder / f"families{count}", count)
        measure_partitions(Instances, folder / f"instances{count}", count)
    measure_commits(folder, arguments.seconds)
    for size, logs, in_flight in ((1, 1, 1), (1, 1, 256), (64, 1, 64), (1, 1000, 1000)):
        place = folder / f"{size} {logs} {in_flight}"
        asyncio.run(measure_stores(place, size * KIB, logs, in_flight, arguments.seconds))
    for count in arguments.partitions:
        asyncio.run(measure_many(folder / f"many{count}", count))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()

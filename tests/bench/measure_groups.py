"""Measure what sharing a log costs: the members of a consumer group, each a process, against one
program that reads the whole log. On a running cluster:

python tests/bench/measure_groups.py 127.0.0.1:7400 [--records 1000000] [--members 4] [--shards 16]
    [--batch 2000] [--rounds 3]

CPU seconds are those of the readers alone. `plain` are as many plain readers as there are members,
also all at once, so that both share the cores alike; they take turns with the members, and each
figure is the median of the rounds. `passed` is how many records of the log a reader goes through
for each second; `handed out` counts an entry once, for all members together. `received` are readers
that get columns and make no entries, and `bound` is what could be handed out at most, of plain, if
it cost a member nothing to choose its rows.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

import uvloop

import loomlog
from loomlog.columns.key_shards import shards_of

LOG = "measure-groups"
DONE = f"{LOG}/done/"
VALUE = bytes(128)
KEYS = 10_000


class Measured(NamedTuple):
    """The figures of one reader."""

    entries: int
    took_s: float
    cpu_s: float


async def fill(address: str, records: int, batch: int) -> None:
    async with await loomlog.connect(address) as cluster:
        if LOG in {info.name for info in await cluster.logs()}:
            await cluster.delete_log(LOG)
        for name, found in (await cluster.registers(DONE)).items():
            await cluster.register(name).swap(None, found.version)
        log = await cluster.create_log(LOG, replicas=1)
        for first in range(0, records, batch):
            numbers = range(first, min(first + batch, records))
            keys = [b"customer-%07d" % (number * 7919 % KEYS) for number in numbers]
            await log.append_many([VALUE] * len(keys), keys)


async def read_all(address: str, records: int) -> Measured:
    async with await loomlog.connect(address) as cluster:
        began_s, used_s, count = perf_counter(), process_time(), 0
        async for _ in cluster.log(LOG).subscribe():
            count += 1
            if count == records:  # as members do, which have no other end
                break
        return Measured(count, perf_counter() - began_s, process_time() - used_s)


async def receive(address: str, records: int) -> Measured:
    async with await loomlog.connect(address) as cluster:
        began_s, used_s, count = perf_counter(), process_time(), 0
        async for batch in cluster.log(LOG).subscribe_arrow():
            count += batch.num_rows
            if count == records:
                break
        return Measured(count, perf_counter() - began_s, process_time() - used_s)


async def shard_sizes(address: str, shards: int, records: int) -> Counter[int]:
    async with await loomlog.connect(address) as cluster:
        sizes: Counter[int] = Counter()
        async for batch in cluster.log(LOG).subscribe_arrow(stop=records):
            numbers = shards_of(batch.column("key"), batch.column("position").to_numpy(), shards)
            sizes.update(numbers.tolist())
        return sizes


async def read_share(address: str, name: str, members: int, sizes: Counter[int]) -> Measured:
    async with (
        await loomlog.connect(address) as cluster,
        cluster.log(LOG).group(name, shards=len(sizes)) as group,
    ):
        while not await _is_spread(group, members):
            await group.commit()  # releases what has to move
            await asyncio.sleep(0.1)
        expected = sum(sizes[shard] for shard in group.shards)
        began_s, used_s, count = perf_counter(), process_time(), 0
        async for _ in group:
            count += 1
            if count == expected:
                break
        measured = Measured(count, perf_counter() - began_s, process_time() - used_s)
        # Nobody leaves before all are done: the others would get its shards.
        await cluster.register(f"{DONE}{name}/{group.member}").swap(b"", 0)
        while len(await cluster.registers(f"{DONE}{name}/")) < members:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return measured


async def _is_spread(group: loomlog.Group, members: int) -> bool:
    info = await group.describe()
    counts = [len(member.shards) for member in info.members]
    return len(counts) == members and max(counts) - min(counts) <= 1


def plain(address: str, records: int) -> Measured:
    return uvloop.run(read_all(address, records))


def received(address: str, records: int) -> Measured:
    return uvloop.run(receive(address, records))


def share(address: str, name: str, members: int, sizes: Counter[int]) -> Measured:
    return uvloop.run(read_share(address, name, members, sizes))


def at_once(pool: ProcessPoolExecutor, readers: int, read: Any, *arguments: Any) -> list[Measured]:
    """Run several readers, each in a process; raise the first error of any."""
    running = [pool.submit(read, *arguments) for _ in range(readers)]
    return [each.result() for each in as_completed(running)]


def per_cpu_s(measured: list[Measured]) -> float:
    return sum(each.entries for each in measured) / sum(each.cpu_s for each in measured)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("cluster")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--batch", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    address, records, members = options.cluster, options.records, options.members
    uvloop.run(fill(address, records, options.batch))
    sizes = uvloop.run(shard_sizes(address, options.shards, records))
    plain_rates, received_rates, shares = [], [], []
    with ProcessPoolExecutor(members, get_context("spawn")) as pool:
        for number in range(options.rounds):
            plain_rates.append(per_cpu_s(at_once(pool, members, plain, address, records)))
            received_rates.append(per_cpu_s(at_once(pool, members, received, address, records)))
            group = f"measured-{number}"
            shares.append(per_cpu_s(at_once(pool, members, share, address, group, members, sizes)))
    rate, handed_out = median(plain_rates), median(shares)
    passed, without_entries = handed_out * members, median(received_rates)
    # Of receiving, as a part of a plain reader's; columns of few rows cost more than their entries.
    cost = min(1.0, rate / without_entries)
    print(f"plain:      {rate:12,.0f} records per CPU second")
    print(f"received:   {without_entries:12,.0f} records per CPU second, as columns")
    print(f"passed:     {passed:12,.0f} records per CPU second of a member, {passed / rate:.2f} x")
    print(f"handed out: {handed_out:12,.0f} entries per CPU second, {handed_out / rate:.2f} x")
    print(f"bound:      {1 / (members * cost + 1 - cost):12.2f} x")


if __name__ == "__main__":
    main()

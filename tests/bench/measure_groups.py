"""Measure what sharing a log costs: the members of a consumer group, each a process, against one
program that reads the whole log. On a running cluster:

python tests/bench/measure_groups.py 127.0.0.1:7400 [--records 1000000] [--members 4] [--shards 16]

CPU seconds are those of the readers alone. `passed` is how many records of the log a reader goes
through for each; `handed out` counts an entry once, for all members together.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter, process_time
from typing import NamedTuple

import uvloop

import loomlog
import loomlog.client.groups.shard_rows  # not while it is measured
from loomlog.columns.key_shards import shards_of

LOG = "measure-groups"
DONE = f"{LOG}/done/"
VALUE = bytes(128)
KEYS = 10_000
BATCH = 2_000


class Measured(NamedTuple):
    """The figures of one reader."""

    entries: int
    took_s: float
    cpu_s: float


async def fill(address: str, records: int) -> None:
    async with await loomlog.connect(address) as cluster:
        if LOG in {info.name for info in await cluster.logs()}:
            await cluster.delete_log(LOG)
        for name, found in (await cluster.registers(DONE)).items():
            await cluster.register(name).swap(None, found.version)
        log = await cluster.create_log(LOG, replicas=1)
        for first in range(0, records, BATCH):
            numbers = range(first, min(first + BATCH, records))
            keys = [b"customer-%07d" % (number * 7919 % KEYS) for number in numbers]
            await log.append_many([VALUE] * len(keys), keys)


async def read_all(address: str, records: int) -> Measured:
    async with await loomlog.connect(address) as cluster:
        began_s, used_s, count = perf_counter(), process_time(), 0
        async for _ in cluster.log(LOG).subscribe(stop=records):
            count += 1
        return Measured(count, perf_counter() - began_s, process_time() - used_s)


async def shard_sizes(address: str, shards: int, records: int) -> Counter[int]:
    async with await loomlog.connect(address) as cluster:
        sizes: Counter[int] = Counter()
        async for batch in cluster.log(LOG).subscribe_arrow(stop=records):
            numbers = shards_of(batch.column("key"), batch.column("position").to_numpy(), shards)
            sizes.update(numbers.tolist())
        return sizes


async def read_share(address: str, members: int, sizes: Counter[int]) -> Measured:
    async with (
        await loomlog.connect(address) as cluster,
        cluster.log(LOG).group("measured", shards=len(sizes)) as group,
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
        await cluster.register(f"{DONE}{group.member}").swap(b"", 0)
        while len(await cluster.registers(DONE)) < members:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return measured


async def _is_spread(group: loomlog.Group, members: int) -> bool:
    info = await group.describe()
    counts = [len(member.shards) for member in info.members]
    return len(counts) == members and max(counts) - min(counts) <= 1


def plain(address: str, records: int) -> Measured:
    return uvloop.run(read_all(address, records))


def share(address: str, members: int, sizes: Counter[int]) -> Measured:
    return uvloop.run(read_share(address, members, sizes))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("cluster")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--shards", type=int, default=16)
    options = parser.parse_args(arguments)
    address, records, members = options.cluster, options.records, options.members
    uvloop.run(fill(address, records))
    sizes = uvloop.run(shard_sizes(address, options.shards, records))
    with ProcessPoolExecutor(members, get_context("spawn")) as pool:
        one = pool.submit(plain, address, records).result()
        several = [pool.submit(share, address, members, sizes) for _ in range(members)]
        shares = [each.result() for each in several]
    cpu_s = sum(each.cpu_s for each in shares)
    rate = records / one.cpu_s
    passed, handed_out = records * members / cpu_s, sum(each.entries for each in shares) / cpu_s
    print(f"plain:      {rate:12,.0f} records per CPU second, {one.took_s:.2f} s")
    print(f"passed:     {passed:12,.0f} records per CPU second of a member, {passed / rate:.2f} x")
    print(f"handed out: {handed_out:12,.0f} entries per CPU second, {handed_out / rate:.2f} x")


if __name__ == "__main__":
    main()

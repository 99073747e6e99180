"""Consumer groups read a log wherever its entries are: switched, archived, trimmed, published,
or of a transaction. Each entry goes to one member, in the order of its shard."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from cli_rig import Loom

import loomlog
from loomlog.columns.key_shards import shard_of_key
from loomlog.errors import Trimmed
from loomlog.spark import archive_job
from loomlog.testing import LocalCluster
from loomlog.types import Entry

SHARDS = 5
KEYS = [*(b"key %d" % number for number in range(11)), None]


class Written:
    """Appends values in all ways that there are; each value is a number of its own."""

    def __init__(self, cluster: loomlog.Cluster, log: loomlog.Log) -> None:
        self._cluster = cluster
        self.log = log
        self._publications = 0
        self.values: list[bytes] = []

    def _next(self, count: int) -> list[bytes]:
        first = len(self.values)
        values = [b"%d" % number for number in range(first, first + count)]
        self.values += values
        return values

    async def append(self) -> None:
        await self.log.append_many(self._next(len(KEYS)), KEYS)

    async def publish(self) -> None:
        keys = pa.array(KEYS, pa.binary())
        rows = pa.record_batch({"value": self._next(len(KEYS)), "key": keys})
        self._publications += 1
        writer = await self.log.writer("w")
        await writer.publish(self._publications, await self.log.stage(rows))

    async def transact(self) -> None:
        async with self._cluster.transaction() as transaction:
            for key, value in zip(KEYS, self._next(len(KEYS)), strict=True):
                transaction.append(self.log.name, value, key=key)

    async def all(self) -> None:
        await self.append()
        await self.publish()
        await self.transact()


def archive(address: str, log: str, until: int, directory: Path) -> None:
    with loomlog.connect_sync(address) as cluster:
        archive_job.run(
            cluster, address, log, until=until, to=str(directory), rows_per_file=20, trim=True
        )


async def consume(log: loomlog.Log, members: int, count: int) -> list[Entry]:
    """Let several members share `count` entries; return them as they came."""
    got: list[Entry] = []
    done = asyncio.Event()

    async def member() -> None:
        async with log.group("g", shards=SHARDS, session_timeout_s=30) as group:
            async for entry in group:
                got.append(entry)
                await group.commit()
                if len(got) == count:
                    done.set()

    tasks = [asyncio.create_task(member()) for _ in range(members)]
    ended = asyncio.create_task(done.wait())
    async with asyncio.timeout(60):
        await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
    for task in (*tasks, ended):
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, asyncio.CancelledError), outcome
    return got


def shard_of(entry: Entry) -> int:
    return entry.position % SHARDS if entry.key is None else shard_of_key(entry.key, SHARDS)


@pytest.mark.parametrize(
    ("first", "second"), [("ordered", "chained"), ("chained", "copyset"), ("copyset", "ordered")]
)
async def test_each_entry_goes_to_one_member_in_order(
    first: str, second: str, tmp_path: Path
) -> None:
    local = LocalCluster(nodes=2, sync="none")
    async with local as cluster:
        log = await cluster.create_log("events", first, replicas=1)
        written = Written(cluster, log)
        await written.all()
        delivered = await consume(log, 1, len(written.values))
        await written.all()
        await cluster.switch_log(log.name, protocol=second)
        await written.append()
        archived = await log.tail()
        await written.all()
        await asyncio.to_thread(archive, local.address, log.name, archived, tmp_path)
        assert await log.head() == archived + 1
        delivered += await consume(log, 3, len(written.values) - len(delivered))
        plain = [entry async for entry in log.subscribe("earliest", await log.tail())]
    assert [entry.value for entry in plain] == written.values
    by_shard = defaultdict(list)
    for entry in delivered:
        by_shard[shard_of(entry)].append(entry.position)
    assert by_shard.keys() == set(range(SHARDS))
    assert all(a < b for positions in by_shard.values() for a, b in pairwise(positions))
    assert sorted(delivered) == plain


async def test_a_group_behind_a_trim_continues_as_the_error_says() -> None:
    local = LocalCluster(nodes=1)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append_many([b"%d" % number for number in range(1, 11)])
        async with log.group("g", shards=SHARDS) as group:
            await group.commit()
            await log.trim(4)
            with pytest.raises(Trimmed, match="behind the first entry kept") as raised:
                await anext(aiter(group))
        advice = str(raised.value).partition("`loom ")[2].partition("`")[0]
        assert advice == "group reset events g --to earliest"
        await asyncio.to_thread(Loom(local.address).says, *advice.split(), "--yes")
        rest = await consume(log, 2, 6)
    assert sorted(int(entry.value) for entry in rest) == list(range(5, 11))

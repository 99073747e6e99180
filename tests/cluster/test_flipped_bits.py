"""Bits are flipped in the files of stopped replicas of an `ordered` log. No data is cut off; sound
entries can be read, broken ones are repaired from other replicas or reported as lost."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from poll import until

from loomlog import Cluster, Gap, Log, connect, limits
from loomlog.errors import DataLoss, Retryable
from loomlog.metadata.ordered.committer import Committer
from loomlog.metadata.ordered.keeper import OrderedKeeper
from loomlog.testing import LocalCluster

pytestmark = pytest.mark.timeout(120)

COUNT = 100
AT_ONCE_S = limits.REQUEST_TIMEOUT_S  # nobody waits until a request times out


def data_file(directory: Path, node: int) -> Path:
    [path] = (directory / f"vsn-{node}").rglob("lsid=1/data/*.seg")
    return path


def flip(path: Path, part: float, *, header: bool) -> None:
    """Flip one bit in the header or the body of the batch there."""
    data = bytearray(path.read_bytes())
    at = int(len(data.rstrip(b"\0")) * part)
    begin = data.rindex(b"LMB1", 0, at)
    data[begin + (20 if header else 150)] ^= 1
    path.write_bytes(data)


async def fill(directory: Path, replicas: int) -> None:
    async with LocalCluster(replicas, directory=directory) as cluster:
        log = await cluster.create_log("l", replicas=replicas)
        for number in range(COUNT):
            await log.append(b"%d" % number)


async def collect(log: Log, positions: list[int]) -> None:
    async with asyncio.timeout(30):
        async for entry in log.subscribe(1, COUNT):
            positions.append(entry.position)  # noqa: PERF401 - an error comes in the middle


async def conditions(cluster: Cluster) -> str:
    return "; ".join(text for node in (await cluster.status()).nodes for text in node.conditions)


@pytest.mark.parametrize("header", [True, False], ids=["header", "body"])
async def test_every_batch_that_a_replica_has_is_read_and_repaired(
    tmp_path: Path, header: bool
) -> None:
    await fill(tmp_path, 3)
    sound = {node: data_file(tmp_path, node).read_bytes() for node in (1, 2, 3)}
    for node, part in {1: 0.1, 2: 0.5, 3: 0.9}.items():
        flip(data_file(tmp_path, node), part, header=header)
    async with LocalCluster(3, directory=tmp_path) as cluster:
        log = cluster.log("l")
        async with asyncio.timeout(30):
            values = [entry.value async for entry in log.subscribe(1, COUNT)]
        assert values == [b"%d" % number for number in range(COUNT)]

        async def is_repaired() -> bool:
            now = {node: data_file(tmp_path, node).read_bytes() for node in sound}
            return now == sound and not await conditions(cluster)

        await until(is_repaired)


@pytest.mark.parametrize("header", [True, False], ids=["header", "body"])
async def test_what_no_replica_has_is_lost_and_nothing_else(tmp_path: Path, header: bool) -> None:
    await fill(tmp_path, 1)
    path = data_file(tmp_path, 1)
    flip(path, 0.5, header=header)
    broken = path.read_bytes()
    async with LocalCluster(1, directory=tmp_path) as cluster:
        log = cluster.log("l")
        async with asyncio.timeout(30):
            found = [entry async for entry in log.subscribe(1, COUNT, gaps=True)]
        [gap] = [each for each in found if isinstance(each, Gap)]
        assert gap.first == gap.last
        assert gap.kind == "dataloss"
        read = [each.position for each in found if not isinstance(each, Gap)]
        assert read == [number for number in range(1, COUNT + 1) if number != gap.first]
        delivered: list[int] = []
        with pytest.raises(DataLoss, match=f"continue at {gap.last + 1},"):
            await collect(log, delivered)
        assert delivered == list(range(1, gap.first))
        async with asyncio.timeout(AT_ONCE_S):
            with pytest.raises(DataLoss, match=f"position {gap.first} of log 'l' cannot be read"):
                await log.read(gap.first)
            before = (await log.read(gap.first - 1)).timestamp
            with pytest.raises(DataLoss):
                await log.find_time(before + timedelta(microseconds=1))
        assert (await log.read(gap.first + 1)).value == b"%d" % gap.first
        unread = f"LLSN {gap.first} to {gap.first} cannot be read"
        await until(lambda: conditions(cluster), lambda said: unread in said)
        assert (await log.append(b"more")).position == COUNT + 1
    end = len(broken.rstrip(b"\0"))
    assert path.read_bytes()[:end] == broken[:end]


@pytest.mark.parametrize("header", [True, False], ids=["header", "body"])
@pytest.mark.parametrize("part", [0.985, 1.0], ids=["before", "newest"])
async def test_the_newest_batches_are_damaged_on_all_replicas(
    tmp_path: Path, part: float, header: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The nodes stopped cleanly, so this is no torn write, and nothing is overwritten."""
    await fill(tmp_path, 3)
    paths = [data_file(tmp_path, node) for node in (1, 2, 3)]
    for path in paths:
        flip(path, part, header=header)
    broken = [path.read_bytes().rstrip(b"\0") for path in paths]
    async with LocalCluster(3, directory=tmp_path) as cluster:
        log = cluster.log("l")
        async with asyncio.timeout(30):
            found = [entry async for entry in log.subscribe(1, COUNT, gaps=True)]
        lost = COUNT - (part < 1)
        assert [each for each in found if isinstance(each, Gap)] == [Gap(lost, lost, "dataloss")]
        assert len(found) == COUNT
        async with asyncio.timeout(AT_ONCE_S):
            with pytest.raises(DataLoss):
                await log.read(lost)

        async def problems() -> list[str]:
            listed = (await cluster.status()).conditions
            return [each.kind for each in listed if each.severity == "problem"]

        assert await until(problems, lambda kinds: len(kinds) == 3) == ["data-lost"] * 3
        assert caplog.text.count(f"LLSN {lost} to {lost} ") >= 3
        assert (await log.append(b"more")).position == COUNT + 1
    for path, before in zip(paths, broken, strict=True):
        assert path.read_bytes().startswith(before)


def destroy_end(path: Path) -> None:
    """Destroy the second half, and the index that only a clean stop leaves."""
    path.with_suffix(".idx").unlink()
    data = bytearray(path.read_bytes())
    half = len(data.rstrip(b"\0")) // 2
    data[half:] = b"\x55" * (len(data) - half)
    path.write_bytes(data)


async def test_a_lost_end_is_reported_and_what_is_before_it_is_read(tmp_path: Path) -> None:
    await fill(tmp_path, 1)
    path = data_file(tmp_path, 1)
    destroy_end(path)
    async with LocalCluster(1, directory=tmp_path) as cluster:
        async with asyncio.timeout(30):
            log = cluster.log("l")
            found = [entry async for entry in log.subscribe(1, COUNT, gaps=True)]
        read = [entry.position for entry in found if not isinstance(entry, Gap)]
        gap = found[-1]
        assert isinstance(gap, Gap)
        assert gap.last == COUNT
        assert read == list(range(1, gap.first))
        assert 40 < gap.first < 60
        assert (await log.read(1)).value == b"0"
        await until(lambda: conditions(cluster), lambda said: "lost committed entries" in said)
        second = await log.read(2)
        async with asyncio.timeout(AT_ONCE_S):
            assert await log.find_time(second.timestamp) == 2
            for lost in (log.read(COUNT), log.find_time(second.timestamp + timedelta(days=1))):
                with pytest.raises(DataLoss):
                    await lost
    assert path.with_name(path.name + ".damaged").exists()


async def test_what_is_before_a_lost_end_is_not_lost_while_its_node_is_away(tmp_path: Path) -> None:
    await fill(tmp_path, 1)
    destroy_end(data_file(tmp_path, 1))
    servers = LocalCluster(1, directory=tmp_path)
    async with servers, await connect(servers.address, request_timeout_s=1) as client:
        log = client.log("l")
        await until(log.describe, lambda log: any("is lost" in s.condition for s in log.streams))
        assert (await log.read(1)).value == b"0"
        with pytest.raises(DataLoss):
            await log.read(COUNT)
        await servers.stop_node(1)
        with pytest.raises(Retryable):
            await log.read(2)


def commit_file(directory: Path, node: int) -> Path:
    [path] = (directory / f"vsn-{node}").rglob("lsid=1/commit/*.cc")
    return path


@pytest.mark.parametrize("record", [0, 40, 98])
async def test_a_damaged_commit_of_a_lone_replica_is_written_again(
    tmp_path: Path, record: int
) -> None:
    """The metadata repository keeps running: it has forgotten the round."""
    local = LocalCluster(1, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("l", replicas=1)
        for number in range(COUNT):
            await log.append(b"%d" % number)
        await local.stop_node(1)
        path = commit_file(tmp_path, 1)
        data = bytearray(path.read_bytes())
        data[1024 + 64 * record + 30] ^= 1
        path.write_bytes(data)
        await local.start_node(1)
        async with asyncio.timeout(30):
            values = [entry.value async for entry in log.subscribe(1, COUNT)]
        assert values == [b"%d" % number for number in range(COUNT)]
        assert (await log.append(b"more")).position == COUNT + 1


def erase_commits(path: Path) -> None:
    """Erase all records but the first 20."""
    data = bytearray(path.read_bytes())
    data[1024 + 64 * 20 :] = bytes(len(data) - 1024 - 64 * 20)
    path.write_bytes(data)


async def lose_commits(local: LocalCluster, directory: Path, *, known: bool) -> None:
    """Erase the last commits of stream 1 while its node is stopped. The metadata repository has
    forgotten the rounds; unless `known`, they are not in its round log any more either."""
    committer = committer_of(local)
    [log] = committer.logs.values()

    def is_forgotten() -> bool:
        log.forget_stored()
        return not log.kept

    await until(is_forgotten)
    await local.stop_node(1)
    erase_commits(commit_file(directory, 1))
    if not known:
        committer._records.clear()
    await local.start_node(1)


def committer_of(local: LocalCluster) -> Committer:
    term = local.repositories[local.leader or 0].term
    assert term is not None
    keeper = term.keepers["ordered"]
    assert isinstance(keeper, OrderedKeeper)
    return keeper.committer


@pytest.mark.parametrize(("streams", "known"), [(1, True), (1, False), (2, True)])
async def test_lost_commits_of_a_lone_replica_are_sent_again(
    tmp_path: Path, streams: int, known: bool
) -> None:
    local = LocalCluster(1, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("l", streams=streams, replicas=1)
        for number in range(COUNT):
            await log.append(b"%d" % number, stream=1 + number % streams)
        await lose_commits(local, tmp_path, known=known)
        async with asyncio.timeout(30):
            values = [entry.value async for entry in log.subscribe(1, COUNT)]
        assert values == [b"%d" % number for number in range(COUNT)]
        assert (await log.append(b"more", stream=1)).position == COUNT + 1
        await until(lambda: conditions(cluster), lambda said: not said)


async def test_entries_whose_positions_nobody_knows_are_lost(tmp_path: Path) -> None:
    local = LocalCluster(1, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("l", streams=2, replicas=1)
        for number in range(COUNT):
            await log.append(b"%d" % number, stream=1 + number % 2)
        await lose_commits(local, tmp_path, known=False)
        async with asyncio.timeout(30):
            found = [entry async for entry in log.subscribe(1, COUNT, gaps=True)]
        gaps = [gap.first for gap in found if isinstance(gap, Gap) and gap.kind == "dataloss"]
        read = [entry.position for entry in found if not isinstance(entry, Gap)]
        assert sorted([*gaps, *read]) == list(range(1, COUNT + 1))
        assert gaps == list(range(41, COUNT, 2))
        async with asyncio.timeout(AT_ONCE_S):
            with pytest.raises(DataLoss):
                await log.read(41)
        said = "node 1 has entries of it, but lost their positions"
        await until(log.describe, lambda info: said in info.streams[0].condition)


@pytest.mark.parametrize("restart", [False, True], ids=["nodes", "cluster"])
@pytest.mark.parametrize("replicas", [1, 2])
async def test_what_was_acknowledged_but_not_committed_on_disk_is_not_lost_silently(
    tmp_path: Path, replicas: int, restart: bool
) -> None:
    """A replica cuts off damage above its last commit as a torn end. If a crash kept the commits
    from the disk, these entries were acknowledged: the metadata repository knows that."""
    local = LocalCluster(replicas, directory=tmp_path)
    nodes = range(1, replicas + 1)

    async def check(cluster: Cluster) -> None:
        log = cluster.log("l")
        async with asyncio.timeout(30):
            found = [entry async for entry in log.subscribe(1, COUNT, gaps=True)]
        read = [entry.position for entry in found if not isinstance(entry, Gap)]
        assert found[len(read) :] == [Gap(len(read) + 1, COUNT, "dataloss")]
        assert read == list(range(1, len(read) + 1))
        assert len(read) > 40 + 20 * replicas - 5  # as much as the best replica has
        with pytest.raises(DataLoss):
            await log.read(COUNT)
        assert (await log.append(b"more")).position > COUNT

    async with local as cluster:
        log = await cluster.create_log("l", replicas=replicas)
        for number in range(COUNT):
            await log.append(b"%d" % number)
        for node in nodes:
            await local.stop_node(node)
        for node in nodes:
            erase_commits(commit_file(tmp_path, node))
            flip(data_file(tmp_path, node), 0.4 + 0.2 * node, header=False)
        if not restart:
            for node in nodes:
                await local.start_node(node)
            await check(cluster)
    if restart:
        async with LocalCluster(replicas, directory=tmp_path) as cluster:
            await check(cluster)

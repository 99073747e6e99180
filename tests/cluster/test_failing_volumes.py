"""A volume that is full, read-only or gone: others take over, status names it, and it is used again
when it is well."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from poll import until

from loomlog import connect, limits
from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.config import NodeSettings
from loomlog.errors import DiskFailed, InvalidArgument, LoomError
from loomlog.testing import LocalCluster
from loomlog.types import NodeId

PROTOCOLS = ["ordered", "chained", "copyset"]
PATIENCE_S = 30.0
VOLUME_MIB = 24


@pytest.fixture
def small_volume(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Mount a small file system as the volume of node 1, or of another server."""
    disk, path = tmp_path / "disk", tmp_path / getattr(request, "param", "vsn-1")
    disk.mkdir()
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_MIB}m", "loomlog-test", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        plug(path)
        yield path
    finally:
        for mounted in (path, disk):
            subprocess.run(["umount", "-l", str(mounted)], capture_output=True, check=False)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VOLUME_LOOK_S", 0.2)
    monkeypatch.setattr(limits, "VOLUME_LOOK_FAILED_S", 0.2)
    monkeypatch.setattr(limits, "VOLUME_FAILED_S", 1.0)
    monkeypatch.setattr(limits, "REOPEN_S", 0.5)
    monkeypatch.setattr("loomlog.metadata.nodes.placement.UNABLE_S", 1.0)
    monkeypatch.setattr("loomlog.metadata.chained.upkeep.UNABLE_S", 1.0)


def fill(volume: Path) -> Callable[[], None]:
    """Take all space; what comes back gives it free."""
    ballast = volume / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            pass
    return ballast.unlink


def plug(volume: Path) -> None:
    subprocess.run(["mount", "--bind", str(volume.parent / "disk"), str(volume)], check=True)


def unplug(volume: Path) -> Callable[[], None]:
    """Take the whole file system away; what comes back brings it back."""
    subprocess.run(["umount", "-l", str(volume)], check=True)
    return partial(plug, volume)


async def conditions_of(cluster: Cluster, node: int) -> tuple[str, ...]:
    return next(n.conditions for n in (await cluster.status()).nodes if n.id == node)


async def append_all(log: Log, count: int, size: int = 100_000) -> None:
    for number in range(count):
        async with asyncio.timeout(PATIENCE_S):
            await log.append(b"%06d" % number + bytes(size))


async def read_all(log: Log) -> list[int]:
    entries = [e async for e in log.subscribe(start=1, stop=(await log.describe()).tail)]
    return [int(entry.value[:6]) for entry in entries]


async def serves_without(log: Log, node: int, count: Callable[[list[bool]], bool] = all) -> bool:
    """Return whether all streams (or any) have all their replicas, none of them on that node."""
    info = await log.describe()
    if info.protocol == "copyset":
        return True
    placed = [
        [*(replica.node for replica in stream.replicas)] if not stream.chains else list(chain)
        for stream in info.active_streams
        for chain in (stream.chains or ((),))
    ]
    return count([node not in nodes and len(nodes) == 3 for nodes in placed])


@pytest.mark.parametrize("break_it", [fill, unplug])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_volume_that_fails_is_replaced_and_used_again(
    protocol: str,
    break_it: Callable[[Path], Callable[[], None]],
    small_volume: Path,
    tmp_path: Path,
) -> None:
    servers = LocalCluster(nodes=4, directory=tmp_path)
    async with servers as cluster:
        log = await cluster.create_log("events", protocol, 1, 3)
        await append_all(log, 5)
        mend = break_it(small_volume)
        try:
            await append_all(log, 15)
            # A stream that only lacks room may stay, if the log has another one.
            await until(lambda: serves_without(log, 1, any if break_it is fill else all))
            is_shown = _is_mentioned if break_it is fill else _is_named
            await until(lambda: is_shown(cluster, small_volume))
            await until(lambda: conditions_of(cluster, 2), lambda found: not found)
            assert await read_all(log) == [*range(5), *range(15)]
        finally:
            mend()
        await until(lambda: _is_well(cluster))
        everywhere = await cluster.create_log("everywhere", protocol, 1, 4)
        await append_all(everywhere, 3)
        assert await read_all(everywhere) == [0, 1, 2]


@pytest.fixture
def journaled_volume(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system as the volume of node 1 that becomes read-only when its disk fails."""
    image, path = tmp_path / "image", tmp_path / "vsn-1"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(128 << 20)
    for command in (["mkfs.ext4", "-q", "-F", str(image)], mounting(path)):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            pytest.skip(f"there is no {error.filename} here")
        if done.returncode:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


def mounting(volume: Path) -> list[str]:
    return ["mount", "-o", "loop", str(volume.parent / "image"), str(volume)]


def make_read_only(volume: Path) -> None:
    subprocess.run(["mount", "-o", "remount,abort", str(volume)], check=True)


async def mount_again(servers: LocalCluster, volume: Path) -> None:
    await servers.stop_node(1)
    subprocess.run(["umount", str(volume)], check=True)
    subprocess.run(mounting(volume), check=True)
    await servers.start_node(1)


async def test_a_volume_that_becomes_read_only_is_replaced_and_used_again(
    journaled_volume: Path, tmp_path: Path
) -> None:
    """The kernel does this after a disk error, while files are open for writing."""
    servers = LocalCluster(nodes=4, directory=tmp_path)
    async with servers as cluster:
        logs = [await cluster.create_log(name, name, 1, 3) for name in PROTOCOLS]
        for log in logs:
            await append_all(log, 5, 1000)
        make_read_only(journaled_volume)
        for log in logs:
            await append_all(log, 10, 1000)
            await until(partial(serves_without, log, 1))
        await until(lambda: _is_named(cluster, journaled_volume))
        await until(lambda: conditions_of(cluster, 2), lambda found: not found)
        for log in logs:
            assert await read_all(log) == [*range(5), *range(10)]
        await mount_again(servers, journaled_volume)
        await until(lambda: _is_well(cluster))
        everywhere = await cluster.create_log("everywhere", replicas=4)
        await append_all(everywhere, 3)
        for log in logs:
            assert await read_all(log) == [*range(5), *range(10)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_log_without_a_spare_outlives_a_volume_that_becomes_read_only(
    protocol: str, journaled_volume: Path, tmp_path: Path
) -> None:
    servers = LocalCluster(nodes=3, directory=tmp_path)
    async with servers as cluster:
        log = await cluster.create_log("events", protocol, 1, 3)
        await append_all(log, 5, 1000)
        make_read_only(journaled_volume)
        appends = asyncio.create_task(append_all(log, 10, 1000))
        await until(lambda: _is_named(cluster, journaled_volume))
        if protocol == "ordered":  # it needs all its replicas
            advice = "appends continue after `loom log switch events --replicas 2`"
            await until(log.describe, lambda info: advice in info.streams[0].condition)
            assert await read_all(log) == [*range(5)]
            await cluster.switch_log("events", replicas=2)
        await appends
        assert await read_all(log) == [*range(5), *range(10)]
        assert all(node.alive for node in (await cluster.status()).nodes)
        await mount_again(servers, journaled_volume)
        await until(lambda: _is_well(cluster))
        await append_all(log, 3, 1000)
        assert await read_all(log) == [*range(5), *range(10), *range(3)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_lone_replica_on_a_volume_that_becomes_read_only_loses_nothing(
    protocol: str, journaled_volume: Path, tmp_path: Path
) -> None:
    servers = LocalCluster(nodes=1, directory=tmp_path)
    async with servers as cluster:
        log = await cluster.create_log("events", protocol, 1, 1)
        await append_all(log, 5, 1000)
        make_read_only(journaled_volume)
        async with await connect(servers.address, append_timeout_s=4.0) as impatient:
            with suppress(LoomError):  # it may be what finds out
                await impatient.log("events").append(b"000005")
            await until(lambda: _is_named(cluster, journaled_volume))
            with pytest.raises(LoomError, match=f"{journaled_volume} failed: Read-only"):
                await impatient.log("events").append(b"000006")
        if protocol == "ordered":  # others do not show what is perhaps not on the disk
            assert await read_all(log) == [*range(5)]
        assert (await cluster.status()).nodes[0].alive
        await mount_again(servers, journaled_volume)
        await append_all(log, 3, 1000)
        assert [number for number in await read_all(log) if number < 5] == [*range(5), *range(3)]


class _WithTwoVolumes(LocalCluster):
    """Node 1 has two volumes."""

    def node_settings(self, node_id: NodeId) -> NodeSettings:
        settings = super().node_settings(node_id)
        second = f"{settings.volumes[0]}+"
        return replace(settings, volumes=(*settings.volumes, second)) if node_id == 1 else settings


@pytest.mark.parametrize("small_volume", ["vsn-1+"], indirect=True)
@pytest.mark.parametrize("break_it", [fill, unplug])
async def test_a_volume_that_fails_costs_its_own_shard_only(
    break_it: Callable[[Path], Callable[[], None]], small_volume: Path, tmp_path: Path
) -> None:
    """Every entry has three copies, and there are three nodes: the other volume takes them."""
    async with _WithTwoVolumes(nodes=3, directory=tmp_path) as cluster:
        log = await cluster.create_log("events", "copyset", replicas=3, min_replicas=3)
        await append_all(log, 10)
        mend = break_it(small_volume)
        try:
            await append_all(log, 15)
            await until(lambda: _is_mentioned(cluster, small_volume))
            assert await read_all(log) == [*range(10), *range(15)]
        finally:
            mend()
        await until(lambda: _is_well(cluster))
        await append_all(log, 3)
        assert await read_all(log) == [*range(10), *range(15), *range(3)]


@pytest.mark.parametrize("small_volume", ["vsn-1+"], indirect=True)
@pytest.mark.parametrize("break_it", [fill, unplug])
@pytest.mark.parametrize("protocol", ["ordered", "chained"])
async def test_a_volume_that_fails_stops_only_the_replicas_on_it(
    protocol: str,
    break_it: Callable[[Path], Callable[[], None]],
    small_volume: Path,
    tmp_path: Path,
) -> None:
    servers = _WithTwoVolumes(nodes=1, directory=tmp_path)
    async with servers as cluster:
        logs = [await cluster.create_log(name, protocol, 1, 1) for name in ("one", "two")]
        for log in logs:  # one on each volume
            await append_all(log, 3)
        mend = break_it(small_volume)
        try:
            await until(lambda: _is_mentioned(cluster, small_volume))
            async with await connect(servers.address, append_timeout_s=4.0) as client:
                appends = [append_all(client.log(log.name), 3) for log in logs]
                outcomes = await asyncio.gather(*appends, return_exceptions=True)
            going = [log for log, end in zip(logs, outcomes, strict=True) if end is None]
            assert going  # an ordered log may get a stream on the other volume
            for log in going:
                assert await read_all(log) == [0, 1, 2, 0, 1, 2]
        finally:
            mend()
        await until(lambda: _is_well(cluster))
        for log in logs:
            await append_all(log, 1)


async def _is_named(cluster: Cluster, volume: Path) -> bool:
    return any(f"volume {volume} failed" in found for found in await conditions_of(cluster, 1))


async def _is_mentioned(cluster: Cluster, volume: Path) -> bool:
    return any(str(volume) in found for found in await conditions_of(cluster, 1))


async def _is_well(cluster: Cluster) -> bool:
    """Return whether the volume works. There may be old data on it, or a sequencer avoids it."""
    return not any(word.startswith("volume ") for word in await conditions_of(cluster, 1))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_lone_replica_goes_on_when_there_is_room_again(
    protocol: str, small_volume: Path, tmp_path: Path
) -> None:
    async with LocalCluster(nodes=1, directory=tmp_path) as cluster:
        log = await cluster.create_log("events", protocol, 1, 1)
        await append_all(log, 5)
        free = fill(small_volume)
        waiting = asyncio.create_task(append_all(log, 15))
        await until(lambda: _is_mentioned(cluster, small_volume))
        free()
        await waiting
        assert await read_all(log) == [*range(5), *range(15)]


def delete_copies(volume: Path) -> None:
    shutil.rmtree(volume / "cid=local" / "snid=1" / "logs")


@pytest.mark.parametrize(
    ("protocol", "break_it", "named"),
    [
        ("ordered", fill, "node 1.*: volume .*: free space"),
        ("copyset", fill, "node 1 takes no copies: volume .*: free space"),
        ("copyset", delete_copies, "node 1 takes no copies: .*are gone: bring them back"),
    ],
)
async def test_without_a_spare_the_node_the_disk_and_a_command_are_named(
    protocol: str,
    break_it: Callable[[Path], Callable[[], None] | None],
    named: str,
    small_volume: Path,
    tmp_path: Path,
) -> None:
    servers = LocalCluster(nodes=3, directory=tmp_path)
    async with servers as cluster:
        log = await cluster.create_log("events", protocol, 1, 3, min_replicas=3)
        await append_all(log, 3)
        break_it(small_volume)
        await until(lambda: _is_mentioned(cluster, small_volume))
        async with await connect(servers.address, append_timeout_s=4.0) as impatient:
            with pytest.raises(LoomError, match=named):
                await append_all(impatient.log("events"), 30)
        await until(log.describe, lambda info: re.search(named, info.streams[0].condition))
        if protocol == "ordered" and break_it is fill:
            advice = "appends continue after `loom log switch events --replicas 2`"
            await until(log.describe, lambda info: advice in info.streams[0].condition)
            await cluster.switch_log("events", replicas=2)
            await append_all(log, 3)
        elif break_it is delete_copies:  # too few nodes are left that could recover the last epoch
            with pytest.raises(InvalidArgument, match=f"cannot be closed.*{named}"):
                await cluster.switch_log("events", replicas=2)


@pytest.mark.parametrize("break_it", [fill, delete_copies])
async def test_copies_go_to_the_other_nodes_and_the_log_can_be_switched(
    break_it: Callable[[Path], Callable[[], None] | None], small_volume: Path, tmp_path: Path
) -> None:
    async with LocalCluster(nodes=3, directory=tmp_path) as cluster:
        log = await cluster.create_log("events", "copyset", 1, 3)
        await append_all(log, 5)
        break_it(small_volume)
        await append_all(log, 15)

        async def is_named() -> bool:
            condition = (await log.describe()).streams[0].condition
            words = "node 1 takes no copies: .* [0-9 a-z]+ 2 of 3 copies"
            return re.search(words, condition) is not None

        await until(is_named)
        await cluster.switch_log("events", replicas=2)
        await append_all(log, 3)
        assert await read_all(log) == [*range(5), *range(15), *range(3)]


async def test_a_chain_without_a_spare_names_the_node_and_the_disk(
    small_volume: Path, tmp_path: Path
) -> None:
    async with LocalCluster(nodes=3, directory=tmp_path) as cluster:
        log = await cluster.create_log("events", "chained", 1, 3)
        fill(small_volume)
        await append_all(log, 15)

        async def is_named() -> bool:
            condition = (await log.describe()).streams[0].condition
            words = "runs with 2 of 3 replicas; node 1 takes nothing: volume .*: free space"
            return re.search(words, condition) is not None

        await until(is_named)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_directory_that_is_deleted_under_a_node_is_noticed(
    protocol: str, tmp_path: Path
) -> None:
    servers = LocalCluster(nodes=4, directory=tmp_path)
    async with servers as cluster:
        log = await cluster.create_log("events", protocol, 1, 3)
        await append_all(log, 5)
        # At once, so that the node does not replace a file of it meanwhile.
        shutil.rmtree((tmp_path / "vsn-1" / "cid=local").rename(tmp_path / "deleted"))
        await until(lambda: _is_missed(cluster))
        await append_all(log, 15)
        await until(lambda: serves_without(log, 1))
        assert await read_all(log) == [*range(5), *range(15)]


async def _is_missed(cluster: Cluster) -> bool:
    return any("gone" in condition for condition in await conditions_of(cluster, 1))


async def test_a_scrub_finds_files_that_are_gone(tmp_path: Path) -> None:
    async with LocalCluster(nodes=3, directory=tmp_path) as cluster:
        log = await cluster.create_log("events", "ordered", 1, 3)
        await append_all(log, 5)
        for segment in (tmp_path / "vsn-2").rglob("*.seg"):
            os.remove(segment)
        (stream,) = (await log.describe()).streams
        await cluster.scrub_stream(stream.id)

        async def is_repaired() -> bool:
            change = await cluster.scrub_stream(stream.id, tell_only=True)
            return sum(scrub.missing_copies for scrub in change.scrubs if not scrub.error) == 1

        await until(is_repaired)
        assert await read_all(log) == [*range(5)]
        assert [*(tmp_path / "vsn-2").rglob("*.seg")]


@pytest.mark.parametrize("small_volume", ["vmr"], indirect=True)
async def test_a_metadata_repository_with_a_full_disk_says_so_at_once(
    small_volume: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    servers = LocalCluster(nodes=1, directory=tmp_path)
    async with servers as cluster:
        log = await cluster.create_log("events", "ordered", 1, 1)
        at = await log.append(b"one")
        free = fill(small_volume)
        async with asyncio.timeout(PATIENCE_S / 3):
            for _ in range(3):
                with pytest.raises(DiskFailed, match=r"metadata\.sqlite"):
                    await cluster.register("large").swap(bytes(100_000), 0)
                with pytest.raises(DiskFailed, match=r"metadata\.sqlite"):
                    await log.checkpoint("reader").set(at.position)
        assert any("metadata.sqlite" in c.text for c in (await cluster.status()).conditions)
        said = [r.getMessage() for r in caplog.records if "metadata.sqlite" in r.getMessage()]
        assert len(said) == 1
        await log.append(b"two")  # rounds have their space already
        free()
        await log.checkpoint("reader").set(at.position)
        await until(cluster.status, lambda status: not status.conditions)


async def test_a_metadata_repository_without_its_directory_ends(tmp_path: Path) -> None:
    servers = LocalCluster(nodes=1, directory=tmp_path)
    async with servers:
        shutil.rmtree(tmp_path / "vmr")
        assert servers.metadata is not None
        async with asyncio.timeout(PATIENCE_S):
            assert "is gone" in str(await servers.metadata.failed)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_node_starts_and_is_read_with_a_full_disk(
    protocol: str, small_volume: Path, tmp_path: Path
) -> None:
    servers = LocalCluster(nodes=1, directory=tmp_path)
    async with servers as cluster:
        log = await cluster.create_log("events", protocol, 1, 1)
        await append_all(log, 5)
        free = fill(small_volume)
        await servers.stop_node(1)
        await servers.start_node(1)
        await until(lambda: _is_mentioned(cluster, small_volume))
        free()
        await append_all(log, 3)
        assert await read_all(log) == [*range(5), *range(3)]

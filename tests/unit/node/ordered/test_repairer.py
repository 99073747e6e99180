"""Broken batches are found, repaired from a peer, and never served; and what a node does when its
disk fails."""

from __future__ import annotations

import asyncio
import errno
import resource
import signal
from pathlib import Path

import pytest
from node_rig import BIRTH, PATIENCE_S, STAMP, STREAM, Nodes
from node_services import ordered_on

from loomlog import limits
from loomlog.core.conditions import Condition, Kind
from loomlog.errors import AlreadyExists, Conflict, Corrupt, InvalidArgument, LoomError
from loomlog.node.volume import Volume
from loomlog.storage.ordered.stream_store import StreamStore
from loomlog.wire import loomlog_pb2 as pb


async def two_replicas(nodes: Nodes) -> int:
    """The stream is whole on nodes 1 and 2, sealed in epoch 2, and ran on both; the last LLSN."""
    await nodes.add(1)
    await nodes.run_alone(1)
    for _ in range(3):
        last = await nodes.append(1, 1, 20)
    await nodes.seal(1, 2, last)
    await nodes.add(2)
    await nodes.seal(2, 2, last)
    assert (await nodes.copy(1, 2, 2)).finished
    await nodes.seal(2, 2, last)
    for node in (2, 1):
        await nodes.unseal(node, 2, 1, 2)
    return last


async def test_a_scrub_finds_nothing_where_nothing_is_broken(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        await two_replicas(nodes)
        progress = await nodes.scrub(1, 1, 2)
        assert (progress.corrupt_batches, progress.repaired_batches, progress.error) == (0, 0, "")
        assert progress.checked_bytes > 60 * 4000


@pytest.mark.parametrize("at", [10, 1000], ids=["header", "body"])
async def test_a_scrub_repairs_flipped_bytes_from_a_peer(tmp_path: Path, at: int) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        last = await two_replicas(nodes)
        sound = nodes.data(1)
        for llsn in (last, 205, 15):
            nodes.flip(1, llsn, at)
        assert nodes.data(1) != sound
        progress = await nodes.scrub(1, 1, 2)
        assert (progress.corrupt_batches, progress.repaired_batches, progress.error) == (3, 3, "")
        assert nodes.data(1) == sound


async def test_a_scrub_says_what_no_peer_could_repair(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        await two_replicas(nodes)
        for node in (1, 2):
            nodes.flip(node, 205)
        nodes.flip(1, 405)
        progress = await nodes.scrub(1, 1, 2)
        assert (progress.corrupt_batches, progress.repaired_batches) == (2, 1)
        assert "LLSN 201 of stream 1 is broken and no other node has it" in progress.error
        assert progress.checked_bytes > 60 * 4000


async def test_a_scrub_on_a_volume_that_fails_for_now_takes_nothing_for_lost(
    tmp_path: Path,
) -> None:
    """The volume may work again, and a replica marked as damaged would not be asked any more."""
    async with Nodes(tmp_path, 2) as nodes:
        await two_replicas(nodes)
        (volume,) = nodes.nodes[1]._disks.volumes
        volume.failed(OSError(errno.EIO, "Input/output error"))
        progress = await nodes.scrub(1, 1, 2)
        assert "Input/output error" in progress.error
        assert not ordered_on(nodes.nodes[1]).held[STREAM].driver.core.damaged


async def test_a_replica_that_is_damaged_when_its_volume_is_back_does_not_fail_the_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("VOLUME_FAILED_S", "VOLUME_LOOK_FAILED_S"):
        monkeypatch.setattr(limits, name, 0.05)
    async with Nodes(tmp_path, 1) as nodes:
        await nodes.add(1)
        await nodes.stop(1)
        first = OSError(errno.EIO, "Input/output error")
        errors: list[Exception] = [first]
        failures: list[BaseException] = []
        fail = Volume.failed

        def failed(volume: Volume, error: BaseException) -> None:
            failures.append(error)
            fail(volume, error)

        def open_store(*_: object) -> StreamStore:
            raise errors.pop() if errors else ValueError("damaged")

        monkeypatch.setattr(StreamStore, "open", open_store)
        monkeypatch.setattr(Volume, "failed", failed)
        await nodes.start(1)
        stores = ordered_on(nodes.nodes[1])._stores
        (volume,) = nodes.nodes[1]._disks.volumes
        assert stores.unserved(()) == {STREAM}
        async with asyncio.timeout(PATIENCE_S):
            while not stores.conditions:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (condition,) = stores.conditions
        assert "it cannot be opened (damaged)" in condition.text
        assert volume.works
        assert failures == [first]


async def test_a_read_of_a_broken_batch_is_repaired_first(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        await two_replicas(nodes)
        (glsn,) = await nodes.read_stream(2, 205, 205)
        sound = nodes.data(1)
        nodes.flip(1, 205)
        assert glsn in await nodes.read(1, glsn)
        assert nodes.data(1) == sound


async def test_a_subscription_over_broken_batches_is_repaired_first(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        last = await two_replicas(nodes)
        sound = nodes.data(1)
        for llsn in (405, 205):
            nodes.flip(1, llsn, at=10)
        expected = await nodes.read_stream(2, 1, last)
        assert await nodes.read_stream(1, 1, last) == expected
        assert nodes.data(1) == sound


async def test_what_no_peer_has_is_not_served(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        last = await two_replicas(nodes)
        (glsn,) = await nodes.read_stream(2, 205, 205)
        for node in (1, 2):
            nodes.flip(node, 205)
        with pytest.raises(Corrupt):
            await nodes.read(1, glsn)
        with pytest.raises(Corrupt):
            await nodes.read_stream(1, 1, last)


async def test_what_no_replica_has_is_a_problem_once_all_were_asked(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        await two_replicas(nodes)
        (glsn,) = await nodes.read_stream(2, 205, 205)
        for node in (1, 2):
            nodes.flip(node, 205)
        stores = ordered_on(nodes.nodes[1])._stores

        async def condition() -> Condition:
            with pytest.raises(Corrupt):
                await nodes.read(1, glsn)
            (found,) = stores.conditions
            assert "LLSN 201 to 210 cannot be read" in found.text
            return found

        await nodes.stop(2)
        assert (await condition()).kind is Kind.DATA_DAMAGED  # node 2 may have it
        await nodes.start(2)
        found = await condition()
        assert found.kind is Kind.DATA_LOST
        assert "no replica has them whole" in found.text
        await nodes.stop(2)
        assert (await condition()).kind is Kind.DATA_LOST


async def test_commits_that_cannot_be_read_make_a_replica_damaged(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        last = await two_replicas(nodes)
        store = ordered_on(nodes.nodes[1]).held[STREAM].driver.store
        store._commits._recent = (store._commits._next, [])  # as if there were many more
        path = min(nodes.path(1).glob("commit/*.cc"))
        content = bytearray(path.read_bytes())
        content[1024 + 30] ^= 1
        path.write_bytes(content)

        progress = await nodes.scrub(1, 1, 2)
        assert "commit record" in progress.error
        await nodes.metadata.until(lambda: nodes.metadata.reports[1, STREAM].damaged)
        assert (await nodes.seal(1, 3, last)).state == pb.SEALING
        await nodes.seal(2, 3, last)
        assert (await nodes.copy(2, 1, 3)).finished
        assert (await nodes.seal(1, 3, last)).state == pb.STREAM_SEALED
        assert await nodes.read_stream(1, 1, last) == await nodes.read_stream(2, 1, last)


# ---- a disk that is full


class FullDisk:
    """No file may grow beyond `size`, as on a disk without room for a larger one."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __enter__(self) -> None:
        self._ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._size, self._before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)
        signal.signal(signal.SIGXFSZ, self._ignored)


async def test_a_replica_on_a_full_disk_serves_reads_and_says_why_it_cannot_be_sealed(
    tmp_path: Path,
) -> None:
    async with Nodes(tmp_path, 1) as nodes:
        await nodes.add(1)
        await nodes.run_alone(1)
        last = await nodes.append(1, 1, 10)
        expected = await nodes.read_stream(1, 1, last)
        with FullDisk(60_000):
            append = asyncio.create_task(nodes.append(1, 1, 20))
            await nodes.metadata.until(lambda: nodes.metadata.reports[1, STREAM].damaged)
            assert nodes.metadata.reports[1, STREAM].state == pb.SEALING
            committed = nodes.metadata.committed(1)
            for _ in range(2):
                with pytest.raises(LoomError, match="File too large"):
                    await nodes.seal(1, 2, committed)
            await nodes.metadata.until(lambda: nodes.metadata.reports[1, STREAM].seal_epoch == 2)
            assert nodes.metadata.reports[1, STREAM].state == pb.SEALING
            with pytest.raises(LoomError, match="was sealed"):
                await append
            assert (await nodes.read_stream(1, 1, last)) == expected
        nodes.metadata.commits_on.clear()
        await nodes.restart(1)
        assert not nodes.metadata.reports[1, STREAM].damaged
        await nodes.run_alone(1, 2, committed)
        assert (await nodes.read_stream(1, 1, last)) == expected
        assert await nodes.append(1, 2, 10) == committed + 100


async def test_a_replica_gets_over_a_full_disk_when_it_is_filled_again(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        await nodes.add(1)
        await nodes.run_alone(1)
        last = await nodes.append(1, 1, 60)
        await nodes.seal(1, 2, last)
        await nodes.add(2)
        await nodes.seal(2, 2, last)
        with FullDisk(100_000):
            progress = await nodes.copy(1, 2, 2)
            assert "File too large" in progress.error
            await nodes.metadata.until(lambda: nodes.metadata.reports[2, STREAM].damaged)
            assert "File too large" in (await nodes.copy(1, 2, 2)).error
        assert (await nodes.copy(1, 2, 2)).finished
        assert (await nodes.seal(2, 2, last)).state == pb.STREAM_SEALED
        assert await nodes.read_stream(2, 1, last) == await nodes.read_stream(1, 1, last)


# ---- replicas that come and go


async def test_only_the_order_that_names_its_stamps_deletes_a_replica(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 1) as nodes:
        await nodes.add(1)
        await nodes.add(1)  # repeated while it is empty: fine
        await nodes.run_alone(1)
        last = await nodes.append(1, 1, 3)
        for life in range(2):
            for stamps in ({}, {"stamp": STAMP + 1}, {"birth": BIRTH + 1}):
                with pytest.raises(AlreadyExists, match="loom node cleanup 1"):
                    await nodes.add(1, **stamps)
            with pytest.raises(Conflict, match=r"stamp is 0000000000005eed.* is for 0{15}7"):
                await nodes.remove(1, stamp=7)
            with pytest.raises(Conflict, match=r"birth 00000000000000b1.* is for 0{15}7"):
                await nodes.remove(1, birth=7)
            with pytest.raises(Conflict):
                await nodes.trim(1, 1, stamp=7)
            assert ordered_on(nodes.nodes[1]).held[STREAM].driver.store.last_llsn == last
            if not life:
                await nodes.restart(1)
        registered = nodes.metadata.registrations[1]
        assert [report.stamp for report in registered.uncommit_reports] == [STAMP]
        assert (registered.highest_log_id, registered.highest_stream_id) == (1, STREAM)
        await nodes.remove(1, birth=BIRTH)
        assert not nodes.path(1).exists()
        await nodes.add(1, birth=BIRTH + 1)
        assert not any(nodes.data(1).values())
        await nodes.remove(1)
        with pytest.raises(InvalidArgument, match="no stamp"):
            await nodes.add(1, stamp=0)

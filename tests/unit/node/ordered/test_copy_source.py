"""Synchronisation between two real nodes (docs/design/ordered.md)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from node_rig import STAMP, STREAM, Nodes

from loomlog.errors import Conflict, LoomError, Trimmed, Unavailable
from loomlog.net.endpoints import connect
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec


async def sealed_source(nodes: Nodes, batches: int = 60) -> int:
    """Node 1 has a sealed stream with entries, in epoch 2; the last LLSN."""
    await nodes.add(1)
    await nodes.run_alone(1)
    last = 0
    for _ in range(3):  # several commits
        last = await nodes.append(1, 1, batches // 3)
    assert (await nodes.seal(1, 2, last)).state == pb.STREAM_SEALED
    return last


async def is_whole(nodes: Nodes, node: int, epoch: int, last: int, first: int = 1) -> None:
    """The node can be sealed, has what node 1 has, and all that survives a restart."""
    assert (await nodes.seal(node, epoch, last)).state == pb.STREAM_SEALED
    expected = await nodes.read_stream(1, first, last)
    assert await nodes.read_stream(node, first, last) == expected
    ours, theirs = nodes.batches(1), nodes.batches(node)
    assert {llsn: ours[llsn] for llsn in theirs} == theirs
    await nodes.restart(node)
    assert nodes.metadata.committed(node) == last
    assert not nodes.metadata.reports[node, STREAM].damaged
    assert await nodes.read_stream(node, first, last) == expected


async def test_an_empty_replica_is_filled(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        last = await sealed_source(nodes)
        await nodes.add(2)
        assert (await nodes.seal(2, 2, last)).state == pb.SEALING

        progress = await nodes.copy(1, 2, 2)
        assert (progress.finished, progress.error) == (True, "")
        assert (progress.copied_llsn, progress.last_llsn) == (last, last)
        assert progress.copied_bytes > 60 * 4000
        await nodes.metadata.until(lambda: nodes.metadata.committed(2) == last)

        await is_whole(nodes, 2, 2, last)
        again = await nodes.copy(1, 2, 2)  # harmless, and said precisely
        assert (again.finished, again.copied_bytes) == (True, 0)


async def test_a_replica_that_is_behind_gets_the_rest_only(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        middle = await sealed_source(nodes)
        await nodes.add(2)
        await nodes.seal(2, 2, middle)
        await nodes.copy(1, 2, 2)
        await nodes.unseal(1, 2, 1)
        last = await nodes.append(1, 2, 10)
        await nodes.seal(1, 3, last)
        await nodes.seal(2, 3, last)

        progress = await nodes.copy(1, 2, 3)
        assert progress.finished
        assert 10 * 4000 < progress.copied_bytes < 11 * 5000
        await is_whole(nodes, 2, 3, last)


async def test_what_was_written_and_not_committed_is_dropped_first(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        last = await sealed_source(nodes)
        await nodes.add(2)
        nodes.metadata.commits_on.discard(2)
        await nodes.seal(2, 1, 0)
        await nodes.unseal(2, 1, 2)
        append = asyncio.create_task(nodes.append(2, 1, 3))  # never committed
        await nodes.metadata.until(
            lambda: nodes.metadata.reports[2, STREAM].uncommitted_llsn_length == 30
        )
        await nodes.seal(2, 2, last)  # it might have them; the copy drops them
        assert (await nodes.copy(1, 2, 2)).finished
        assert await asyncio.wait_for(append, 10)  # answered: these LLSNs are committed now
        await is_whole(nodes, 2, 2, last)


async def test_appends_of_a_primary_that_missed_an_epoch_are_not_taken_for_others(
    tmp_path: Path,
) -> None:
    """The primary's LLSNs were given to other entries meanwhile: the client must find out by
    itself."""
    async with Nodes(tmp_path, 2) as nodes:
        last = await sealed_source(nodes)
        await nodes.add(2)
        nodes.metadata.commits_on.discard(2)
        await nodes.seal(2, 1, 0)
        await nodes.unseal(2, 1, 2)
        append = asyncio.create_task(nodes.append(2, 1, 1))
        await nodes.metadata.until(
            lambda: nodes.metadata.reports[2, STREAM].uncommitted_llsn_length == 10
        )
        await nodes.seal(1, 5, last)
        await nodes.seal(2, 5, last)
        assert await asyncio.wait_for(append, 10) == 9  # no position in the answer
        assert (await nodes.copy(1, 2, 5)).finished
        await is_whole(nodes, 2, 5, last)


async def test_a_destination_behind_a_trimmed_hole_is_wiped(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        old = await sealed_source(nodes)
        await nodes.add(2)
        await nodes.seal(2, 2, old)
        await nodes.copy(1, 2, 2)
        await nodes.unseal(1, 2, 1)
        for _ in range(4):
            last = await nodes.append(1, 2, 30)
        await nodes.seal(1, 3, last)
        (first_glsn,) = await nodes.read_stream(1, old + 305, old + 305)  # inside of a batch
        await nodes.trim(1, first_glsn - 1)
        await nodes.seal(2, 3, last)

        assert (await nodes.copy(1, 2, 3)).finished
        with pytest.raises(Trimmed):
            await nodes.read(2, first_glsn - 1)
        assert first_glsn in await nodes.read(2, first_glsn)
        assert min(nodes.data(2)) == f"{old + 301:020d}.seg"
        await is_whole(nodes, 2, 3, last, first=old + 305)
        with pytest.raises(Trimmed):
            await nodes.read(2, first_glsn - 1)


async def test_a_destination_is_wiped_when_the_source_has_trimmed_everything(
    tmp_path: Path,
) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        last = await sealed_source(nodes)
        await nodes.trim(1, nodes.metadata.high_watermark)
        await nodes.add(2)
        await nodes.seal(2, 2, last)
        assert (await nodes.copy(1, 2, 2)).finished
        assert (await nodes.seal(2, 2, last)).state == pb.STREAM_SEALED
        await nodes.restart(2)
        assert nodes.metadata.committed(2) == last
        with pytest.raises(Trimmed):
            await nodes.read(2, nodes.metadata.high_watermark)


@pytest.mark.parametrize("restarted", [1, 2], ids=["source", "destination"])
async def test_a_copy_that_is_cut_off_goes_on_where_it_was(tmp_path: Path, restarted: int) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        await nodes.add(1)
        await nodes.run_alone(1)
        last = await nodes.append(1, 1, 40, size=100_000)
        await nodes.seal(1, 2, last)
        await nodes.add(2)
        await nodes.seal(2, 2, last)
        slowly = await nodes.ask_to_copy(1, 2, 2, bytes_per_s=100_000)
        assert not slowly.finished
        await nodes.metadata.until(lambda: nodes.metadata.committed(2) > 0)

        await nodes.restart(restarted)
        assert 0 < nodes.metadata.committed(2) < last
        if restarted == 1:
            await nodes.seal(1, 2, last)
            assert nodes.metadata.committed(1) == last
        progress = await nodes.copy(1, 2, 2)
        if progress.error:  # the source had not noticed yet that the other was gone
            progress = await nodes.copy(1, 2, 2)
        assert progress.finished
        assert 0 < progress.copied_bytes < 39 * 100_000
        await is_whole(nodes, 2, 2, last)


async def test_a_seal_ends_a_copy_and_the_next_goes_on(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        await nodes.add(1)
        await nodes.run_alone(1)
        last = await nodes.append(1, 1, 40, size=100_000)
        await nodes.seal(1, 2, last)
        await nodes.add(2)
        await nodes.seal(2, 2, last)
        await nodes.ask_to_copy(1, 2, 2, bytes_per_s=100_000)
        for node in (1, 2):
            await nodes.seal(node, 3, last)
        assert (await nodes.copy(1, 2, 3)).finished
        await is_whole(nodes, 2, 3, last)


async def test_a_stream_is_copied_while_it_runs(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        await nodes.add(1)
        await nodes.run_alone(1)
        await nodes.append(1, 1, 20)
        await nodes.add(2)  # in no epoch yet
        appends = asyncio.create_task(nodes.append(1, 1, 100))
        assert (await nodes.copy(1, 2, 1)).finished
        last = await appends
        for node in (1, 2):
            await nodes.seal(node, 2, last)
        assert (await nodes.copy(1, 2, 2)).finished
        await is_whole(nodes, 2, 2, last)


async def test_two_sources_at_once_are_harmless(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 3) as nodes:
        last = await sealed_source(nodes, batches=150)
        for node in (2, 3):
            await nodes.add(node)
            await nodes.seal(node, 2, last)
        await nodes.copy(1, 2, 2)
        await nodes.seal(2, 2, last)
        first, second = await asyncio.gather(nodes.copy(1, 3, 2), nodes.copy(2, 3, 2))
        if not (first.finished or second.finished):
            assert (await nodes.copy(2, 3, 2)).finished
        await is_whole(nodes, 3, 2, last)


async def test_a_running_replica_is_not_filled(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        last = await sealed_source(nodes)
        await nodes.add(2)
        await nodes.run_alone(2, epoch=2)
        progress = await nodes.copy(1, 2, 2)
        assert "no copy of epoch 2 wanted" in progress.error
        assert progress.last_llsn == last


async def test_what_does_not_check_out_is_not_taken(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        last = await sealed_source(nodes)
        await nodes.add(2)
        await nodes.seal(2, 2, last)
        peer = await connect(nodes.replica(2).address, Codec("vsn"), nodes)
        good = pb.FetchBatches(log_stream_id=STREAM, first_llsn=1, last_llsn=20)
        client = await nodes.client(1)
        _, stored = await client.request(pb.Frame(fetch_batches=good))

        batches = pb.SyncBatches(log_stream_id=STREAM, seal_epoch=2)
        with pytest.raises(Unavailable):  # it was not asked where to begin
            await peer.request(pb.Frame(sync_batches=batches), [stored])
        start = pb.SyncStart(log_stream_id=STREAM, seal_epoch=2, first_llsn=1, last_llsn=last)
        with pytest.raises(Conflict, match="keeps stream 1"):  # it may give way to nothing else
            await peer.request(pb.Frame(sync_start=start))
        start.stamp = STAMP
        answer, _ = await peer.request(pb.Frame(sync_start=start))
        assert answer.sync_started.next_llsn == 1
        broken = bytearray(stored)
        broken[300] ^= 1
        for commits, payload in (
            ([(1, 20)], broken),
            ([(1, 10)], stored),
            ([(1, 21)], stored),
            ([(1, 15), (16, 5)], stored),
            ([(1, 20)], stored[len(stored) // 2 :]),
        ):
            batches = pb.SyncBatches(
                log_stream_id=STREAM,
                seal_epoch=2,
                commits=[
                    pb.LogStreamCommitResult(
                        log_stream_id=STREAM,
                        committed_llsn_offset=llsn,
                        committed_glsn_offset=llsn,
                        committed_glsn_length=length,
                        high_watermark=llsn + length,
                    )
                    for llsn, length in commits
                ],
            )
            with pytest.raises(LoomError):
                await peer.request(pb.Frame(sync_batches=batches), [payload])
        peer.close()
        assert (await nodes.copy(1, 2, 2)).finished
        await is_whole(nodes, 2, 2, last)


async def test_a_corrupt_batch_is_never_copied(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 3) as nodes:
        last = await sealed_source(nodes)
        for node in (2, 3):
            await nodes.add(node)
            await nodes.seal(node, 2, last)
        await nodes.copy(1, 2, 2)
        await nodes.seal(2, 2, last)
        nodes.flip(1, 205)

        progress = await nodes.copy(1, 3, 2)  # node 1 has not run with node 2: it knows no peer
        assert "checksum" in progress.error
        assert nodes.metadata.committed(3) <= 200

        assert (await nodes.copy(2, 3, 2)).finished
        assert (await nodes.seal(3, 2, last)).state == pb.STREAM_SEALED
        assert nodes.data(3) == nodes.data(2)


async def test_a_corrupt_destination_is_wiped_and_filled(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 2) as nodes:
        last = await sealed_source(nodes, batches=150)
        await nodes.add(2)
        await nodes.seal(2, 2, last)
        await nodes.copy(1, 2, 2)
        await nodes.stop(2)
        min(nodes.path(2).glob("data/*.seg")).unlink()
        await nodes.start(2)
        assert nodes.metadata.reports[2, STREAM].damaged
        with pytest.raises(Unavailable, match="damaged"):
            await nodes.read(2, 11)
        assert (await nodes.seal(2, 2, last)).state == pb.SEALING

        assert (await nodes.copy(1, 2, 2)).finished
        await is_whole(nodes, 2, 2, last)

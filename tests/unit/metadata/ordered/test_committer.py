"""Reports in, commits out (docs/design/ordered.md, "Report and commit"), over real connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hand_worker import HandWorker
from small_cluster import SmallCluster, all_run, commits, told, turns, write_all

from loomlog.errors import LoomError, RolledBack, Unavailable
from loomlog.metadata.rounds.round_files import FileRoundLog
from loomlog.wire import loomlog_pb2 as pb


async def test_what_all_replicas_have_written_gets_positions(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(streams=1, replicas=2)
        nodes[0].write(1, 5)
        nodes[1].write(1, 3)
        await told(nodes[0], 1, 3)
        await told(nodes[1], 1, 3)
        assert await cluster.bounds() == (1, 3)
        nodes[1].write(1, 2)
        await told(nodes[0], 1, 5)
        assert commits(nodes[0], 1) == [(1, 1, 3), (4, 4, 2)]


async def test_streams_of_a_log_share_one_sequence_of_positions(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(streams=2, replicas=2)
        for stream_id in (2, 1, 2):
            before = (await cluster.bounds())[1]
            write_all(nodes, stream_id, 2)
            await told(nodes[0], stream_id, before + 2)
        assert commits(nodes[0], 1) == [(3, 1, 2)]
        assert commits(nodes[0], 2) == [(1, 1, 2), (5, 3, 2)]


async def test_a_stream_that_got_nothing_still_learns_the_high_watermark(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(streams=2, replicas=2)
        write_all(nodes, 1, 4)
        for node in nodes:
            await told(node, 2, 4)
        assert commits(nodes[0], 2) == []


async def test_logs_have_positions_of_their_own(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(1)
        await cluster.create("a", replicas=1)
        await cluster.create("b", replicas=1)
        nodes[0].write(1, 7)
        nodes[0].write(2, 2)
        await told(nodes[0], 1, 7)
        await told(nodes[0], 2, 2)
        assert await cluster.bounds("a") == (1, 7)
        assert await cluster.bounds("b") == (1, 2)


async def test_no_node_hears_of_a_round_before_it_is_durable(tmp_path: Path) -> None:
    worker = HandWorker()
    async with SmallCluster(tmp_path, worker=worker) as cluster:
        (node,) = await cluster.add_nodes(1)
        await cluster.create(replicas=1)
        node.write(1, 1)
        await worker.arrived.wait()
        node.write(1, 2)
        answer = await node.ask(pb.Frame(get_bounds=pb.GetBounds(name="events")))
        assert answer.bounds.tail == 0
        assert node.commits == []

        worker.work()
        await told(node, 1, 1)
        await worker.arrived.wait()
        assert len(worker.jobs) == 1, "the next round takes what was written meanwhile"
        worker.work()
        await told(node, 1, 3)
        assert commits(node, 1) == [(1, 1, 1), (2, 2, 2)]


async def test_rounds_of_several_logs_go_to_a_node_in_one_message(tmp_path: Path) -> None:
    worker = HandWorker()
    async with SmallCluster(tmp_path, worker=worker) as cluster:
        (node,) = await cluster.add_nodes(1)
        for name in ("a", "b", "c"):
            await cluster.create(name, replicas=1)
        for replica in node.replicas.values():
            replica.next_llsn = 2
            replica.written(1)
        node.report(1, 2, 3)
        await worker.arrived.wait()
        worker.by_itself = True
        worker.work()  # the first log's round went alone, the others together
        for stream_id in (1, 2, 3):
            await told(node, stream_id, 1)
        assert node.commit_requests == 2


async def test_commits_that_were_missed_are_sent_again_when_asked_for(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        nodes[1].applies_commits = False
        for tail in (2, 4):
            write_all(nodes, 1, 2)
            await told(nodes[0], 1, tail)
        await nodes[1].until(lambda: nodes[1].commit_requests == 2)
        nodes[1].applies_commits = True
        write_all(nodes, 1, 2)  # its commit does not follow: the node asks for all before
        await told(nodes[1], 1, 6)
        assert [length for _, _, length in commits(nodes[1], 1)] == [2, 2, 2]


async def test_a_node_that_reconnects_is_told_what_it_missed(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        nodes[1].applies_commits = False
        write_all(nodes, 1, 3)
        await told(nodes[0], 1, 3)
        await nodes[1].until(lambda: nodes[1].commit_requests == 1)
        await nodes[1].disconnect()
        nodes[1].applies_commits = True
        await nodes[1].join(cluster.address)
        await told(nodes[1], 1, 3)
        assert "seal 1 epoch 2" not in nodes[0].orders, "a short loss of the connection is nothing"


async def test_rounds_that_leave_out_streams_follow_on_those_of_an_earlier_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SmallCluster(tmp_path, round_file_bytes=1024) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(streams=3, replicas=2)
        tail = 0
        for record_format in (0, 1, 1, 0):
            monkeypatch.setattr(FileRoundLog, "record_format", record_format)
            await cluster.restart_repository()
            for node in nodes:
                await node.join(cluster.address)
            for stream_id in (1, 2) * 10:  # the file is replaced several times
                write_all(nodes, stream_id, 1)
                tail += 1
                await told(nodes[0], stream_id, tail)
        assert [llsn for _, llsn, _ in commits(nodes[0], 1)] == list(range(1, 41))
        assert [glsn for glsn, _, _ in commits(nodes[1], 2)] == list(range(2, 81, 2))
        assert commits(nodes[0], 3) == []


async def test_a_restarted_repository_goes_on_where_it_was(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(streams=2, replicas=2)
        write_all(nodes, 1, 3)
        write_all(nodes, 2, 4)
        for stream_id in (1, 2):
            await told(nodes[0], stream_id, 7)
        nodes[1].applies_commits = False
        write_all(nodes, 1, 1)
        await told(nodes[0], 1, 8)

        await cluster.restart_repository()
        nodes[1].applies_commits = True
        assert (await cluster.describe()).tail == 8
        for node in nodes:
            await node.join(cluster.address)
        assert await cluster.bounds() == (1, 8)
        await told(nodes[1], 1, 8)  # durable before the restart: it holds
        write_all(nodes, 2, 1)
        await told(nodes[0], 2, 9)
        assert commits(nodes[0], 2)[-1] == (9, 5, 1)
        assert {r.state for n in nodes for r in n.replicas.values()} == {"running"}


async def test_positions_survive_many_files_of_rounds(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, round_file_bytes=1024) as cluster:
        (node,) = await cluster.add_nodes(1)
        await cluster.create("quiet", replicas=1)
        node.write(1, 5)
        await told(node, 1, 5)
        await cluster.create("busy", replicas=1)
        for tail in range(1, 40):
            node.write(2, 1)
            await told(node, 2, tail)
        assert not (tmp_path / "vmr/rounds" / "rounds-00000001.log").exists()
        await cluster.restart_repository()
        await node.join(cluster.address)
        assert await cluster.bounds("quiet") == (1, 5)
        assert await cluster.bounds("busy") == (1, 39)


async def test_a_replica_that_cannot_use_its_commits_is_not_flooded(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        write_all(nodes, 1, 3)
        await told(nodes[1], 1, 3)
        nodes[1].refuse["sync_start"] = Unavailable("not now")
        # It lost what it had written; every commit sent to it makes it ask again.
        await nodes[1].crash()
        context = nodes[1].replicas[1].context
        context.high_watermark = context.stored_high_watermark = 0
        context.uncommitted_llsn_begin = context.uncommitted_llsn_end = 1
        before = nodes[1].commit_requests
        await nodes[1].restart(cluster.address)
        await nodes[1].until(lambda: nodes[1].commit_requests > before + 1)
        for _ in range(20):
            await nodes[1].ask(pb.Frame(get_bounds=pb.GetBounds(name="events")))
        assert nodes[1].commit_requests <= before + 6  # once more after each seal
        assert (await cluster.describe()).streams[0].state != pb.RUNNING


async def test_nothing_is_committed_before_a_round_log_that_failed_is_written(
    tmp_path: Path,
) -> None:
    worker = HandWorker()
    async with SmallCluster(tmp_path, worker=worker) as cluster:
        (node,) = await cluster.add_nodes(1)
        await cluster.create(replicas=1)
        node.write(1, 1)
        await worker.arrived.wait()
        worker.fail_next(OSError(28, "No space left on device"))
        await turns()
        assert node.commits == []
        worker.arrived.clear()
        await worker.arrived.wait()  # it is tried again by itself
        assert node.commits == []
        worker.work()
        await told(node, 1, 1)


async def test_a_log_whose_rounds_were_lost_stops_instead_of_giving_positions_twice(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        write_all(nodes, 1, 3)
        for node in nodes:
            await told(node, 1, 3)
        await lose_rounds(cluster, tmp_path / "vmr")
        tail = asyncio.ensure_future(cluster.bounds())  # asked before any node tells
        for node in nodes:
            await node.join(cluster.address)
        write_all(nodes, 1, 1)
        await cluster.create("other", replicas=2)
        write_all(nodes, 2, 1)
        await told(nodes[0], 2, 1)  # a round of the first log would have been before it
        assert commits(nodes[0], 1) == [(1, 1, 3)]
        with pytest.raises(RolledBack, match="up to position 3, the round log ends at 0"):
            await tail
        with pytest.raises(RolledBack, match="loom metadata rebuild"):
            await cluster.trim(1)
        assert await cluster.bounds("other") == (1, 1)


async def test_nothing_is_repaired_in_a_log_whose_rounds_were_lost(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(3)
        await cluster.create(replicas=2)
        write_all(nodes, 1, 3)
        holders = [node for node in nodes if 1 in node.replicas]
        for node in holders:
            await told(node, 1, 3)
        await lose_rounds(cluster, tmp_path / "vmr")
        epoch = (await cluster.stream()).seal_epoch
        await asyncio.gather(*(node.join(cluster.address) for node in nodes))
        await cluster.until(lambda stream: "rounds are lost" in stream.condition)
        await holders[0].crash()
        found = await cluster.stream()
        assert (found.state, found.seal_epoch, found.joining_node) == (pb.SEALING, epoch, 0)
        assert "rounds are lost" in found.condition
        assert (await cluster.describe()).tail == 3, "the last position that anybody knows"
        request = pb.SwitchLog(name="events", protocol="chained")
        with pytest.raises(LoomError, match="stays as it is: rounds are lost"):
            await cluster.client.ask(pb.Frame(switch_log=request))


async def lose_rounds(cluster: SmallCluster, directory: Path) -> None:
    """Restart the vmr after its disk forgot what it had written into the file of rounds."""
    await cluster.repository.stop()
    (rounds,) = (directory / "rounds").iterdir()
    data = rounds.read_bytes()
    rounds.write_bytes(data[:64] + bytes(len(data) - 64))
    await cluster.client.until(lambda: cluster.client.connection is None)
    await cluster.start_repository()


async def test_a_report_of_somebody_who_never_registered_counts_for_nothing(
    tmp_path: Path,
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        (node,) = await cluster.add_nodes(1)
        await cluster.create(replicas=1)
        report = pb.LogStreamUncommitReport(
            log_stream_id=1,
            uncommitted_llsn_offset=1,
            uncommitted_llsn_length=9,
            seal_epoch=1,
            state=pb.RUNNING,
        )
        message = pb.GetReportResponse(storage_node_id=1, uncommit_reports=[report])
        assert cluster.client.connection is not None
        cluster.client.connection.send(pb.Frame(report=message))
        assert await cluster.bounds() == (1, 0)
        node.write(1, 1)
        await told(node, 1, 1)


async def test_entries_dropped_by_a_seal_are_not_committed_after_the_unseal(
    tmp_path: Path,
) -> None:
    """A report from before the seal must not count in the epoch after it."""
    async with SmallCluster(tmp_path) as cluster:
        nodes = await cluster.add_nodes(2)
        await cluster.create(replicas=2)
        for node in nodes:
            node.refuse["seal"] = Unavailable("later")
            node.reports_orders = False
        nodes[0].replicas[1].self_seal()
        nodes[0].report(1)
        while (await cluster.describe()).streams[0].seal_epoch < 2:
            pass
        write_all(nodes, 1, 5)  # too late, in the old epoch
        for node in nodes:
            await node.ask(pb.Frame(get_bounds=pb.GetBounds(name="events")))
            node.refuse.clear()
        await all_run(nodes, 1, epoch=2)
        while (await cluster.describe()).streams[0].state != pb.RUNNING:
            pass
        assert [node.replicas[1].next_llsn for node in nodes] == [1, 1]
        write_all(nodes, 1, 2)
        await told(nodes[0], 1, 2)
        assert commits(nodes[0], 1) == [(1, 1, 2)]
        assert await cluster.bounds() == (1, 2)

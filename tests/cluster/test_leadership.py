"""Several metadata repositories in one process: one leads, and when it goes another takes over."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from poll import until

from loomlog import connect, errors
from loomlog.client.cluster import Cluster
from loomlog.metadata import MetadataRepository
from loomlog.metadata.leader import takeover
from loomlog.metadata.ordered.keeper import OrderedKeeper
from loomlog.net import endpoints
from loomlog.testing import LocalCluster
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import OnlyAnswers

PATIENCE_S = 30.0


async def test_takeover_after_takeover_keeps_every_entry_and_its_place() -> None:
    local = LocalCluster(nodes=3, metadata=3)
    async with local as cluster:
        log = await cluster.create_log("events", streams=2, replicas=3)
        expected = []
        led = set()
        for number in range(4):
            leader = local.leader
            assert leader is not None
            led.add(leader)
            under_way = asyncio.ensure_future(log.append_many([b"%d" % number] * 3))
            await local.stop_metadata(leader)
            expected += [(at.position, b"%d" % number) for at in await under_way]
            await until(lambda gone=leader: local.leader not in (None, gone))  # type: ignore[misc, arg-type]
            await local.start_metadata(leader)
        assert len(led) > 1
        found = [(e.position, e.value) async for e in log.subscribe(stop=await log.tail())]
        assert found == sorted(expected)
        status = await cluster.status()
        assert status.leader == local.leader
        assert status.leader_epoch >= 5
        assert [member.id for member in status.members] == [1, 2, 3]


async def test_a_leader_that_stops_resigns_before_its_term_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others do not wait until they would look again, which here is 5 s later."""
    local = LocalCluster(nodes=1, metadata=3, leader_silence_s=40.0)
    async with local as cluster:
        leader = local.leader
        assert leader is not None
        ended = asyncio.Event()
        end_term = MetadataRepository.end_term
        stopped = local.repositories[leader]

        async def late(self: MetadataRepository) -> None:
            if self is stopped:
                await ended.wait()
            await end_term(self)

        assert stopped._leadership is not None
        monkeypatch.setattr(stopped._leadership, "_end_term", lambda: late(stopped))
        stopping = asyncio.ensure_future(local.stop_metadata(leader))
        async with asyncio.timeout(4.0):
            await until(lambda: local.leader not in (None, leader))
        ended.set()
        await stopping
        await cluster.create_log("events", replicas=1)


async def test_any_of_them_may_be_asked() -> None:
    local = LocalCluster(nodes=1, metadata=3)
    async with local as cluster:
        await cluster.create_log("events", replicas=1)
        for address in local.address.split(","):
            async with await connect(address) as other:
                assert [log.name for log in await other.logs()] == ["events"]
                await other.log("events").append(b"x")
        assert await cluster.log("events").tail() == 3


async def test_without_a_majority_nothing_is_decided_until_there_is_one() -> None:
    local = LocalCluster(nodes=1, metadata=3)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append(b"before")
        followers = [number for number in local.repositories if number != local.leader]
        for number in followers:
            await local.stop_metadata(number)
        async with await connect(local.address, request_timeout_s=0.5) as impatient:
            with pytest.raises(errors.Retryable):
                await impatient.logs()
        append = asyncio.ensure_future(log.append(b"waits"))
        await asyncio.sleep(0.1)
        assert not append.done()
        await local.start_metadata(followers[0])
        assert (await append).position == 2


async def test_a_cluster_that_was_stopped_goes_on_where_it_was() -> None:
    local = LocalCluster(nodes=2, metadata=3)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=2)
        assert (await log.append(b"1")).position == 1
        for number in (1, 2, 3):
            await local.stop_metadata(number)
        for number in (3, 2, 1):
            await local.start_metadata(number)
        assert (await log.append(b"2")).position == 2
        await cluster.create_log("more", replicas=1)
        assert [found.name for found in await cluster.logs()] == ["events", "more"]


async def test_who_does_not_lead_says_who_does() -> None:
    local = LocalCluster(nodes=1, metadata=3)
    async with local:
        while not all([await _role(local, number) for number in (1, 2, 3)]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        leading = local.repositories[local.leader or 0]
        for number, repository in local.repositories.items():
            status = await repository.status()
            if number != local.leader:
                assert (status["role"], status["leader"]) == ("follower", local.leader)
                assert status["leader_address"] == leading.address
                assert "loomlog_metadata_leads 0" in await repository.metrics()
        assert "loomlog_metadata_leads 1" in await leading.metrics()
        status = await leading.status()
        assert status["role"] == "leader"
        found = {member["id"]: member["leads"] for member in status["members"]}
        assert found == {member: member == local.leader for member in (1, 2, 3)}


async def test_nothing_of_a_term_goes_on_when_another_one_leads() -> None:
    local = LocalCluster(nodes=1, metadata=3)
    async with local as cluster:
        await cluster.create_log("events", replicas=1)
        replaced = local.repositories[local.leader or 0]
        term, ended = replaced.term, asyncio.Event()
        assert term is not None

        async def takes_a_while_to_end() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(10):
                    await asyncio.sleep(0)
                ended.set()

        assert replaced._leadership is not None
        assert replaced._front.requests is not None
        replaced._front.requests.spawn(takes_a_while_to_end())
        forgets = pb.LeaderBeat(epoch=term.leader.epoch, leader=term.leader.member)
        replaced._leadership.beat = lambda: forgets  # type: ignore[method-assign]
        await until(lambda: replaced.term is None)
        await until(ended.is_set)
        ordered = term.keepers["ordered"]
        assert isinstance(ordered, OrderedKeeper)
        await until(lambda: not ordered.committer.logs)


async def test_one_that_lost_its_disk_is_filled_and_counts_again(tmp_path: Path) -> None:
    local = LocalCluster(nodes=2, metadata=3, directory=tmp_path)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=2)
        await log.append_many([b"before"] * 3)
        leader = local.leader
        empty = next(number for number in (1, 2, 3) if number != leader)
        await local.stop_metadata(empty)
        shutil.rmtree(tmp_path / f"vmr-{empty}")
        await local.start_metadata(empty)
        await members_are(cluster, 1, 2, 3)
        await local.stop_metadata(leader or 0)
        assert (await log.append(b"after")).position == 4


async def test_those_that_lost_all_disks_decide_nothing_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "TAKEOVER_S", 0.5)
    local = LocalCluster(nodes=1, metadata=3, directory=tmp_path)
    async with local as cluster:
        await (await cluster.create_log("events", replicas=1)).append(b"before")
        for number in (1, 2, 3):
            await local.stop_metadata(number)
            shutil.rmtree(tmp_path / f"vmr-{number}")
        for number in (1, 2, 3):
            await local.start_metadata(number)
        async with await connect(local.address, request_timeout_s=2.0) as impatient:
            while not any([await _waits_for_rebuild(local, n) for n in (1, 2, 3)]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            with pytest.raises(errors.NotLeader):
                await impatient.logs()
        assert local.leader is None


async def _waits_for_rebuild(local: LocalCluster, number: int) -> bool:
    return "loom metadata rebuild" in (await local.repositories[number].status())["waits_for"]


async def test_one_is_added_and_another_removed_while_appends_go_on() -> None:
    local = LocalCluster(nodes=2, metadata=3)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=2)
        appended = await log.append_many([b"before"] * 3)
        await local.start_metadata(4)
        await cluster.add_metadata(4, local.repositories[4].address)
        appended += await log.append_many([b"with four"] * 3)
        await members_are(cluster, 1, 2, 3, 4)

        members = {1, 2, 3, 4}
        for gone in (2, 1, 3):  # whoever leads is among them
            await cluster.remove_metadata(gone)
            members.remove(gone)
            appended += await log.append_many([b"without %d" % gone] * 3)
            await members_are(cluster, *members)
            await local.stop_metadata(gone)
        assert local.leader == 4
        assert [at.position for at in appended] == list(range(1, 16))
        assert len([e async for e in log.subscribe(stop=15)]) == 15


async def test_only_one_that_runs_is_added_and_the_last_one_stays() -> None:
    async with LocalCluster(nodes=1, metadata=2) as cluster:
        with pytest.raises(errors.InvalidArgument, match="start it first"):
            await cluster.add_metadata(3, "127.0.0.1:1")
        with pytest.raises(errors.NotFound):
            await cluster.remove_metadata(7)
        with pytest.raises(errors.AlreadyExists):
            await cluster.add_metadata(2, (await cluster.status()).members[0].address)
        with pytest.raises(errors.InvalidArgument, match="metadata repository 2 runs at"):
            await cluster.add_metadata(3, (await cluster.status()).members[1].address)
        await cluster.remove_metadata(1)
        await members_are(cluster, 2)
        with pytest.raises(errors.InvalidArgument, match="last"):
            await cluster.remove_metadata(2)
    async with LocalCluster(nodes=1) as alone:
        with pytest.raises(errors.InvalidArgument, match="alone"):
            await alone.remove_metadata(1)


async def members_are(cluster: Cluster, *numbers: int) -> None:
    """Wait until exactly these members are reachable and up to date."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                members = (await cluster.status()).members
            except errors.Retryable:
                members = ()
            settled = all(m.reachable and not m.lag and not m.leaving for m in members)
            if settled and [member.id for member in members] == list(numbers):
                return
            await asyncio.sleep(0.01)


async def _role(local: LocalCluster, number: int) -> bool:
    status = await local.repositories[number].status()
    return status["role"] == "leader" or bool(status["hears_leader"])


async def test_no_peer_can_seal_a_member_for_an_epoch_that_was_not_granted() -> None:
    """Such a seal stopped the cluster for good: no real epoch could ever be higher."""
    local = LocalCluster(nodes=1, metadata=3)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        epoch = (await cluster.status()).leader_epoch
        codec = Codec("client")
        for number, repository in local.repositories.items():
            peer = await endpoints.connect(repository.address, codec, OnlyAnswers())
            for bad_epoch in (epoch, epoch + 1, (1 << 63) - 1, (1 << 64) - 1):
                seal = pb.RoundSeal(epoch=bad_epoch, leader=9, address="evil:1", member=number)
                with pytest.raises(errors.Unavailable, match="knows no leader"):
                    await peer.request(pb.Frame(round_seal=seal))
            peer.close()
        await log.append(b"x")
        leader = local.leader
        assert leader is not None
        assert (await cluster.status()).leader_epoch == epoch
        for follower in set(local.repositories) - {leader}:  # nor has one of them stored it
            await local.stop_metadata(follower)
            await local.start_metadata(follower)
        await members_are(cluster, 1, 2, 3)
        await local.stop_metadata(leader)
        await log.append(b"y")  # a takeover is still possible


async def test_what_a_peer_says_of_the_leader_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = LocalCluster(nodes=1, metadata=3)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        leader = local.repositories[local.leader or 0]
        beat = leader._beat()
        lie = pb.LeaderBeat(epoch=(1 << 64) - 1, leader=9, address="evil:1", heard=True)
        monkeypatch.setattr(leader, "_beat", lambda: lie)
        followers = [other for other in local.repositories.values() if other is not leader]
        asked = [await _opinion(other) for other in followers for _ in range(3)]
        await log.append(b"x")
        await local.stop_metadata(local.leader or 0)
        await log.append(b"y")
        assert (await cluster.status()).leader_epoch < beat.epoch + 20
        assert all(opinion.epoch <= beat.epoch for opinion in asked)


async def _opinion(repository: MetadataRepository) -> pb.LeaderBeat:
    peer = await endpoints.connect(repository.address, Codec("client"), OnlyAnswers())
    answer, _ = await peer.request(pb.Frame(ask_leader=pb.AskLeader()))
    peer.close()
    beat: pb.LeaderBeat = answer.leader_beat
    return beat

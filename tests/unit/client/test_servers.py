"""Logs and status, and finding a metadata repository that answers."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from fake_cluster import FakeCluster, cut, ignore, refuse

from loomlog import connect, errors, limits
from loomlog.client.servers import Connections, Metadata
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Server, Service

PATIENCE_S = 30.0


class SlowRepository(Service):
    """Takes its time to list logs: until it was asked so often whether it is there."""

    def __init__(self, asked_often: int) -> None:
        codec = Codec("vmr", cluster_id="fake")
        super().__init__(codec, {"list_logs": self._list, "ask_leader": self._ask})
        self.server = Server(codec, self)
        self.silent = False
        self.leader_epoch = 0
        self.beat = pb.LeaderBeat()
        self.lists = 0
        self._left = asked_often
        self._may_answer = asyncio.Event()

    async def _list(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        self.lists += 1
        await self._may_answer.wait()
        return pb.Frame(log_list=pb.LogList())

    def _ask(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        if self.silent:
            return
        self._left -= 1
        if not self._left:
            self._may_answer.set()
        epoch = self.leader_epoch
        connection.send(
            pb.Frame(id=frame.id, reply=True, leader_beat=self.beat, leader_epoch=epoch)
        )


@asynccontextmanager
async def slow_repository(asked_often: int = 0) -> AsyncIterator[SlowRepository]:
    repository = SlowRepository(asked_often)
    await repository.server.start("127.0.0.1:0")
    try:
        yield repository
    finally:
        await repository.server.stop()
        await repository.stop()


async def test_a_log_lives_and_dies() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        log = await cluster.create_log("events", protocol="ordered", streams=2, replicas=2)
        assert cluster.log("events") is log
        assert (await log.tail(), await log.head()) == (0, 1)
        await log.append_many([b"x"] * 3)
        assert await log.tail() == 3
        await log.trim(1)
        assert await log.head() == 2
        described = await log.describe()
        assert (described.name, described.head, described.tail) == ("events", 2, 3)
        assert [stream.state for stream in described.streams] == ["running", "running"]
        assert sum(stream.last_llsn for stream in described.streams) == 3
        assert [found.name for found in await cluster.logs()] == ["events"]
        with pytest.raises(errors.AlreadyExists):
            await cluster.create_log("events")
        await cluster.delete_log("events")
        assert await cluster.logs() == []
        with pytest.raises(errors.NotFound):
            await log.append(b"x")


async def test_the_status_is_plain_data() -> None:
    async with FakeCluster(nodes=2) as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        status = await cluster.status()
        assert status.metadata_address == fake.address
        assert [node.id for node in status.nodes] == [1, 2]
        assert dataclasses.asdict(status)["logs"][0]["name"] == "events"


async def test_nobody_there_is_told_at_once() -> None:
    async with FakeCluster() as fake:
        address = fake.address
    with pytest.raises(errors.Unavailable, match="cannot reach"):
        await connect(address)


async def test_the_next_repository_is_asked() -> None:
    async with FakeCluster() as gone:
        dead = gone.address
    async with FakeCluster() as follower, FakeCluster() as leader:
        leader.add_log("events")
        follower.metadata_faults.extend([refuse(errors.NotLeader("ask another"))] * 10)
        addresses = f"{dead},{follower.address},{leader.address}"
        async with await connect(addresses) as cluster:
            assert [log.name for log in await cluster.logs()] == ["events"]


async def test_a_follower_names_the_leader() -> None:
    async with FakeCluster() as follower, FakeCluster() as leader:
        leader.add_log("events")
        follower.metadata_faults.append(refuse(errors.NotLeader("not I", leader.address)))
        async with await connect(follower.address) as cluster:
            assert [log.name for log in await cluster.logs()] == ["events"]
            await cluster.create_log("more")
            assert "more" in leader.logs
            assert not follower.logs


async def test_a_leader_that_was_replaced_is_not_believed() -> None:
    async with FakeCluster() as old, FakeCluster() as new:
        old.leader_epoch, new.leader_epoch = 3, 4
        new.add_log("events")
        async with await connect([new.address, old.address]) as cluster:
            await cluster.logs()
            new.metadata_faults.append(cut)
            assert [log.name for log in await cluster.logs()] == ["events"]


async def test_further_repositories_are_learnt_on_the_way() -> None:
    async with FakeCluster() as first, FakeCluster() as second:
        first.add_log("events")
        second.add_log("events")
        first.others = [second.address]
        async with await connect(first.address) as cluster:
            await cluster.log("events").describe()
            await first.vmr.stop()
            assert await cluster.log("events").tail() == 0


async def test_one_of_several_that_is_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEADER_SILENCE_S", 0.2)
    async with slow_repository(asked_often=8) as slow, FakeCluster() as other:
        other.add_log("events")
        async with await connect([slow.server.address, other.address]) as cluster:
            assert await cluster.logs() == []
        assert slow.lists == 1


async def test_one_of_several_that_is_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEADER_SILENCE_S", 0.2)
    async with slow_repository() as slow, FakeCluster() as other:
        slow.silent = True
        other.add_log("events")
        addresses = [slow.server.address, other.address]
        async with await connect(addresses, request_timeout_s=4 * PATIENCE_S) as cluster:
            async with asyncio.timeout(PATIENCE_S):
                assert [log.name for log in await cluster.logs()] == ["events"]


async def test_one_that_does_not_even_greet_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = f"127.0.0.1:{stopped.getsockname()[1]}"
        async with FakeCluster() as other:
            other.add_log("events")
            patient = connect(
                [other.address, address],
                request_timeout_s=4 * PATIENCE_S,
                connect_timeout_s=4 * PATIENCE_S,
            )
            async with await patient as cluster:
                other.metadata_faults.append(refuse(errors.NotLeader("not yet")))
                async with asyncio.timeout(PATIENCE_S):
                    assert [log.name for log in await cluster.logs()] == ["events"]


async def test_why_nobody_leads_tells_more_than_who_is_away() -> None:
    async with FakeCluster() as gone:
        dead = gone.address
    async with FakeCluster() as follower:
        waits = errors.NotLeader("nobody leads at the moment: etcd does not answer")
        follower.metadata_faults.extend([refuse(waits)] * 100)
        async with await connect([follower.address, dead], request_timeout_s=0.3) as cluster:
            with pytest.raises(errors.NotLeader, match="etcd does not answer"):
                await cluster.logs()


async def test_what_was_said_before_tells_more_than_the_silence_at_the_end() -> None:
    async with FakeCluster() as fake:
        fake.add_log("events")
        async with await connect(fake.address, request_timeout_s=0.3) as cluster:
            fake.metadata_faults.extend([refuse(errors.Unavailable("start node 2")), ignore])
            with pytest.raises(errors.Unavailable, match="start node 2"):
                await cluster.logs()


async def test_a_request_without_side_effects_is_repeated() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        fake.metadata_faults.extend([cut, refuse(errors.Busy("later"))])
        assert await cluster.log("events").tail() == 0


async def test_a_request_with_side_effects_is_repeated_only_if_it_did_nothing() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.metadata_faults.append(refuse(errors.Busy("later")))
        await cluster.create_log("first")
        fake.metadata_faults.append(cut)
        with pytest.raises(errors.LoomError, match="may or may not"):
            await cluster.create_log("second")


async def test_a_repository_that_comes_back_is_found_again() -> None:
    async with FakeCluster() as fake, await connect(fake.address) as cluster:
        fake.add_log("events")
        address = fake.vmr.address
        await fake.vmr.stop()
        await fake.vmr.start(address)
        assert await cluster.log("events").tail() == 0


async def test_bad_arguments_are_refused_here() -> None:
    async with FakeCluster() as fake:
        for address in ("", "nonsense", ",", "host:99999"):
            with pytest.raises(errors.InvalidArgument):
                await connect(address)
        async with await connect([fake.address]) as cluster:
            for bad in ({"streams": 0}, {"replicas": -1}, {"streams": "2"}):
                with pytest.raises(errors.InvalidArgument):
                    await cluster.create_log("events", **bad)
            with pytest.raises(errors.InvalidArgument):
                cluster.log("")


def test_asking_for_the_status_does_not_load_arrow() -> None:
    program = (
        "import sys, loomlog; assert 'loomlog.client' not in sys.modules; "
        "loomlog.connect, loomlog.connect_sync, loomlog.errors.Trimmed; "
        "assert 'pyarrow' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# ---- asked once, by who has no time


@asynccontextmanager
async def asking(*addresses: str) -> AsyncIterator[Metadata]:
    rng = random.Random(1)
    connections = Connections(Codec("client"), rng, limits.CONNECT_TIMEOUT_S)
    try:
        yield Metadata(addresses, connections, rng, PATIENCE_S)
    finally:
        await connections.close()


def heard() -> tuple[asyncio.Future[object], Callable[[object, memoryview], None]]:
    reply: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    return reply, lambda heard, _: reply.set_result(heard)


async def test_who_is_not_connected_is_not_called() -> None:
    async with slow_repository() as repository, asking(repository.server.address) as metadata:
        _, on_reply = heard()
        question = pb.Frame(ask_leader=pb.AskLeader())
        assert metadata.call(question, on_reply) is None
        await metadata.reach()
        reply, on_reply = heard()
        assert metadata.call(question, on_reply) is not None
        assert isinstance(await reply, pb.Frame)


async def test_of_several_a_silent_one_is_not_called_for_long() -> None:
    async with (
        slow_repository() as silent,
        slow_repository() as other,
        asking(silent.server.address, other.server.address) as metadata,
    ):
        silent.silent = True
        await metadata.reach()
        reply, on_reply = heard()
        metadata.call(pb.Frame(list_logs=pb.ListLogs()), on_reply)
        assert isinstance(await reply, errors.Unavailable)
        assert silent.lists == 1


async def test_of_several_a_slow_one_that_speaks_is_waited_for() -> None:
    async with (
        slow_repository(asked_often=2) as slow,
        slow_repository() as other,
        asking(slow.server.address, other.server.address) as metadata,
    ):
        await metadata.reach()
        reply, on_reply = heard()
        metadata.call(pb.Frame(list_logs=pb.ListLogs()), on_reply)
        assert isinstance(await reply, pb.Frame)


async def test_of_several_one_that_led_before_is_not_believed() -> None:
    async with (
        slow_repository() as former,
        slow_repository() as other,
        asking(former.server.address, other.server.address) as metadata,
    ):
        await metadata.reach()
        metadata.check_leader(pb.Frame(leader_epoch=2))
        former.leader_epoch = 1
        reply, on_reply = heard()
        metadata.call(pb.Frame(ask_leader=pb.AskLeader()), on_reply)
        assert isinstance(await reply, errors.NotLeader)


async def test_a_silent_leader_is_left_as_soon_as_another_one_names_a_newer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LEADER_SILENCE_S", 10 * PATIENCE_S)
    async with (
        slow_repository() as silent,
        slow_repository() as other,
        asking(silent.server.address, other.server.address) as metadata,
    ):
        silent.silent = True
        await metadata.reach()
        metadata.check_leader(pb.Frame(leader_epoch=2))
        other.beat = pb.LeaderBeat(epoch=3, leader=2, address=other.server.address, heard=True)
        reply, on_reply = heard()
        metadata.call(pb.Frame(list_logs=pb.ListLogs()), on_reply)
        async with asyncio.timeout(PATIENCE_S):
            assert isinstance(await reply, errors.NotLeader)
        reply, on_reply = heard()
        metadata.call(pb.Frame(ask_leader=pb.AskLeader()), on_reply)
        assert isinstance(await reply, pb.Frame)  # of the other one
        await metadata.close()


async def test_requests_that_fail_together_turn_to_the_next_repository_once() -> None:
    async with FakeCluster() as gone:
        dead = gone.address
    async with FakeCluster() as leader, FakeCluster() as unused:
        leader.add_log("events")
        async with asking(dead, leader.address, unused.address) as metadata:
            frame = pb.Frame(list_logs=pb.ListLogs())
            answers = await asyncio.gather(*(metadata.request(frame) for _ in range(5)))
            assert [len(answer.log_list.logs) for answer in answers] == [1] * 5

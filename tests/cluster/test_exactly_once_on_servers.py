"""Exactly once on real servers: answers and requests get lost, primaries die, nothing doubles."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from node_services import ordered_on
from poll import until
from proxy import Proxy

from loomlog import columns, connect
from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.config import MetadataSettings, NodeSettings, StorageSettings
from loomlog.errors import AppendUnknown, Sealed, Unavailable
from loomlog.limits import APPENDS_IN_FLIGHT_MAX
from loomlog.metadata import MetadataRepository
from loomlog.net import endpoints
from loomlog.node import StorageNode
from loomlog.testing.ports import free_port
from loomlog.types import SyncMode
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Service


class ExactlyOnceServers:
    """A cluster whose clients reach each storage node through a proxy."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports: dict[int, int] = {}
        self._stack = AsyncExitStack()
        self.nodes: dict[int, StorageNode] = {}
        self.proxies: dict[int, Proxy] = {}

    async def start(self, nodes: int) -> None:
        self.repository = MetadataRepository(
            MetadataSettings(
                "test",
                str(self._directory / "vmr"),
                "127.0.0.1:0",
                http=None,
                failure_detection_s=0.5,
                heartbeat_s=0.1,
            )
        )
        await self.repository.start()
        self._stack.push_async_callback(self.repository.stop)
        for number in range(1, nodes + 1):
            self._ports[number] = free_port()
            (self._directory / f"vsn-{number}").mkdir()
            proxy = await self._stack.enter_async_context(Proxy())
            proxy.target = f"127.0.0.1:{self._ports[number]}"
            self.proxies[number] = proxy
            await self.start_node(number)

    async def start_node(self, number: int) -> None:
        node = StorageNode(
            NodeSettings(
                node_id=number,
                cluster_id="test",
                volumes=(str(self._directory / f"vsn-{number}"),),
                metadata=(self.repository.address,),
                listen=f"127.0.0.1:{self._ports[number]}",
                advertise=self.proxies[number].address,
                storage=StorageSettings(sync=SyncMode.NONE),
            )
        )
        await node.start()
        self.nodes[number] = node
        await node.registered()

    async def stop_node(self, number: int) -> None:
        await self.nodes.pop(number).stop()

    async def stop(self) -> None:
        for number in list(self.nodes):
            await self.stop_node(number)
        await self._stack.aclose()

    async def client(self, **settings: Any) -> Cluster:
        return await self._stack.enter_async_context(
            await connect(self.repository.address, **settings)
        )


@asynccontextmanager
async def servers(directory: Path, nodes: int) -> AsyncIterator[ExactlyOnceServers]:
    cluster = ExactlyOnceServers(directory)
    try:
        await cluster.start(nodes)
        yield cluster
    finally:
        await cluster.stop()


async def primary_of(log: Log, stream: int) -> int:
    (found,) = [s for s in (await log.describe()).streams if s.id == stream]
    return found.replicas[0].node


async def values_of(log: Log) -> list[bytes]:
    return [entry.value async for entry in log.subscribe(stop=await log.tail())]


async def test_an_answer_that_was_lost_is_given_again(tmp_path: Path) -> None:
    async with servers(tmp_path, nodes=2) as cluster:
        client = await cluster.client()
        log = await client.create_log("events", streams=1, replicas=2)
        first = await log.append(b"before")
        proxy = cluster.proxies[await primary_of(log, first.stream)]
        proxy.answers_pass = False
        append = asyncio.ensure_future(log.append(b"once"))
        await proxy.swallowed.wait()
        assert not append.done()
        proxy.heal()
        assert (await append).position == 2
        assert (await log.append(b"after")).position == 3
        assert await values_of(log) == [b"before", b"once", b"after"]


async def test_a_request_that_was_lost_is_sent_again(tmp_path: Path) -> None:
    async with servers(tmp_path, nodes=1) as cluster:
        client = await cluster.client()
        log = await client.create_log("events", streams=1, replicas=1)
        await log.append(b"before")
        proxy = cluster.proxies[1]
        proxy.requests_pass = False
        append = asyncio.ensure_future(log.append(b"once"))
        await proxy.swallowed.wait()
        proxy.heal()
        assert (await append).position == 2
        assert await values_of(log) == [b"before", b"once"]


async def test_a_repeat_of_what_is_still_under_way_gets_its_answer(tmp_path: Path) -> None:
    async with servers(tmp_path, nodes=2) as cluster:
        client = await cluster.client()
        log = await client.create_log("events", streams=1, replicas=2)
        stream = (await log.append(b"before")).stream
        node = cluster.nodes[await primary_of(log, stream)]
        proxy = cluster.proxies[await primary_of(log, stream)]
        driver = ordered_on(node).held[stream].driver
        held: list[Any] = []
        commit, driver.commit = driver.commit, held.append  # type: ignore
        append = asyncio.ensure_future(log.append(b"once"))
        await until(lambda: bool(held))
        sent_first = driver._waiting._appends[0].connection
        proxy.cut()
        await until(lambda: driver._waiting._appends[0].connection is not sent_first)
        driver.commit = commit  # type: ignore[method-assign]
        for one in held:
            driver.commit(one)
        assert (await append).position == 2
        assert await values_of(log) == [b"before", b"once"]


async def test_a_primary_that_dies_after_the_commit(tmp_path: Path) -> None:
    async with servers(tmp_path, nodes=2) as cluster:
        client = await cluster.client()
        log = await client.create_log("events", streams=1, replicas=2)
        stream = (await log.append(b"before")).stream
        primary = await primary_of(log, stream)
        proxy = cluster.proxies[primary]
        proxy.answers_pass = False
        append = asyncio.ensure_future(log.append(b"once"))
        await until(log.tail, lambda tail: tail >= 2)
        proxy.requests_pass = False
        await cluster.stop_node(primary)
        proxy.cut()
        assert (await append).position == 2  # told by the backup
        assert await values_of(log) == [b"before", b"once"]


async def test_a_primary_that_dies_before_it_has_the_append(tmp_path: Path) -> None:
    """Once the stream is sealed, the append is certainly lost and is sent to another stream."""
    async with servers(tmp_path, nodes=4) as cluster:
        client = await cluster.client()
        log = await client.create_log("events", streams=2, replicas=2)
        await asyncio.gather(*(log.append_many([b"-"]) for _ in range(20)))
        before = await log.tail()
        streams = {stream.id: stream for stream in (await log.describe()).streams}
        nodes = [{r.node for r in stream.replicas} for stream in streams.values()]
        assert not nodes[0] & nodes[1], "the two streams have nothing in common"
        for proxy in cluster.proxies.values():
            proxy.requests_pass = False
        append = asyncio.ensure_future(log.append(b"once"))
        await until(lambda: any(proxy.swallowed.is_set() for proxy in cluster.proxies.values()))
        (waiting,) = [n for n, proxy in cluster.proxies.items() if proxy.swallowed.is_set()]
        await cluster.stop_node(waiting)
        for number, proxy in cluster.proxies.items():
            if number != waiting:
                proxy.heal()
        at = await append  # in the other stream, or in this one if it was repaired sooner
        now = {stream.id: stream for stream in (await log.describe()).streams}
        assert waiting not in {replica.node for replica in now[at.stream].replicas}
        assert (await values_of(log))[before:] == [b"once"]


async def test_what_was_dropped_comes_back_once_when_its_stream_does(tmp_path: Path) -> None:
    async with servers(tmp_path, nodes=1) as cluster:
        client = await cluster.client()
        log = await client.create_log("events", streams=1, replicas=1)
        await log.append(b"before")
        proxy = cluster.proxies[1]
        proxy.requests_pass = False
        append = asyncio.ensure_future(log.append(b"once"))
        await proxy.swallowed.wait()
        await cluster.stop_node(1)
        proxy.heal()
        await cluster.start_node(1)
        assert (await append).position == 2
        assert await values_of(log) == [b"before", b"once"]


async def test_a_node_that_hangs_is_resolved_at_another(tmp_path: Path) -> None:
    """No connection breaks: the client only hears nothing."""
    async with servers(tmp_path, nodes=2) as cluster:
        client = await cluster.client()
        log = await client.create_log("events", streams=1, replicas=2)
        stream = (await log.append(b"before")).stream
        primary = await primary_of(log, stream)
        cluster.proxies[primary].answers_pass = False
        append = asyncio.ensure_future(log.append(b"once"))
        await until(log.tail, lambda tail: tail >= 2)
        await cluster.nodes[primary]._link.stop()  # to the repository it is as silent
        assert (await append).position == 2


async def test_at_once_may_double(tmp_path: Path) -> None:
    async with servers(tmp_path, nodes=1) as cluster:
        client = await cluster.client(retry="at-once")
        log = await client.create_log("events", streams=1, replicas=1)
        await log.append(b"before")
        proxy = cluster.proxies[1]
        proxy.answers_pass = False
        append = asyncio.ensure_future(log.append(b"twice"))
        await until(log.tail, lambda tail: tail >= 2)
        proxy.heal()
        assert (await append).position == 3
        assert await values_of(log) == [b"before", b"twice", b"twice"]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_appends_over_a_bad_network(tmp_path: Path, seed: int) -> None:
    async with servers(tmp_path, nodes=3) as cluster:
        client = await cluster.client()
        log = await client.create_log("events", streams=3, replicas=2)
        rng = random.Random(seed)
        lost = 0
        acknowledged: dict[int, bytes] = {}

        async def write(name: int) -> None:
            number = 0
            while lost < 20:
                number += 1
                value = b"%d-%d" % (name, number)
                acknowledged[(await log.append(value)).position] = value

        async def disturb() -> None:
            nonlocal lost
            while True:
                await asyncio.sleep(rng.random() * 0.02)
                proxy = rng.choice(list(cluster.proxies.values()))
                proxy.requests_pass = rng.random() < 0.5
                proxy.answers_pass = rng.random() < 0.5
                await asyncio.sleep(rng.random() * 0.05)
                lost += proxy.swallowed.is_set()
                proxy.heal()

        disturbing = asyncio.ensure_future(disturb())
        await asyncio.gather(*map(write, range(20)))
        disturbing.cancel()
        values = await values_of(log)
        assert dict(enumerate(values, 1)) == acknowledged
        assert max(Counter(values).values()) == 1


# ---- what a node says, without a client in between


class Raw:
    """A producer that sends what it wants to the one stream of a log."""

    def __init__(self, cluster: ExactlyOnceServers, log: Log) -> None:
        self._cluster = cluster
        self._log = log
        self.epoch = 0
        self.stream = 0
        self._connection: Connection

    async def connect(self) -> None:
        while (stream := (await self._log.describe()).streams[0]).state != "running":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self.stream, self.epoch = stream.id, stream.epoch
        codec = Codec("client")
        self._connection = await endpoints.connect(
            stream.replicas[0].address, codec, Service(codec, {})
        )

    async def append(self, sequence: int, epoch: int | None = None) -> int:
        payload = columns.encode(
            [b"%d" % sequence], timestamps_us=1, producer_id=5, sequence=sequence
        )
        order = pb.Append(log_stream_id=self.stream, seal_epoch=epoch or self.epoch)
        answer, _ = await self._connection.request(pb.Frame(append=order), (payload,))
        position: int = answer.appended.first_glsn
        return position

    async def append_all(self, sequences: Sequence[int]) -> list[int]:
        return await asyncio.gather(*map(self.append, sequences))

    async def resolve(self, sequence: int, epoch: int, producer: int = 5) -> pb.AppendResolved:
        order = pb.ResolveAppend(
            log_stream_id=self.stream, seal_epoch=epoch, producer_id=producer, sequence=sequence
        )
        answer, _ = await self._connection.request(pb.Frame(resolve_append=order))
        resolved: pb.AppendResolved = answer.append_resolved
        return resolved


@asynccontextmanager
async def raw(directory: Path) -> AsyncIterator[tuple[ExactlyOnceServers, Log, Raw]]:
    async with servers(directory, nodes=1) as cluster:
        log = await (await cluster.client()).create_log("events", streams=1, replicas=1)
        producer = Raw(cluster, log)
        await producer.connect()
        yield cluster, log, producer


async def test_a_node_recognises_repeats_within_its_window(tmp_path: Path) -> None:
    async with raw(tmp_path) as (_, log, producer):
        many = range(1, APPENDS_IN_FLIGHT_MAX + 9)
        assert await producer.append_all(many) == list(many)
        assert await producer.append(many[-1]) == many[-1]
        assert await producer.append(9) == 9
        with pytest.raises(AppendUnknown, match="too old"):
            await producer.append(8)
        assert await log.tail() == len(many)


async def test_a_node_takes_appends_of_its_epoch_only(tmp_path: Path) -> None:
    async with raw(tmp_path) as (_, log, producer):
        for epoch in (producer.epoch - 1 or 99, producer.epoch + 1):
            with pytest.raises(Sealed, match="epoch"):
                await producer.append(1, epoch)
        assert await log.tail() == 0


async def test_repeats_are_known_after_a_restart(tmp_path: Path) -> None:
    async with raw(tmp_path) as (cluster, log, producer):
        assert await producer.append_all([1, 2, 3]) == [1, 2, 3]
        with pytest.raises(Unavailable, match="cannot tell yet"):
            await producer.resolve(2, producer.epoch)
        epoch = producer.epoch
        await cluster.stop_node(1)
        await cluster.start_node(1)
        while producer.epoch == epoch:
            await producer.connect()
        found = await producer.resolve(2, epoch)
        assert (found.appended, found.first_glsn, found.first_llsn) == (True, 2, 2)
        assert not (await producer.resolve(4, epoch)).appended
        assert not (await producer.resolve(1, epoch, producer=6)).appended
        assert await producer.append(3) == 3
        assert await producer.append(4) == 4
        assert await log.tail() == 4

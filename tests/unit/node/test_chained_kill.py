"""What a storage node acknowledged of a chain is there after `kill -9`, every time."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from chained_node_rig import EPOCH, ask, block, replica
from node_rig import PATIENCE_S, PlayedMetadata

from loomlog.core.chained.messages import Create, Done, Found, Read, Seal, SealedAt, Stored, Write
from loomlog.errors import Unavailable
from loomlog.net.connection import Connection, Frame
from loomlog.net.endpoints import connect
from loomlog.wire.codec import Codec

KILLS = 3
WRITERS = 8
ACKNOWLEDGED_MIN = 100  # before each kill


class Handler:
    def frame_received(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        pass

    def connection_closed(self, connection: Connection, error: Exception) -> None:
        pass


class Process:
    """A real vsn, one life after the other, on the same volume."""

    def __init__(self, volume: Path, metadata: PlayedMetadata) -> None:
        self._volume = volume
        self._metadata = metadata

    async def start(self) -> Connection:
        self._metadata.nodes.clear()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loomlog.cli.vsn", "start", "--end-with-parent"),
            *("--cluster-id", "test", "--storage-node-id", "1", "--volumes", str(self._volume)),
            *("--mr", self._metadata.server.address, "--listen", "127.0.0.1:0"),
            *("--log-level", "error"),
            stdout=asyncio.subprocess.DEVNULL,
        )
        await self._metadata.until(lambda: 1 in self._metadata.nodes)
        address = self._metadata.registrations[1].address
        return await connect(address, Codec("client"), Handler())

    async def kill(self) -> None:
        self._process.kill()
        async with asyncio.timeout(PATIENCE_S):
            await self._process.wait()


class Writing:
    """Writers that go on until their node is gone; they share the positions."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self._next = 1
        self._enough = asyncio.Event()

    async def run(self, connection: Connection) -> None:
        while True:
            first, self._next = self._next, self._next + 1
            try:
                answer = await ask(connection, replica(), Write(EPOCH, block(first, size=5000)))
            except Unavailable:
                return
            assert answer == Stored()
            self.acknowledged.append(first)
            self._enough.set()

    async def until_more(self) -> None:
        wanted = len(self.acknowledged) + ACKNOWLEDGED_MIN
        async with asyncio.timeout(PATIENCE_S):
            while len(self.acknowledged) < wanted:
                self._enough.clear()
                await self._enough.wait()


async def test_what_was_acknowledged_is_there_after_every_kill(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    metadata = PlayedMetadata()
    await metadata.server.start("127.0.0.1:0")
    process, writing = Process(volume, metadata), Writing()
    client = await process.start()
    assert await ask(metadata.nodes[1], replica(), Create()) == Done()
    assert await ask(metadata.nodes[1], replica(), Seal(EPOCH)) == SealedAt(0, 0)
    for _ in range(KILLS):
        writers = [asyncio.create_task(writing.run(client)) for _ in range(WRITERS)]
        await writing.until_more()
        await process.kill()
        await asyncio.gather(*writers)
        client = await process.start()
        for first in writing.acknowledged:
            found = await ask(client, replica(), Read(EPOCH, first))
            assert found == Found(block(first, size=5000))
    client.close()
    await process.kill()
    await metadata.server.stop()
    await metadata.stop()

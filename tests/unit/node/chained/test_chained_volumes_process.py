"""A real vsn is killed, and its disk is full: what it acknowledged of a chain is there."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit

from chained_node_rig import EPOCH, ask, block, replica
from node_rig import PATIENCE_S, PlayedMetadata

from loomlog.core.chained.messages import (
    Create,
    Done,
    Found,
    Read,
    Refused,
    Seal,
    SealedAt,
    Stored,
    Write,
)
from loomlog.core.chained.replica import FORGETFUL
from loomlog.errors import Unavailable
from loomlog.limits import MIB
from loomlog.net.endpoints import connect
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame

KILLS = 3
WRITERS = 8
SIZE = 5000
ACKNOWLEDGED_MIN = 100  # before each kill


class Handler:
    def frame_received(
        self, connection: Connection, kind: str, frame: Frame, payload: memoryview
    ) -> None:
        pass

    def connection_closed(self, connection: Connection, error: Exception) -> None:
        pass


class Process:
    """A real vsn, one life after the other, on the same volume."""

    def __init__(self, volume: Path, metadata: PlayedMetadata) -> None:
        self._volume = volume
        self.metadata = metadata

    async def start(self) -> Connection:
        self.metadata.nodes.clear()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loomlog.cli.vsn", "start", "--end-with-parent"),
            *("--cluster-id", "test", "--storage-node-id", "1", "--volumes", str(self._volume)),
            *("--mr", self.metadata.server.address, "--listen", "127.0.0.1:0"),
            *("--log-level", "error"),
            stdout=asyncio.subprocess.DEVNULL,
        )
        await self.metadata.until(lambda: 1 in self.metadata.nodes)
        address = self.metadata.registrations[1].address
        return await connect(address, Codec("client"), Handler())

    def limit_files(self, size: int) -> None:
        """No file of it may grow beyond this: to write then fails, as on a full disk."""
        prlimit(self._process.pid, RLIMIT_FSIZE, (size, RLIM_INFINITY))

    async def kill(self) -> None:
        if self._process.returncode is None:
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
                answer = await ask(connection, replica(), Write(EPOCH, block(first, size=SIZE)))
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


@asynccontextmanager
async def a_node(tmp_path: Path) -> AsyncIterator[tuple[Process, Connection]]:
    """Return a node with an empty replica; who starts it once more ends it."""
    volume = tmp_path / "volume"
    volume.mkdir()
    metadata = PlayedMetadata()
    await metadata.server.start("127.0.0.1:0")
    process = Process(volume, metadata)
    try:
        client = await process.start()
        assert await ask(metadata.nodes[1], replica(), Create()) == Done()
        assert await ask(metadata.nodes[1], replica(), Seal(EPOCH)) == SealedAt(0, 0)
        yield process, client
    finally:
        await process.kill()
        await metadata.server.stop()
        await metadata.stop()


async def test_what_was_acknowledged_is_there_after_every_kill(tmp_path: Path) -> None:
    async with a_node(tmp_path) as (process, client):
        writing = Writing()
        for _ in range(KILLS):
            writers = [asyncio.create_task(writing.run(client)) for _ in range(WRITERS)]
            await writing.until_more()
            await process.kill()
            await asyncio.gather(*writers)
            client = await process.start()
            for first in writing.acknowledged:
                found = await ask(client, replica(), Read(EPOCH, first))
                assert found == Found(block(first, size=SIZE))


async def test_a_copy_that_is_put_back_serves_nothing_before_it_is_sealed(tmp_path: Path) -> None:
    async with a_node(tmp_path) as (process, client):
        assert await ask(client, replica(), Write(EPOCH, block(1, size=SIZE))) == Stored()
        await process.kill()
        shutil.copytree(tmp_path / "volume", tmp_path / "copy")
        shutil.rmtree(tmp_path / "volume")
        (tmp_path / "copy").rename(tmp_path / "volume")
        client = await process.start()
        assert await ask(client, replica(), Read(EPOCH, 1)) == FORGETFUL
        sealed = await ask(process.metadata.nodes[1], replica(), Seal(EPOCH))
        assert isinstance(sealed, SealedAt)
        assert await ask(client, replica(), Read(EPOCH, 1)) == Found(block(1, size=SIZE))


async def test_a_disk_that_was_full_is_used_again_and_nothing_is_lost(tmp_path: Path) -> None:
    async with a_node(tmp_path) as (process, client):
        process.limit_files(4 * MIB)
        first, acknowledged = 1, 0
        while await ask(client, replica(), Write(EPOCH, block(first, size=100_000))) == Stored():
            first, acknowledged = first + 1, acknowledged + 1
        assert 20 < acknowledged < 60
        assert isinstance(await ask(client, replica(), Read(EPOCH, 1)), Refused)
        process.limit_files(RLIM_INFINITY)
        async with asyncio.timeout(PATIENCE_S):
            again = Write(EPOCH, block(first, size=100_000))
            while await ask(client, replica(), again) != Stored():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        for position in range(1, acknowledged + 1):
            found = await ask(client, replica(), Read(EPOCH, position))
            assert found == Found(block(position, size=100_000))

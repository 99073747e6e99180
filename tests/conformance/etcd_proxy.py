"""The network between a store and a member of etcd, in the hands of a test."""

from __future__ import annotations

import asyncio
from typing import Self

from loomlog.net.address import join_address, split_address


class EtcdProxy:
    """Passes bytes on both ways, or keeps those of one way until the test lets them pass."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._requests_pass = asyncio.Event()
        self._answers_pass = asyncio.Event()
        self._open = True
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""
        self.kept = asyncio.Event()  # something waits here
        self.pass_all()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = join_address(*self._server.sockets[0].getsockname()[:2])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def keep_requests(self) -> None:
        self._requests_pass.clear()

    def keep_answers(self) -> None:
        self._answers_pass.clear()

    def pass_all(self) -> None:
        """Let everything pass, also what was kept."""
        self.kept.clear()
        self._requests_pass.set()
        self._answers_pass.set()

    def reset(self) -> None:
        """Break all connections: what was kept is lost. New ones pass."""
        for writer in list(self._writers):
            writer.transport.abort()
        self.pass_all()

    def shut(self) -> None:
        """Break all connections, and every new one until `reopen`."""
        self._open = False
        self.reset()

    def reopen(self) -> None:
        self._open = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            if self._open:
                await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*split_address(self._target))
        self._writers.add(far_writer)
        ways = [
            asyncio.create_task(self._pass(reader, far_writer, self._requests_pass)),
            asyncio.create_task(self._pass(far_reader, writer, self._answers_pass)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writers.discard(far_writer)
            far_writer.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event
    ) -> None:
        while data := await reader.read(1 << 16):
            if not passes.is_set():
                self.kept.set()
            await passes.wait()
            writer.write(data)
            await writer.drain()

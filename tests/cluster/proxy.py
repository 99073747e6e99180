"""A network between clients and a server that can be cut: a TCP proxy for tests."""

from __future__ import annotations

import asyncio
from typing import Self

from loomlog.net.address import join_address, split_address
from loomlog.net.listener import stop_listening

_CLIENT = b"client"  # in the Hello of a client; servers' own connections pass untouched


class Proxy:
    """Passes bytes on, or swallows those of clients. What was swallowed never arrives: cut the
    connections before passing anything on again."""

    def __init__(self) -> None:
        self.target = ""
        self.address = ""
        self.requests_pass = True
        self.answers_pass = True
        self.swallowed = asyncio.Event()
        self._writers: dict[asyncio.StreamWriter, bool] = {}  # and whether it is a client's
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = join_address(host, port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await stop_listening(self._server)
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break the connections of clients."""
        for writer, is_client in list(self._writers.items()):
            if is_client:
                writer.transport.abort()

    def heal(self) -> None:
        """Break what swallowed something, and let everything pass again."""
        self.cut()
        self.requests_pass = self.answers_pass = True
        self.swallowed.clear()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = False
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._writers.pop(writer, None)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await reader.read(1 << 16)
        is_client = _CLIENT in hello
        self._writers[writer] = is_client
        host, port = split_address(self.target)
        there, back = await asyncio.open_connection(host, port)
        back.write(hello)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, back, is_client, requests=True))
                group.create_task(self._pass(there, writer, is_client, requests=False))
        except* OSError:
            pass
        finally:
            back.transport.abort()

    async def _pass(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        is_client: bool,
        *,
        requests: bool,
    ) -> None:
        while data := await source.read(1 << 18):
            if is_client and not (self.requests_pass if requests else self.answers_pass):
                self.swallowed.set()
                continue
            sink.write(data)
            await sink.drain()
        raise ConnectionResetError("the end; the other direction ends, too")

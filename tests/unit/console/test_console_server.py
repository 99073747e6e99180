"""The console as a server: where it listens."""

from __future__ import annotations

import asyncio
import socket

import pytest
from http_rig import Http

from loomlog.console.pages import PAGES
from loomlog.console.server import ConsoleServer
from loomlog.errors import InvalidArgument

NOBODY = "127.0.0.1:1"  # a console starts also while its cluster is away


async def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        server = ConsoleServer(NOBODY, taken)
        with pytest.raises(InvalidArgument, match=f"cannot listen on {taken}: .*in use; choose"):
            await server.start()
        await server.stop()


async def test_port_0_is_a_free_one_and_free_again_afterwards() -> None:
    server = ConsoleServer(NOBODY, "127.0.0.1:0")
    await server.start()
    host, _, port = server.address.rpartition(":")
    http = Http(f"http://{host}:{port}")
    assert (await asyncio.to_thread(http.ask, "GET", "/healthz")).body == b"ok\n"
    await server.stop()
    socket.create_server((host, int(port))).close()


async def test_pages_can_only_be_got() -> None:
    server = ConsoleServer(NOBODY, "127.0.0.1:0")
    await server.start()
    try:
        http = Http(server.url.rstrip("/"))
        paths = [page.path.format(log="events") for page in PAGES]
        for path in (*paths, "/live/nodes", "/rows/events", "/static/console.js", "/healthz"):
            for method in ("DELETE", "POST", "TRACE"):
                answer = await asyncio.to_thread(http.ask, method, path)
                assert answer.error == (405, "InvalidArgument"), path
                assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}
    finally:
        await server.stop()

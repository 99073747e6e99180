"""The console as a server: where it listens."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from http_rig import Http

from loomlog.console.contents import PAGES
from loomlog.console.server import ConsoleServer
from loomlog.core.principal import Principal
from loomlog.errors import InvalidArgument
from loomlog.net.certificates import create_authority, create_certificate

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


async def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    create_authority(tmp_path, "c")
    first, second = (
        create_certificate(tmp_path, Principal("metadata", number=n, cluster="c"), ["127.0.0.1"])
        for n in (1, 2)
    )
    server = ConsoleServer(NOBODY, "127.0.0.1:0", tmp_path / "ca.pem", first)
    await server.start()
    try:
        before = await _shown(server.address, tmp_path / "ca.pem")
        for number, text in enumerate((b"nonsense", second.read_bytes())):
            first.write_bytes(text)
            os.utime(first, ns=(number, number))  # in the same tick of the clock, perhaps
            shown = await _shown(server.address, tmp_path / "ca.pem")
            assert (shown == before) == (text == b"nonsense")
    finally:
        await server.stop()


async def _shown(address: str, authorities: Path) -> bytes | None:
    """Return the certificate that a server shows."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=authorities)
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return shown


def test_it_does_not_load_pandas() -> None:
    """Arrow does so by the way, which takes half a second and 40 MB."""
    program = "import sys, loomlog.console.server; assert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)

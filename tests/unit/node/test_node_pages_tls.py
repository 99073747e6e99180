"""The pages of a storage node that speaks TLS."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from loomlog.config import NodeSettings
from loomlog.core.principal import Principal
from loomlog.net.address import split_address
from loomlog.net.certificates import create_authority, create_certificate
from loomlog.net.credentials import Credentials
from loomlog.node import StorageNode


async def status_of(address: str, page: str, context: ssl.SSLContext) -> int:
    reader, writer = await asyncio.open_connection(*split_address(address), ssl=context)
    writer.write(f"GET {page} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    async with asyncio.timeout(20):
        line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def test_metrics_need_a_certificate_even_without_rules(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    create_authority(certs, "c")
    create_certificate(certs, Principal("node", number=1, cluster="c"), ["127.0.0.1"])
    alice = create_certificate(certs, Principal("client", name="alice", cluster="c"))
    (tmp_path / "ca.pem").write_bytes((certs / "ca.pem").read_bytes())
    (tmp_path / "volume").mkdir()
    node = StorageNode(
        NodeSettings(
            1,
            "c",
            (str(tmp_path / "volume"),),
            ("127.0.0.1:1",),  # nobody is there
            http="127.0.0.1:0",
            tls=str(certs),
        )
    )
    await node.start()
    try:
        address = str(node.http_address)
        nobody = Credentials.of_client(str(tmp_path)).connecting()
        someone = Credentials.of_client(str(alice)).connecting()
        assert await status_of(address, "/healthz", nobody) == 200
        assert await status_of(address, "/metrics", nobody) == 403
        assert await status_of(address, "/metrics", someone) == 200
    finally:
        await node.stop()

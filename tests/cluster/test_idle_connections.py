"""A real server with thousands of idle connections, silent peers, and peers that never complete a
frame serves other peers as before, and its memory stays within the limits of docs/security.md.

The long tests make 10,000 connections, or as many as the limit of open files allows, and send 2 GB.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from poll import until

from loomlog.cli.processes.local_certificates import operator_file
from loomlog.cli.processes.local_processes import CLUSTER_ID, ClusterPlan, running
from loomlog.client.cluster import connect
from loomlog.core.principal import Principal
from loomlog.limits import CLIENTS_BYTES_MAX, KIB, MIB
from loomlog.net.address import split_address
from loomlog.net.certificates import create_certificate
from loomlog.types import SyncMode
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec, FrameWriter

HOLD = Path(__file__).parents[1] / "bench/measure_idle_connections.py"
SILENT = 300
APPENDS = 50
IDLE_BYTES_MAX = {False: 16 * KIB, True: 64 * KIB}  # with TLS, of each; 10 and 50 were measured
MANY = 10_000


def as_many_as_possible() -> int:
    """Return how many connections a server accepts: half of its limit of open files."""
    return min(MANY, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2 - 100)


@contextmanager
def idle_peers(address: str, count: int, certs: str) -> Iterator[None]:
    """Let another process hold that many connections."""
    words = ("--hold", address, "--connections", str(count), "--tls", certs)
    process = subprocess.Popen(
        [sys.executable, HOLD, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{count}\n"
            yield
        finally:
            process.communicate("")


@contextmanager
def silent_peers(address: str, count: int) -> Iterator[None]:
    sockets = [socket.create_connection(split_address(address)) for _ in range(count)]
    try:
        yield
    finally:
        for each in sockets:
            with suppress(OSError):
                each.close()


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_frames_that_never_end_take_a_bounded_part_of_the_memory(tmp_path: Path) -> None:
    plan = ClusterPlan(directory=tmp_path, nodes=1, port=0, sync=SyncMode.NONE)
    async with running(plan) as processes:
        node = next(child for child in processes.children if child.name == "vsn-1")
        server = psutil.Process(node.process.pid)
        async with await connect(processes.address) as cluster:
            log = await cluster.create_log("orders", replicas=1)
            before, seen, writers = server.memory_info().rss, 0, []
            for _ in range(30):
                frames = FrameWriter()
                greeting = frames.encode(Codec("client").greeting())
                frame = frames.encode(pb.Frame(append=pb.Append()), [bytes(64 * MIB)])
                _, writer = await asyncio.open_connection(*split_address(node.address))
                writers.append(writer)
                writer.write(b"".join([*greeting, *frame])[: 60 * MIB])
                with suppress(ConnectionError):
                    await writer.drain()
                seen = max(seen, server.memory_info().rss - before)
                await log.append(b"beside it")
            assert seen < CLIENTS_BYTES_MAX * 5 // 4, f"{seen / MIB:.0f} MiB"
            for writer in writers:
                writer.transport.abort()
                with suppress(ConnectionError):
                    await writer.wait_closed()
            await until(lambda: server.memory_info().rss - before < 100 * MIB)
            assert await log.tail() == 30


@pytest.mark.timeout(900)  # handshakes take long on a busy machine
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    "count", [500, pytest.param(as_many_as_possible(), marks=pytest.mark.long)]
)
async def test_idle_connections_hinder_nobody(tmp_path: Path, count: int, secure: bool) -> None:
    plan = ClusterPlan(directory=tmp_path, nodes=1, port=0, secure=secure, sync=SyncMode.NONE)
    async with running(plan) as processes:
        node = next(child for child in processes.children if child.name == "vsn-1")
        tls = str(operator_file(tmp_path)) if secure else ""
        certs = str(Path(tls).parent) if secure else ""
        for number in range(20 if secure else 0):  # one name may not have as many connections
            holder = Principal("client", name=f"idle-{number}", cluster=CLUSTER_ID)
            create_certificate(Path(certs), holder)
        server = psutil.Process(node.process.pid)
        async with await connect(processes.address, tls=tls) as cluster:
            log = await cluster.create_log("orders", replicas=1)
            await log.append(b"first")
            before = server.memory_info().rss
            peers = idle_peers(node.address, count, certs)
            await asyncio.to_thread(peers.__enter__)
            try:
                held = len(server.net_connections())
                assert held > count * 9 // 10, "a busy machine may lose some"
                each = (server.memory_info().rss - before) / held
                assert each < IDLE_BYTES_MAX[secure], f"{each / KIB:.1f} KiB"
                with silent_peers(node.address, SILENT):
                    for _ in range(APPENDS):
                        await log.append(b"beside them")
            finally:
                await asyncio.to_thread(peers.__exit__, None, None, None)
            await until(lambda: len(server.net_connections()) < 20)
            await log.append(b"after them")
            assert await log.tail() == APPENDS + 2

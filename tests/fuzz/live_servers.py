"""Sends senseless frames to servers: they go on, and no frame is a bug of theirs."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any, Final

from random_frames import RandomFrames

from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.net.address import split_address
from loomlog.net.credentials import Credentials
from loomlog.testing import LocalCluster

FRAMES: Final = 25  # on each connection, at most
PATIENCE_S: Final = 60.0
_READ_S: Final = 0.02
_AT_ONCE: Final = 4  # connections


@dataclass
class LiveOutcome:
    """The counts and findings of a run."""

    connections: int = 0
    frames: int = 0
    problems: list[str] = field(default_factory=list)


class _Bugs(logging.Handler):
    """Collects what servers log as bugs of theirs."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__()
        self._problems = problems

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._problems.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


async def create_logs(cluster: Cluster) -> list[Log]:
    return [
        await cluster.create_log("o", replicas=2),
        await cluster.create_log("c", protocol="chained", replicas=2),
        await cluster.create_log("s", protocol="copyset", replicas=2),
    ]


async def say(address: str, words: bytes, tls: Credentials | None) -> None:
    """Send all of it, and leave when it was accepted or the server hung up."""
    context = tls.connecting() if tls is not None else None
    reader, writer = await asyncio.open_connection(*split_address(address), ssl=context)
    try:
        writer.write(words)
        async with asyncio.timeout(_READ_S):
            await writer.drain()
            while await reader.read(1 << 16):
                pass
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()


async def still_serve(logs: list[Log], value: bytes) -> None:
    """Append to every log and read it back."""
    async with asyncio.timeout(PATIENCE_S):
        for log in logs:
            at = await log.append(value)
            found = (await log.read(at.position)).value
            assert found == value, f"{log.name} read {found!r} instead of {value!r}"


async def fuzz_servers(
    seed: int,
    *,
    seconds: float = 1e9,
    connections: int = 1 << 62,
    metadata: int = 1,
    secure: bool = False,
) -> LiveOutcome:
    """Do so for a while, or that often; over TLS with the certificates of a node, a metadata
    repository and a client in turn."""
    outcome, end = LiveOutcome(), time.monotonic() + seconds
    handler = _Bugs(outcome.problems)
    logging.getLogger().addHandler(handler)
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: outcome.problems.append(str(context))
    )
    local = LocalCluster(nodes=2, metadata=metadata, secure=secure)
    try:
        async with local as cluster:
            logs = await create_logs(cluster)
            addresses = [node.address for node in local.nodes.values()]
            addresses += [repository.address for repository in local.repositories.values()]
            frames, turn = RandomFrames(seed, [1, 2, 3]), 0
            speakers: list[Credentials | None] = [None]
            if secure:
                files = (
                    local.certificate("node", number=2),
                    local.certificate("metadata", number=1),
                    local.certificate("client", name="mallory"),
                )
                speakers = [Credentials.of_client(file) for file in files]
            while (
                time.monotonic() < end
                and outcome.connections < connections
                and not outcome.problems
            ):
                words = [frames.connection(FRAMES) for _ in range(_AT_ONCE)]
                servers = [addresses[(turn + n) % len(addresses)] for n in range(_AT_ONCE)]
                shown = [speakers[(turn + n) % len(speakers)] for n in range(_AT_ONCE)]
                await asyncio.gather(*map(say, servers, words, shown))
                turn += _AT_ONCE + 1
                outcome.connections += _AT_ONCE
                outcome.frames += _AT_ONCE * FRAMES
                if turn % 50 == 0:
                    await still_serve(logs, b"%d" % turn)
            await still_serve(logs, b"after")
            servers_of: list[Any] = [*local.nodes.values(), *local.repositories.values()]
            outcome.problems += [
                str(each.failed.result()) for each in servers_of if each.failed.done()
            ]
    finally:
        logging.getLogger().removeHandler(handler)
    return outcome

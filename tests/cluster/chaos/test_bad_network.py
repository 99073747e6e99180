"""A network that damages bytes on every link: nothing wrong is acknowledged or delivered, and when
it is well again the cluster recovers in seconds."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import pytest
from damage import Damage, Damager
from running_workload import Workload
from server_processes import Proxy

from loomlog.config import MetadataSettings, NodeSettings
from loomlog.core.principal import Principal
from loomlog.errors import Retryable, Sealed
from loomlog.metadata import MetadataRepository
from loomlog.metadata.nodes.placement import UNABLE_S
from loomlog.metadata.store.memory import MemoryStore
from loomlog.net.certificates import create_authority, create_certificate
from loomlog.node import StorageNode
from loomlog.testing.ports import free_address

# It takes a few seconds; machines are slow at times, and a node that could not join while bytes
# were damaged is not asked again for a while.
RECOVERY_S = 20.0 + UNABLE_S
DETECTION_S = 1.0


class ProxiedServers:
    """Servers in this process, each behind a proxy: whoever talks to one talks through it."""

    def __init__(
        self, directory: Path, damager: Damager, metadata: int, *, secure: bool, nodes: int = 3
    ) -> None:
        self._directory = directory
        self.tls = str(certificates(directory / "certs", metadata, nodes)) if secure else ""
        self._damager = damager
        self._metadata = {number: free_address() for number in range(1, metadata + 1)}
        self._node_numbers = range(1, nodes + 1)
        self._store = MemoryStore() if metadata > 1 else None
        self._closing = AsyncExitStack()
        self.repositories: list[MetadataRepository] = []
        self.nodes: list[StorageNode] = []
        self.address = ""

    async def __aenter__(self) -> Self:
        proxies = {number: await self._proxy(at) for number, at in self._metadata.items()}
        self.address = ",".join(proxies.values())
        for number, listen in self._metadata.items():
            await self._start_metadata(number, listen, proxies)
        for number in self._node_numbers:
            await self._start_node(number)
        for node in self.nodes:
            await node.registered()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    async def _proxy(self, target: str) -> str:
        proxy = Proxy(target, self._damager)
        await proxy.start()
        self._closing.push_async_callback(proxy.stop)
        return proxy.address

    async def _start_metadata(self, number: int, listen: str, peers: dict[int, str]) -> None:
        settings = MetadataSettings(
            cluster_id="bad",
            directory=str(self._directory / f"vmr-{number}"),
            listen=listen,
            http=None,
            heartbeat_s=DETECTION_S / 3,
            failure_detection_s=DETECTION_S,
            member_id=number,
            peers=peers if self._store is not None else {},
            leader_silence_s=DETECTION_S,
            tls=self.tls,
        )
        repository = MetadataRepository(settings, store=self._store)
        await repository.start()
        self._closing.push_async_callback(repository.stop)
        self.repositories.append(repository)

    async def _start_node(self, number: int) -> None:
        listen = free_address()
        volume = self._directory / f"vsn-{number}"
        volume.mkdir()
        node = StorageNode(
            NodeSettings(
                node_id=number,
                cluster_id="bad",
                volumes=(str(volume),),
                metadata=tuple(self.address.split(",")),
                listen=listen,
                advertise=await self._proxy(listen),
                tls=self.tls,
            )
        )
        await node.start()
        self._closing.push_async_callback(node.stop)
        self.nodes.append(node)


def certificates(directory: Path, metadata: int, nodes: int) -> Path:
    """Make the certificates of all servers, and of an operator."""
    create_authority(directory, "bad")
    principals = [Principal("operator", "admin", cluster="bad")]
    principals += [Principal("metadata", number=n + 1, cluster="bad") for n in range(metadata)]
    principals += [Principal("node", number=n + 1, cluster="bad") for n in range(nodes)]
    for principal in principals:
        create_certificate(directory, principal, ["127.0.0.1"])
    return directory


async def survives(
    directory: Path,
    protocol: str,
    metadata: int,
    damage_s: float,
    caplog: pytest.LogCaptureFixture,
    *,
    secure: bool,
) -> None:
    damager = Damager(random.Random(1))
    async with ProxiedServers(directory, damager, metadata, secure=secure) as servers:
        streams = 1 if protocol == "copyset" else 2
        tls = servers.tls or None
        async with Workload(servers.address, protocol=protocol, streams=streams, tls=tls) as work:
            await work.acked(20)
            for rate in (0.01, 0.1):
                damager.rate = rate
                await asyncio.sleep(damage_s / 2)
            while not all(damager.counts[kind] for kind in Damage):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            damager.rate = 0.0
            async with asyncio.timeout(RECOVERY_S):
                await work.append_s()
                await work.running()
            await work.acked(20)
        strange = [error for error in work.failures if not isinstance(error, Retryable | Sealed)]
        assert not strange
        assert not any(node.failed.done() for node in servers.nodes)
        assert not any(repository.failed.done() for repository in servers.repositories)
    assert not [record.getMessage() for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(("protocol", "metadata"), [("ordered", 3), ("chained", 1), ("copyset", 1)])
async def test_a_network_that_damages_bytes(
    tmp_path: Path, protocol: str, metadata: int, caplog: pytest.LogCaptureFixture
) -> None:
    await survives(tmp_path, protocol, metadata, 3, caplog, secure=False)


@pytest.mark.long
@pytest.mark.timeout(400)  # every step has its own limit, which names what did not happen
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("metadata", [1, 3])
@pytest.mark.parametrize("protocol", ["ordered", "chained", "copyset"])
async def test_a_network_that_damages_bytes_for_long(
    tmp_path: Path, protocol: str, metadata: int, secure: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await survives(tmp_path, protocol, metadata, 30, caplog, secure=secure)

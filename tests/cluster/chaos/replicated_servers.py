"""Three vmr and three vsn as real processes, on three real etcd: everything that can be hit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from server_processes import CLUSTER_ID, ServerProcess

from loomlog.client.cluster import Cluster
from loomlog.errors import LoomError
from loomlog.testing import LocalEtcd
from loomlog.testing.ports import free_address

MEMBERS = (1, 2, 3)
LEADER_TIMEOUT_S = 0.5
PATIENCE_S = 60.0


class ReplicatedServers:
    def __init__(self, directory: Path, nodes: int = 3) -> None:
        self._directory = directory
        (directory / "etcd").mkdir()
        self.etcd = LocalEtcd(3, directory=directory / "etcd")
        self._addresses = {number: free_address() for number in MEMBERS}
        self._node_numbers = range(1, nodes + 1)
        self.repositories: dict[int, ServerProcess] = {}
        self.nodes: dict[int, ServerProcess] = {}

    @property
    def address(self) -> str:
        return ",".join(self._addresses.values())

    async def __aenter__(self) -> ReplicatedServers:
        await asyncio.to_thread(self.etcd.__enter__)
        try:
            for number in MEMBERS:
                self.repositories[number] = self._repository(number)
            await asyncio.gather(*(server.start() for server in self.repositories.values()))
            for number in self._node_numbers:
                self.nodes[number] = self._node(number)
            await asyncio.gather(*(server.start() for server in self.nodes.values()))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in (*self.nodes.values(), *self.repositories.values()):
            await server.kill()
        await asyncio.to_thread(self.etcd.close)

    def _repository(self, number: int) -> ServerProcess:
        peers = ",".join(f"{n}={address}" for n, address in self._addresses.items())
        arguments = ["--cluster-id", CLUSTER_ID, "--data", str(self._directory / f"vmr-{number}")]
        arguments += ["--listen", self._addresses[number], "--http", "none"]
        arguments += ["--store", "etcd", "--etcd", ",".join(self.etcd.endpoints)]
        arguments += ["--peers", peers, "--member-id", str(number)]
        arguments += ["--leader-timeout", str(LEADER_TIMEOUT_S)]
        name = f"vmr-{number}"
        return ServerProcess(name, "vmr", arguments, self._directory / f"{name}.log")

    def _node(self, number: int) -> ServerProcess:
        name = f"vsn-{number}"
        volume = self._directory / name
        volume.mkdir()
        arguments = ["--cluster-id", CLUSTER_ID, "--storage-node-id", str(number)]
        arguments += ["--volumes", str(volume), "--mr", self.address, "--listen", free_address()]
        return ServerProcess(name, "vsn", arguments, self._directory / f"{name}.log")

    # ---- who leads

    async def leader(self, cluster: Cluster) -> int:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return (await cluster.status()).leader
                except LoomError:
                    await asyncio.sleep(0.05)

    async def another_leads(self, cluster: Cluster, old: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.leader(cluster) == old:  # noqa: ASYNC110 - it can only be asked
                await asyncio.sleep(0.05)

    async def follower(self, cluster: Cluster) -> int:
        leader = await self.leader(cluster)
        return next(number for number in MEMBERS if number != leader)


class EtcdLeader:
    """The member of etcd that leads now, to be hit like any server."""

    def __init__(self, etcd: LocalEtcd) -> None:
        self._etcd = etcd
        self._number = etcd.leader()

    async def kill(self) -> None:
        await asyncio.to_thread(self._etcd.kill, self._number)

    async def start(self) -> None:
        await asyncio.to_thread(self._etcd.start, self._number)

    def freeze(self) -> None:
        self._etcd.pause(self._number)

    def thaw(self) -> None:
        self._etcd.resume(self._number)


Victim = ServerProcess | EtcdLeader


async def killed(*victims: Victim, meanwhile: Callable[[], Awaitable[None]]) -> None:
    for victim in victims:
        await victim.kill()
    await meanwhile()
    for victim in victims:
        await victim.start()


async def frozen(*victims: Victim, meanwhile: Callable[[], Awaitable[None]]) -> None:
    for victim in victims:
        victim.freeze()
    try:
        await meanwhile()
    finally:
        for victim in victims:
            victim.thaw()

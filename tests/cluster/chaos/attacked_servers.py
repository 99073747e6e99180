"""A cluster of real processes of which everything can be hit: processes, disks, clocks, links.

Every link passes a proxy: clients to vmr and vsn, vsn to vmr and to each other, vmr to each other.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Final

from damage import Damager
from server_processes import CLUSTER_ID, Proxy, ServerProcess

from loomlog.testing import LocalEtcd
from loomlog.testing.ports import free_address

CLOCK_HOOK: Final = Path(__file__).parent / "clock"
DETECTION_S: Final = 1.0
VOLUME_MIB: Final = 512  # of the one node whose disk can be full


class AttackedServers:
    """Nodes numbered from 1, and metadata repositories; the last node has a file system of its
    own where this process may mount one."""

    def __init__(self, directory: Path, rng: random.Random, *, nodes: int, metadata: int) -> None:
        self._directory = directory
        self._etcd: LocalEtcd | None = None
        if metadata > 1:
            (directory / "etcd").mkdir()
            self._etcd = LocalEtcd(3, directory=directory / "etcd")
        self.damager = Damager(rng)
        self._proxies: list[Proxy] = []
        self._metadata = {n: self._proxy(free_address()) for n in range(1, metadata + 1)}
        self._nodes = {n: self._proxy(free_address()) for n in range(1, nodes + 1)}
        self.repositories: dict[int, ServerProcess] = {}
        self.nodes: dict[int, ServerProcess] = {}
        self.small = 0  # the number of the node that has a file system of its own; 0: none

    def _proxy(self, target: str) -> Proxy:
        self._proxies.append(Proxy(target, self.damager))
        return self._proxies[-1]

    @property
    def address(self) -> str:
        """The addresses that clients connect to."""
        return ",".join(proxy.address for proxy in self._metadata.values())

    @property
    def servers(self) -> list[ServerProcess]:
        return [*self.repositories.values(), *self.nodes.values()]

    async def __aenter__(self) -> AttackedServers:
        try:
            if self._etcd is not None:
                await asyncio.to_thread(self._etcd.__enter__)
            for proxy in self._proxies:
                await proxy.start()
            self.repositories = {number: self._repository(number) for number in self._metadata}
            await asyncio.gather(*(server.start() for server in self.repositories.values()))
            self._mount(max(self._nodes))
            self.nodes = {number: self._node(number) for number in self._nodes}
            await asyncio.gather(*(server.start() for server in self.nodes.values()))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self.servers:
            await server.kill()
        for proxy in self._proxies:
            await proxy.stop()
        if self._etcd is not None:
            await asyncio.to_thread(self._etcd.close)
        if self.small:
            unmount = ["umount", "-l", str(self.volume(self.small))]
            subprocess.run(unmount, capture_output=True, check=False)

    # ---- what can be hit besides processes

    def volume(self, node: int) -> Path:
        return self._directory / f"vsn-{node}"

    def wipe(self, node: int) -> None:
        """Lose a disk; the node must not run."""
        for found in self.volume(node).iterdir():
            shutil.rmtree(found) if found.is_dir() else found.unlink()

    def set_clock(self, server: str, offset_s: float) -> None:
        """Set the wall clock of a server wrong by `offset_s`."""
        self._clock(server).write_text(str(offset_s))

    def cut(self, node: int) -> None:
        """Silence what others send to the node."""
        self._nodes[node].cut()

    def heal(self, node: int) -> None:
        self._nodes[node].heal()

    # ---- inside

    def _clock(self, server: str) -> Path:
        return self._directory / f"{server}.clock"

    def _environment(self, server: str) -> dict[str, str]:
        path = os.pathsep.join([str(CLOCK_HOOK), os.environ.get("PYTHONPATH", "")])
        return {"PYTHONPATH": path, "LOOM_CLOCK_OFFSET": str(self._clock(server))}

    def _server(self, name: str, program: str, arguments: list[str]) -> ServerProcess:
        log = self._directory / f"{name}.log"
        return ServerProcess(name, program, arguments, log, self._environment(name))

    def _repository(self, number: int) -> ServerProcess:
        name = f"vmr-{number}"
        proxy = self._metadata[number]
        arguments = ["--cluster-id", CLUSTER_ID, "--data", str(self._directory / name)]
        arguments += ["--listen", proxy.target, "--http", "none"]
        arguments += ["--heartbeat-timeout", str(DETECTION_S), "--retention-interval", "1"]
        if self._etcd is not None:
            peers = ",".join(f"{n}={p.address}" for n, p in self._metadata.items())
            arguments += ["--store", "etcd", "--etcd", ",".join(self._etcd.endpoints)]
            arguments += ["--peers", peers, "--member-id", str(number), "--leader-timeout", "1"]
        return self._server(name, "vmr", arguments)

    def _node(self, number: int) -> ServerProcess:
        proxy = self._nodes[number]
        self.volume(number).mkdir(exist_ok=True)
        arguments = ["--cluster-id", CLUSTER_ID, "--storage-node-id", str(number)]
        arguments += ["--volumes", str(self.volume(number)), "--mr", self.address]
        arguments += ["--listen", proxy.target, "--advertise", proxy.address]
        return self._server(f"vsn-{number}", "vsn", arguments)

    def _mount(self, node: int) -> None:
        self.volume(node).mkdir()
        options = ["-t", "tmpfs", "-o", f"size={VOLUME_MIB}m", "loomlog-attack"]
        done = subprocess.run(
            ["mount", *options, str(self.volume(node))], capture_output=True, check=False
        )
        self.small = node if done.returncode == 0 else 0

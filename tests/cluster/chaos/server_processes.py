"""Real server processes for chaos tests: killed, frozen, cut off, out of disk, started again.

Every storage node talks through proxies of the test (to it, and from it to the metadata
repository), so that its network can be cut without touching this machine's.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from damage import Damage, Damager

from loomlog.net.address import join_address
from loomlog.net.listener import stop_listening
from loomlog.testing.ports import free_address

CLUSTER_ID = "chaos"
READY_S = 90.0  # a start is slow where much else runs


class Proxy:
    """Forwards TCP to a target; `cut` silences it both ways, `heal` resets what was cut. A
    `damager` changes bytes on their way."""

    def __init__(self, target: str, damager: Damager | None = None) -> None:
        self.target = target
        self._damager = damager
        self.address = ""
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.address = join_address(*self._server.sockets[0].getsockname()[:2])

    async def stop(self) -> None:
        if self._server is not None:
            await stop_listening(self._server)
            await asyncio.sleep(0)  # what was accepted last begins, or it would never be closed
        self.heal()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Let nothing pass any more; connections stay open and silent."""
        self._passing.clear()

    def heal(self) -> None:
        """Reset the connections that were cut, and let new ones pass."""
        self._passing.set()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            await self._passing.wait()
            host, _, port = self.target.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            self._writers.add(far_writer)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass(reader, far_writer))
                    group.create_task(self._pass(far_reader, writer))
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 18):
            await self._passing.wait()
            if self._damager is not None and (damage := self._damager.choose()) is not None:
                await self._damage(writer, data, damage, self._damager)
            else:
                writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # end both directions

    async def _damage(
        self, writer: asyncio.StreamWriter, data: bytes, damage: Damage, damager: Damager
    ) -> None:
        if damage is Damage.DELAY:
            await asyncio.sleep(damager.delay_s())
        writer.write(damager.damaged(data, damage))
        if damage is Damage.CUT:
            await writer.drain()
            raise ConnectionResetError


class ServerProcess:
    """One vsn or vmr."""

    def __init__(
        self,
        name: str,
        program: str,
        arguments: list[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._environment = None if environment is None else {**os.environ, **environment}
        self._command = [sys.executable, "-m", f"loomlog.cli.{program}", "start", *arguments]
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._is_ready = False

    async def start(self) -> None:
        await self.launch()
        await self.ready()

    async def launch(self) -> None:
        """Start the process; what it needs, a metadata repository say, may come later."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
            )
        self._is_ready = False

    async def ready(self) -> None:
        """Wait until it serves."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        if not self._is_ready:
            async with asyncio.timeout(READY_S):
                line = await process.stdout.readline()
            assert line, f"{self.name} did not start: {self._log.read_text()[-2000:]}"
            self._is_ready = True

    @property
    def process(self) -> asyncio.subprocess.Process | None:
        """The current process, if it runs."""
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> None:
        """Kill the process with -9, if it still exists."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def terminate(self) -> int:
        """Send SIGTERM and return the exit code."""
        assert self._process is not None
        process, self._process = self._process, None
        process.terminate()
        return await process.wait()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """Let every write that makes a file longer fail."""
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    def free_disk(self) -> None:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, unlimited)

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _signal(self, number: int) -> None:
        os.kill(self._pid, number)


class Servers:
    """One vmr and some vsn, all behind proxies."""

    def __init__(self, directory: Path, nodes: int, detection_s: float = 1.0) -> None:
        self._directory = directory
        self._count = nodes
        metadata = free_address()
        self.to_metadata = Proxy(metadata)
        arguments = ["--cluster-id", CLUSTER_ID, "--data", str(directory / "vmr")]
        arguments += ["--listen", metadata, "--http", "none"]
        arguments += ["--heartbeat-timeout", str(detection_s)]
        self.vmr = ServerProcess("vmr", "vmr", arguments, directory / "vmr.log")
        self.nodes: dict[int, ServerProcess] = {}
        self._to_node: dict[int, Proxy] = {}
        self._from_node: dict[int, Proxy] = {}

    @property
    def address(self) -> str:
        return self.to_metadata.address

    async def __aenter__(self) -> Servers:
        await self.to_metadata.start()
        try:
            await self.vmr.start()
            for number in range(1, self._count + 1):
                await self._add_node(number)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in (*self.nodes.values(), self.vmr):
            await server.kill()
        for proxy in (self.to_metadata, *self._to_node.values(), *self._from_node.values()):
            await proxy.stop()

    async def _add_node(self, number: int) -> None:
        listen = free_address()
        self._to_node[number] = proxy = Proxy(listen)
        await proxy.start()
        self._from_node[number] = outward = Proxy(self.to_metadata.target)
        await outward.start()
        volume = self._directory / f"vsn-{number}"
        volume.mkdir()
        arguments = ["--cluster-id", CLUSTER_ID, "--storage-node-id", str(number)]
        arguments += ["--volumes", str(volume), "--mr", outward.address]
        arguments += ["--listen", listen, "--advertise", proxy.address]
        log = self._directory / f"vsn-{number}.log"
        self.nodes[number] = ServerProcess(f"vsn-{number}", "vsn", arguments, log)
        await self.start_node(number)

    async def start_node(self, number: int) -> None:
        await self.nodes[number].start()

    async def start_all(self) -> None:
        """Start all servers together: a vmr admits no node before most of them have registered."""
        servers = (self.vmr, *self.nodes.values())
        for server in servers:
            await server.launch()
        for server in servers:
            await server.ready()

    def cut(self, number: int) -> None:
        """Cut all connections from and to the node."""
        self._to_node[number].cut()
        self._from_node[number].cut()

    def heal(self, number: int) -> None:
        self._to_node[number].heal()
        self._from_node[number].heal()

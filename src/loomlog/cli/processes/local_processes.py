"""A cluster of real server processes on this machine: what `loom up`, `loom bench --up` and the
demo run.

One directory holds everything: `vmr-N/`, `vsn-N/` and `etcd-1/` have data, `logs/` the output.
Children are restarted only on request, because tests and operators kill them on purpose. They stop
when this process stops, even if it is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from loomlog import limits
from loomlog.cli.processes.local_certificates import (
    is_secure,
    make_certificates,
    metadata_file,
    operator_file,
)
from loomlog.cli.processes.local_metadata import (
    HOST,
    Addresses,
    addresses_for,
    etcd_command,
)
from loomlog.core.backoff import Backoff
from loomlog.errors import InvalidArgument, LoomError
from loomlog.net.credentials import AUTHORITIES
from loomlog.storage.disk import DIRECTORY_MODE, FILE_MODE
from loomlog.testing.etcd import environment, is_healthy
from loomlog.types import SyncMode

CLUSTER_ID: Final = "local"
ETCD: Final = "etcd-1"
START_TIMEOUT_S: Final = 60.0  # a node with much data on a busy machine
POLL_S: Final = 0.05  # while etcd starts
STOP_TIMEOUT_S: Final = 15.0  # then it is killed
RESTARTS: Final = Backoff(0.2, 30.0)  # of a child that dies again and again
LASTS_S: Final = 60.0  # one that ran for longer is restarted at once
NODE_HTTP_DISTANCE: Final = 10  # the first node's is 7491: there are up to 5 vmr


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The servers to start."""

    directory: Path
    nodes: int
    metadata: int = 1  # metadata repositories; several share a local etcd
    port: int = 0  # of the first vmr, others follow; 0 picks free ones
    http_port: int = 0
    sync: SyncMode = SyncMode.ALWAYS
    heartbeat_timeout_s: float = limits.FAILURE_DETECTION_S
    replace_after_s: float | None = None  # None: as soon as a node counts as dead
    sync_rate_mb_s: float = 0.0  # 0: no limit
    rebuild_after_s: float = limits.REBUILD_AFTER_S
    rebuild_rate_mb_s: float = limits.REBUILD_BYTES_PER_S / 1e6  # 0: no limit
    locations: int = 0  # of the nodes, in turn; 0: a separate one for each
    secure: bool = False  # TLS, with certificates in the directory, also in all later runs
    console_port: int | None = None  # None: no console


@dataclass(frozen=True, slots=True)
class Child:
    """A server process that is ready, or has reported what it waits for."""

    name: str
    process: asyncio.subprocess.Process
    address: str
    http: str | None
    log_file: Path
    held_back: str = ""  # why it has to wait for an operator

    @property
    def pid(self) -> int:
        return self.process.pid


class LocalProcesses:
    """Some vmr and some vsn as children of this process."""

    def __init__(self, plan: ClusterPlan) -> None:
        self._is_secure = plan.secure or is_secure(plan.directory)
        self.plan = replace(plan, secure=self._is_secure)
        self._spawned: list[asyncio.subprocess.Process] = []
        self._arguments: dict[str, list[str]] = {}
        self.children: list[Child] = []
        self.console: Child | None = None
        self._addresses: Addresses | None = None  # of several metadata repositories, and etcd

    @property
    def address(self) -> str:
        """The address for clients: all metadata repositories, separated by commas."""
        return ",".join(child.address for child in self._metadata())

    @property
    def tls(self) -> str:
        """The file with the certificate of an operator; empty without TLS."""
        return str(operator_file(self.plan.directory)) if self._is_secure else ""

    @property
    def http(self) -> str:
        return self._metadata()[0].http or ""

    @property
    def metrics(self) -> dict[str, str]:
        """The addresses that serve metrics, by server."""
        return {child.name: child.http for child in self.children if child.http}

    def _metadata(self) -> list[Child]:
        return [child for child in self.children if child.name.startswith("vmr-")]

    @property
    def pids(self) -> dict[str, int]:
        console = [] if self.console is None else [self.console]
        return {child.name: child.pid for child in [*self.children, *console]}

    async def start(self) -> None:
        """Start all and wait until they are ready; on failure none is left running."""
        _prepare(self.plan)
        if self._is_secure:
            make_certificates(self.plan.directory, CLUSTER_ID, self.plan.metadata, self.plan.nodes)
        try:
            addresses = addresses_for(self.plan.directory, self.plan.metadata, self.plan.port)
            self._addresses = addresses
            if addresses is not None:
                self.children.append(await self._start_etcd(addresses))
            await self._start_all("vmr", self.plan.metadata, partial(_vmr_arguments, addresses))
            await self._start_all("vsn", self.plan.nodes, partial(_vsn_arguments, self.address))
            if self.plan.console_port is not None:
                arguments = _console_arguments(self.address, self.plan)
                arguments += ["--metrics", ",".join(c.http for c in self.children if c.http)]
                self.console = await self._start("console", arguments)
        except BaseException:
            await self.stop()
            raise

    async def _start_all(
        self, kind: str, count: int, arguments: Callable[[ClusterPlan, int], list[str]]
    ) -> None:
        numbers = range(1, count + 1)
        starting = (self._start(f"{kind}-{n}", arguments(self.plan, n)) for n in numbers)
        self.children.extend(await asyncio.gather(*starting))

    async def _start_etcd(self, addresses: Addresses) -> Child:
        log_file = self._log_file(ETCD)
        tls = metadata_file(self.plan.directory, 1) if self._is_secure else None
        command = etcd_command(self.plan.directory, addresses, tls)
        process = await _spawn(command, log_file, environment())
        self._spawned.append(process)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not await asyncio.to_thread(is_healthy, addresses.etcd, tls):
            if process.returncode is not None or time.monotonic() > deadline:
                raise LoomError(f"{ETCD} did not start: {_last_words(log_file)}")
            await asyncio.sleep(POLL_S)
        return Child(ETCD, process, addresses.etcd, None, log_file)

    async def stop(self) -> None:
        """Send SIGTERM to all, nodes first, because they report to the metadata repository that
        they stop; kill those that do not end in time."""
        nodes = [child.process for child in self.children if child.name.startswith("vsn-")]
        for processes in (nodes, self._spawned):
            for process in reversed(processes):
                _send(process, signal.SIGTERM)
            await asyncio.gather(*(_ended(process) for process in processes))

    async def watch(self, died: Callable[[Child, int], None]) -> None:
        """Call `died` for every child that ends; return when no server is left."""

        async def one(child: Child) -> None:
            died(child, await child.process.wait())

        looking = None if self.console is None else asyncio.ensure_future(one(self.console))
        try:
            await asyncio.gather(*(one(child) for child in self.children))
        finally:
            if looking is not None:
                looking.cancel()

    async def keep_running(
        self, died: Callable[[Child, int], None], started: Callable[[Child | LoomError], None]
    ) -> None:
        """Restart every child that ends, and call `started` with it, or with the reason why it did
        not start. Wait longer after each failure."""

        async def one(child: Child) -> None:
            failures = 0
            while True:
                begun_s = time.monotonic()
                died(child, await child.process.wait())
                self._keep_addresses(child)
                failures = 0 if time.monotonic() - begun_s > LASTS_S else failures
                while True:
                    await asyncio.sleep(RESTARTS.delay_s(failures))
                    failures += 1
                    try:
                        await self.start_again(child.name)
                        break
                    except LoomError as error:
                        started(error)
                child = self._child(child.name)
                started(child)

        console = [] if self.console is None else [self.console]
        await asyncio.gather(*(one(child) for child in [*self.children, *console]))

    async def end(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one of them and wait until it is gone."""
        child = self._child(name)
        _send(child.process, number)
        await child.process.wait()

    async def start_again(self, name: str) -> None:
        """Start one that has ended, on its data."""
        gone = self._child(name)
        if self._addresses is not None and name == ETCD:
            again = await self._start_etcd(self._addresses)
        else:
            again = await self._start(name, self._arguments[name])
        if gone is self.console:
            self.console = again
        else:
            self.children[self.children.index(gone)] = again

    def _child(self, name: str) -> Child:
        if self.console is not None and name == self.console.name:
            return self.console
        return next(child for child in self.children if child.name == name)

    async def _start(self, name: str, arguments: list[str]) -> Child:
        self._arguments[name] = arguments
        log_file = self._log_file(name)
        command = [sys.executable, "-m", *arguments, "--end-with-parent"]
        process = await _spawn(command, log_file)
        self._spawned.append(process)
        ready = await _ready_line(name, process, log_file)
        return Child(
            name=name,
            process=process,
            address=ready["address"],
            http=ready.get("http") or ready.get("url"),
            log_file=log_file,
            held_back=ready.get("held_back", ""),
        )

    def _keep_addresses(self, child: Child) -> None:
        """Let a restarted child use its previous ports."""
        arguments = self._arguments.get(child.name, [])  # the ports of etcd never change
        for option, address in (("--listen", child.address), ("--http", child.http)):
            if address is not None and option in arguments:
                arguments[arguments.index(option) + 1] = address

    def _log_file(self, name: str) -> Path:
        return self.plan.directory / "logs" / f"{name}.log"


@asynccontextmanager
async def running(plan: ClusterPlan) -> AsyncIterator[LocalProcesses]:
    """Run a cluster until the end of the block."""
    processes = LocalProcesses(plan)
    await processes.start()
    try:
        yield processes
    finally:
        await processes.stop()


def nodes_found(directory: Path) -> int:
    """Return how many storage nodes have data in the directory."""
    count = 0
    while (directory / f"vsn-{count + 1}").is_dir():
        count += 1
    return count


def _prepare(plan: ClusterPlan) -> None:
    vmrs = (f"vmr-{n}" for n in range(1, plan.metadata + 1))
    names = ["logs", *vmrs, *(f"vsn-{n}" for n in range(1, plan.nodes + 1))]
    for name in names:
        path = plan.directory / name
        try:
            plan.directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(
                f"cannot make {path}: {error.strerror}; give another --data directory"
            ) from None


def _vmr_arguments(addresses: Addresses | None, plan: ClusterPlan, number: int) -> list[str]:
    after = [] if plan.replace_after_s is None else ["--replace-after", str(plan.replace_after_s)]
    listen, several = f"{HOST}:{plan.port}", []
    if addresses is not None:
        listen = addresses.members[number - 1]
        several = [
            *("--store", "etcd", "--etcd", addresses.etcd),
            *("--peers", addresses.peers, "--member-id", str(number)),
        ]
        if plan.secure:
            own = str(metadata_file(plan.directory, number))
            authorities = str(metadata_file(plan.directory, number).with_name(AUTHORITIES))
            several += ["--etcd-ca", authorities, "--etcd-cert", own, "--etcd-key", own]
    http_port = plan.http_port + number - 1 if plan.http_port else 0
    return [
        *("loomlog.cli.vmr", "start", "--cluster-id", CLUSTER_ID),
        *("--data", str(plan.directory / f"vmr-{number}"), *several),
        *("--listen", listen, "--http", f"{HOST}:{http_port}"),
        *("--heartbeat-timeout", str(plan.heartbeat_timeout_s)),
        *("--rebuild-after", str(plan.rebuild_after_s)),
        *("--rebuild-rate", str(plan.rebuild_rate_mb_s)),
        *("--sync-rate", str(plan.sync_rate_mb_s), *after, *_tls_arguments(plan)),
    ]


def _vsn_arguments(metadata: str, plan: ClusterPlan, number: int) -> list[str]:
    location = f"rack={(number - 1) % plan.locations + 1}" if plan.locations else ""
    http_port = plan.http_port + NODE_HTTP_DISTANCE + number if plan.http_port else 0
    return [
        *("loomlog.cli.vsn", "start", "--cluster-id", CLUSTER_ID),
        *("--storage-node-id", str(number), "--volumes", str(plan.directory / f"vsn-{number}")),
        *("--mr", metadata, "--listen", f"{HOST}:0", "--sync", plan.sync),
        *("--location", location, "--http", f"{HOST}:{http_port}", *_tls_arguments(plan)),
    ]


def _console_arguments(metadata: str, plan: ClusterPlan) -> list[str]:
    """Return the arguments of a console, which uses the host of a metadata repository."""
    tls = ["--tls", str(metadata_file(plan.directory, 1))] if plan.secure else []
    return [
        *("loomlog.cli.loom", "console", "--cluster", metadata),
        *("--listen", f"{HOST}:{plan.console_port}", *tls),
    ]


def _tls_arguments(plan: ClusterPlan) -> list[str]:
    return ["--tls", str(operator_file(plan.directory).parent)] if plan.secure else []


async def _spawn(
    command: list[str], log_file: Path, environment: dict[str, str] | None = None
) -> asyncio.subprocess.Process:
    with os.fdopen(_open_private(log_file), "ab") as log:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process, which stops them in order
        )


def _open_private(file: Path) -> int:
    """Open a log file, new or existing, with permissions for its owner only."""
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, FILE_MODE)
    os.fchmod(fd, FILE_MODE)
    return fd


async def _ready_line(
    name: str, process: asyncio.subprocess.Process, log_file: Path
) -> dict[str, Any]:
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
    except TimeoutError:
        raise LoomError(
            f"{name} was not ready after {START_TIMEOUT_S:g} s; its log is {log_file}"
        ) from None
    if not line:
        await process.wait()
        raise LoomError(f"{name} did not start: {_last_words(log_file)}")
    ready: dict[str, Any] = json.loads(line)
    return ready


def _last_words(log_file: Path) -> str:
    lines = log_file.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"it printed nothing; its log is {log_file}"


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            pass


async def _ended(process: asyncio.subprocess.Process) -> None:
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        _send(process, signal.SIGKILL)
        await process.wait()

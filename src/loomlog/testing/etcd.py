"""Real etcd processes on this machine: killed, frozen, stopped and started again by tests.

All functions block; in asyncio, call them through `asyncio.to_thread`, or from fixtures. Elections
are quick, to keep tests short.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from loomlog.errors import LoomError, Unavailable
from loomlog.net.credentials import AUTHORITIES, Credentials
from loomlog.testing.ports import listen_on_free_port

HEARTBEAT_MS: Final = 50
ELECTION_MS: Final = 500
READY_S: Final = 30.0  # of a busy machine
STOP_S: Final = 10.0  # then it is killed
_HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.02


def require_etcd() -> str:
    """Return the path of the etcd binary; raise a LoomError with the fix if there is none."""
    found = shutil.which("etcd")
    if found is None:
        raise LoomError(
            "there is no etcd: install it (Debian, Ubuntu: apt-get install etcd-server) "
            "or put it on the PATH"
        )
    return found


def member_command(
    binary: str, name: str, directory: Path, client: str, peer: str, cluster: str
) -> list[str]:
    """Return the command that runs a member, with its data in `directory`; addresses are URLs."""
    return [
        *(binary, "--name", name, "--data-dir", str(directory / name)),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", cluster),
        *("--heartbeat-interval", str(HEARTBEAT_MS), "--election-timeout", str(ELECTION_MS)),
        *("--logger", "zap", "--log-outputs", "stderr", "--log-level", "warn"),
    ]


def environment() -> dict[str, str]:
    """Return the environment without the settings of another etcd."""
    return {name: text for name, text in os.environ.items() if not name.startswith("ETCD_")}


def tls_options(own: Path) -> list[str]:
    """Return the options that make etcd require certificates. The file `own` has its key and
    certificate; the authorities are in a file next to it (net/credentials.py)."""
    trusted = str(own.with_name(AUTHORITIES))
    options = []
    for side in ("", "peer-"):
        options += [f"--{side}cert-file={own}", f"--{side}key-file={own}"]
        options += [f"--{side}trusted-ca-file={trusted}", f"--{side}client-cert-auth"]
    return options


def is_healthy(address: str, tls: Path | None = None) -> bool:
    """Return whether a member serves and knows a leader. `tls`: a key and certificate."""
    return b'"true"' in (_get(address, "/health", tls) or b"")


@contextmanager
def free_addresses(count: int) -> Iterator[list[str]]:
    """Yield different addresses, taken until the end of the block."""
    with ExitStack() as taken:
        listeners = [taken.enter_context(listen_on_free_port()) for _ in range(count)]
        yield [f"{_HOST}:{listener.getsockname()[1]}" for listener in listeners]


def _get(address: str, path: str, tls: Path | None = None) -> bytes | None:
    connection = http.client.HTTPConnection(address, timeout=1)
    try:
        if tls is not None:
            context = Credentials.of_client(str(tls)).connecting()
            connection = http.client.HTTPSConnection(address, timeout=1, context=context)
        connection.request("GET", path)
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class LocalEtcd:
    """`with LocalEtcd(members=3) as etcd:` runs an etcd cluster until the end of the block.

    Members are numbered from 1. `arguments` are passed to every member, e.g. for TLS (then with
    `scheme="https"`). Their output is in `member-N.log` in the directory.
    """

    def __init__(
        self,
        members: int = 1,
        *,
        directory: str | Path | None = None,
        arguments: Sequence[str] = (),
        scheme: str = "http",
    ) -> None:
        self._count = members
        self._directory = Path(directory) if directory is not None else None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._arguments = tuple(arguments)
        self._scheme = scheme
        self._members: dict[int, _Member] = {}

    @property
    def endpoints(self) -> tuple[str, ...]:
        """host:port of every member, running or not."""
        return tuple(member.address for member in self._members.values())

    @property
    def pids(self) -> dict[int, int]:
        """The process ids of the running members."""
        members = self._members.items()
        return {number: member.process.pid for number, member in members if member.process}

    def __enter__(self) -> LocalEtcd:
        binary = require_etcd()
        if self._directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="loomlog-etcd-")
            self._directory = Path(self._temporary.name)
        self._plan(binary, self._directory)
        try:
            for member in self._members.values():
                member.start()
            for number in self._members:
                self.wait_healthy(number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for member in self._members.values():
            member.kill()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary, self._directory = None, None

    # ---- one member

    def start(self, member: int) -> None:
        """Start it again on its data; returns once its process listens, healthy or not."""
        self._members[member].start()
        self._wait(member, self._members[member].listens, "did not start")

    def stop(self, member: int) -> None:
        self._members[member].stop()

    def kill(self, member: int) -> None:
        """Kill it with -9, if it is not gone already."""
        self._members[member].kill()

    def pause(self, member: int) -> None:
        """Send SIGSTOP: it is silent, its connections stay open."""
        self._members[member].signal(signal.SIGSTOP)

    def resume(self, member: int) -> None:
        self._members[member].signal(signal.SIGCONT)

    # ---- all of them

    def wait_healthy(self, member: int) -> None:
        """Wait until it serves and knows a leader."""
        self._wait(member, self._members[member].healthy, "is not healthy")

    def leader(self) -> int:
        """Return the member that leads; wait for an election."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            for number in self.pids:
                if self._members[number].leads():
                    return number
            time.sleep(_POLL_S)
        raise Unavailable(f"no member of etcd leads after {READY_S:.0f} s: see {self._directory}")

    def _wait(self, member: int, reached: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + READY_S
        while not reached():
            if self._members[member].ended or time.monotonic() > deadline:
                log = self._members[member].log.read_text(errors="replace")
                raise Unavailable(f"etcd member {member} {otherwise}: {log[-2000:]}")
            time.sleep(_POLL_S)

    def _plan(self, binary: str, directory: Path) -> None:
        numbers = range(1, self._count + 1)
        with free_addresses(3 * self._count) as addresses:
            peers = dict(zip(numbers, addresses[::3], strict=True))
            cluster = ",".join(f"member-{number}=http://{peers[number]}" for number in numbers)
            for number, client, metrics in zip(
                numbers, addresses[1::3], addresses[2::3], strict=True
            ):
                name, peer = f"member-{number}", f"http://{peers[number]}"
                url = f"{self._scheme}://{client}"
                command = member_command(binary, name, directory, url, peer, cluster)
                command += ["--listen-metrics-urls", f"http://{metrics}", *self._arguments]
                log = directory / f"{name}.log"
                self._members[number] = _Member(client, metrics, log, command)


class _Member:
    def __init__(self, address: str, metrics: str, log: Path, command: list[str]) -> None:
        self.address = address
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self._metrics = metrics
        self._command = command

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def start(self) -> None:
        assert self.ended, "it runs already"
        # A session of its own: Ctrl-C is for the tests, which end it in order.
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment(),
            )

    def stop(self) -> None:
        if self.process is None:
            return
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def kill(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None, "it does not run"
        self.process.send_signal(number)

    # ---- what it says of itself; not on the port of clients, which may want a password

    def listens(self) -> bool:
        return _get(self._metrics, "/health") is not None

    def healthy(self) -> bool:
        return is_healthy(self._metrics)

    def leads(self) -> bool:
        return b"\netcd_server_is_leader 1\n" in (_get(self._metrics, "/metrics") or b"")


if __name__ == "__main__":
    try:
        require_etcd()
    except LoomError as error:
        sys.exit(str(error))

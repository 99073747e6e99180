"""A cluster of real processes that `loom up` runs, and the command line pointed at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Up:
    """A running `loom up`."""

    process: subprocess.Popen[str]
    mr: str
    http: str
    pids: dict[str, int]
    console: str  # its URL; empty: there is none
    metrics: dict[str, str]


@contextmanager
def loom_up(data: Path, *arguments: str) -> Iterator[Up]:
    command = program("loom", "up", "--port", "0", "--data", str(data), "--json")
    console = [] if "--console" in arguments else ["--no-console"]
    process = subprocess.Popen(
        [*command, *console, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            ready = json.loads(line)
            console = ready.get("console", "")
            where = ready["metrics"]
            yield Up(process, ready["mr"], ready["http"], ready["pids"], console, where)
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def storage_node(mr: str, number: int, *volumes: Path) -> Iterator[None]:
    """A further node of a cluster that `loom up` runs."""
    for volume in volumes:
        volume.mkdir(exist_ok=True)
    command = program(
        *("vsn", "start", "--cluster-id", "local", "--storage-node-id", str(number)),
        *(word for volume in volumes for word in ("--volumes", str(volume))),
        *("--mr", mr, "--listen", "127.0.0.1:0", "--sync", "none"),
    )
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield
        finally:
            process.terminate()
            process.wait(30)


def program(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"loomlog.cli.{name}", *arguments]


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "LOOM_CLUSTER"} | more


@dataclass(frozen=True)
class Loom:
    """The command, pointed at a cluster; `tls` is the file of the user's certificate, if any."""

    cluster: str
    tls: str = ""

    def run(self, *arguments: str, given: str | bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            program("loom", *arguments),
            input=given.encode() if isinstance(given, str) else given,
            capture_output=True,
            timeout=60,
            env=environment(LOOM_CLUSTER=self.cluster, LOOM_TLS=self.tls),
        )

    def says(self, *arguments: str, given: str | bytes = b"") -> str:
        done = self.run(*arguments, given=given)
        assert done.returncode == 0, done.stderr.decode()
        assert done.stderr == b""
        return done.stdout.decode()

    def json(self, *arguments: str, given: str | bytes = b"") -> Any:
        return json.loads(self.says(*arguments, "--json", given=given))

    def fails(self, *arguments: str, given: str | bytes = b"") -> str:
        done = self.run(*arguments, given=given)
        assert done.returncode == 1
        error = done.stderr.decode()
        assert error.startswith("loom: ")
        assert error.count("\n") == 1, "an error is one line"
        return error

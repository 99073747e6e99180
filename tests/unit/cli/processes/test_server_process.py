"""A server process: ready line, clean stop, second signal, logs, errors in one line."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loomlog.cli.processes.server_process import Format, LogLines, keep_private

TOY = """
import asyncio, sys
from loomlog.cli.processes.server_process import Format, Level, serve, set_up_logs
from loomlog.errors import LoomError

class Toy:
    async def start(self):
        if "slow-start" in sys.argv:
            print("starting", flush=True)
            await asyncio.sleep(3600)
    async def stop(self):
        print("stopping", flush=True)
        if "slow-stop" in sys.argv:
            await asyncio.sleep(3600)

set_up_logs(Format.JSON, Level.INFO, server="toy")
def failed():
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    if "fail-later" in sys.argv:
        loop.call_later(0.01, future.set_result, LoomError("refused for good"))
    return future

serve(Toy(), lambda: {"address": "here:1"}, failed)
"""


@contextmanager
def toy(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", TOY, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_then_a_signal_stops_it_cleanly(number: signal.Signals) -> None:
    with toy() as process:
        ready = json.loads(line_of(process))
        assert ready == {"ready": True, "pid": process.pid, "address": "here:1"}
        process.send_signal(number)
        assert line_of(process) == "stopping"
        assert process.wait(10) == 0
        assert process.stderr is not None
        said = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert [(line["message"], line["server"]) for line in said] == [
            ("stopping", "toy"),
            ("stopped", "toy"),
        ]


def test_a_second_signal_ends_a_stop_that_hangs() -> None:
    with toy("slow-stop") as process:
        line_of(process)
        process.send_signal(signal.SIGTERM)
        assert line_of(process) == "stopping"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 1


def test_a_signal_while_starting_is_heard() -> None:
    with toy("slow-start") as process:
        assert line_of(process) == "starting"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert line_of(process) == "", "what never started is not stopped"


def test_a_server_that_cannot_go_on_stops_and_says_why() -> None:
    with toy("fail-later") as process:
        line_of(process)
        assert line_of(process) == "stopping"
        assert process.wait(10) == 1
        assert process.stderr is not None
        assert "refused for good" in process.stderr.read()


def record(**extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "loomlog.node", "levelname": "INFO", "created": 0.5})
    made.msg = "sealed"
    made.__dict__.update(extra)
    return made


def test_log_lines_carry_their_fields() -> None:
    assert json.loads(LogLines("vsn-1", Format.JSON).format(record(stream=3))) == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "info",
        "server": "vsn-1",
        "logger": "loomlog.node",
        "message": "sealed",
        "stream": 3,
    }
    text = LogLines("vsn-1", Format.TEXT).format(record(stream=3))
    assert text == "1970-01-01T00:00:00.500+00:00 INFO    vsn-1 sealed stream=3"


def test_what_others_may_use_becomes_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    restored, private = tmp_path / "cid=x", tmp_path / "metadata.sqlite"
    restored.mkdir(mode=0o755)
    private.touch(mode=0o600)
    keep_private([restored, private, tmp_path / "gone"])
    assert restored.stat().st_mode & 0o777 == 0o700
    assert private.stat().st_mode & 0o777 == 0o600
    (line,) = caplog.messages
    assert "cid=x" in line
    assert "755" in line

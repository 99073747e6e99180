"""A command that cannot work says so in one line and ends with the right code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from loomlog.cli.console.command import unreachable
from loomlog.cli.console.failures import describe
from loomlog.errors import NotFound, Timeout, Unavailable


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"loomlog.cli.{program}", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("program", "arguments", "says"),
    [
        ("loom", ["append"], "Missing argument 'LOG'"),
        ("loom", ["sing"], "No such command 'sing'"),
        ("loom", ["log"], "Missing command"),
        ("loom", ["tail", "x", "--from", "0"], "--from"),
        ("loom", ["append", "x", "--key-separator", ""], "must not be empty"),
        ("loom", ["bench", "append", "--sizes", "99999999999"], "a smaller --batch or size"),
        ("vsn", ["start", "--cluster-id", "c"], "Missing option '--storage-node-id'"),
        ("vmr", ["start", "--no-such-option"], "No such option"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    program: str, arguments: list[str], says: str
) -> None:
    done = run(program, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
    assert "--help" in done.stderr


def test_without_a_command_the_help_is_shown() -> None:
    done = run("loom")
    assert done.returncode == 0
    assert "append" in done.stdout


def test_errors_are_described_in_one_line() -> None:
    assert describe(NotFound("no log\nof that name")) == "no log of that name"
    missing = FileNotFoundError(2, "No such file or directory", "/nowhere")
    assert describe(missing) == "/nowhere: No such file or directory"
    assert "this is a bug" in describe(KeyError("x"))


@pytest.mark.parametrize("program", ["vsn", "vmr"])
def test_a_server_loads_neither_arrow_nor_rich_nor_the_client(program: str) -> None:
    """Each would cost memory that an idle server does not need."""
    part = {"vsn": "loomlog.node", "vmr": "loomlog.metadata"}[program]
    code = (
        f"import sys, loomlog.cli.{program}, loomlog.cli.processes.server_process, {part}\n"
        "heavy = {'pyarrow', 'rich', 'loomlog.client'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_server_that_does_not_answer_may_be_another_one() -> None:
    away = unreachable("10.0.0.1:7400", Unavailable("connection refused"))
    assert "start a cluster with `loom up` or give --cluster" in str(away)
    silent = unreachable("10.0.0.1:7490", Timeout("no answer within 5 s"))
    assert "10.0.0.1:7490 does not answer as a metadata repository" in str(silent)

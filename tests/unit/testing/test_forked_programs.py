"""Programs that tests fork do the same as those that are executed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CLI = [sys.executable, "-m", "loomlog.cli.loom"]


@pytest.mark.parametrize("arguments", [["version", "--json"], ["nonsense"]])
def test_they_say_and_return_the_same(arguments: list[str]) -> None:
    forked = subprocess.run([*CLI, *arguments], capture_output=True, text=True)
    executed = subprocess.run(
        [*CLI, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},  # another interpreter
    )
    assert vars(forked) == vars(executed)


def test_they_are_children_with_the_environment_and_directory_that_were_asked_for(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, "LOOM_CLUSTER": "not-an-address"}
    with subprocess.Popen([*CLI, "status"], env=environment, stderr=-1, text=True) as failing:
        assert Path(f"/proc/{failing.pid}/stat").read_text().split()[3] == str(os.getpid())
        assert failing.stderr is not None
        assert "not-an-address" in failing.stderr.read()
    (tmp_path / "here").touch()
    command = [*CLI, "up", "--port", "0", "--data", "here"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "Not a directory" in done.stderr

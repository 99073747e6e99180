"""`loom archive run` with a Spark of its own, as an operator calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from spark_rig import SparkRig


def loom(rig: SparkRig, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loomlog.cli.loom", "archive", *arguments, "--cluster", rig.address],
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_log_is_archived_from_the_command_line(rig: SparkRig, tmp_path: Path) -> None:
    rig.fill(120)
    arguments = ("--to", str(tmp_path), "--keep", "20", "--rows-per-file", "40", "--trim")
    done = loom(rig, "run", rig.log.name, *arguments, "--spark-master", "local[2,4]", "--json")
    assert (done.returncode, done.stderr) == (0, "")  # not a word of Spark's
    outcome = json.loads(done.stdout)
    assert (outcome["files_written"], outcome["files_checked"], outcome["head"]) == (3, 3, 101)
    assert [int(e.value) for e in rig.log.subscribe("earliest", 120)] == list(range(1, 121))

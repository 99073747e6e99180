"""The shell completes commands and options, as `loom --show-completion` sets it up."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("typed", "offered"), [("loom ev", "events"), ("loom node dra", "drain"), ("loom", "append")]
)
def test_a_beginning_is_completed(typed: str, offered: str) -> None:
    words = typed.split() if " " in typed else [typed, ""]
    variables = {
        "_LOOM_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    program = "from loomlog.cli.loom import app; app(prog_name='loom')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | variables,
        capture_output=True,
        check=False,
    )
    assert offered in done.stdout.decode().split(), done.stderr.decode()

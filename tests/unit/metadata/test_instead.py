"""Refusals name commands that exist."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from loomlog.cli.loom import app
from loomlog.metadata.chained.instead import INSTEAD as OF_CHAINS
from loomlog.metadata.copyset.instead import INSTEAD as OF_COPYSETS

TEXTS = sorted({*OF_CHAINS.values(), *OF_COPYSETS.values()})


@pytest.mark.parametrize("text", TEXTS)
def test_a_refusal_names_a_command_with_its_options(text: str) -> None:
    commands = re.findall(r"`loom ([^`]+)`", text)
    assert commands
    for words in map(str.split, commands):
        names = [word for word in words if word.islower() and not word.startswith("-")]
        shown = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0
        assert all(word in shown.output for word in words if word.startswith("--"))

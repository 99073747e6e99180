"""The help of commands: `--help` shows every word of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from rich.text import Text
from typer.testing import CliRunner

from loomlog.cli import loom


def texts(command: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield the help texts of a command, of its options and of the commands below it."""
    yield name, command.help or ""
    for option in command.params:
        yield f"{name} {option.opts[0]}", getattr(option, "help", None) or ""
    for below, each in getattr(command, "commands", {}).items():
        yield from texts(each, f"{name} {below}")


def test_no_word_in_brackets_is_taken_for_markup() -> None:
    found = dict(texts(typer.main.get_command(loom.app), "loom"))
    assert len(found) > 300
    assert {
        name: text for name, text in found.items() if Text.from_markup(text).plain != text
    } == {}


def parameters_without_help(command: Any, name: str) -> Iterator[str]:
    for each in command.params:
        if not getattr(each, "hidden", False) and not getattr(each, "help", None):
            yield f"{name} {each.name}"
    for below, each in getattr(command, "commands", {}).items():
        yield from parameters_without_help(each, f"{name} {below}")


def test_every_argument_and_option_has_a_help_text() -> None:
    assert list(parameters_without_help(typer.main.get_command(loom.app), "loom")) == []


@pytest.mark.parametrize(
    "words", [(), ("tail",), ("log",), ("log", "create"), ("bench",), ("bench", "append")]
)
@pytest.mark.parametrize("name", ["-h", "--help"])
def test_options_without_a_value_are_shown_as_such(words: tuple[str, ...], name: str) -> None:
    result = CliRunner().invoke(loom.app, [*words, name], prog_name="loom")
    assert result.exit_code == 0
    assert "Show this message and exit." in result.output
    assert "bool" not in result.output

"""Positions on the command line."""

from __future__ import annotations

import pytest
import typer

from loomlog.cli.console.options import read_position, read_position_or_0
from loomlog.core.copyset.record import LSN_MAX, lsn_words, make


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("1", 1),
        ("4200", 4200),
        ("4,200", 4200),
        ("4,294,967,297", make(1, 1)),
        ("e1n1", make(1, 1)),
        (" e3n17 ", make(3, 17)),
        ("e0n5", 5),
        (lsn_words(LSN_MAX), LSN_MAX),
    ],
)
def test_they_are_taken_as_they_are_shown(text: str, position: int) -> None:
    assert read_position(text) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "1.5",
        "4,2",
        "1,0000",
        "e1",
        "n1",
        "e1n",
        "1e3",
        "e1n4294967296",
        "9" * 30,
        "٣",
    ],
)
def test_what_is_none_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a position: write") as refused:
        read_position(text)
    assert "\n" not in str(refused.value)


def test_none_is_a_place_for_checkpoints() -> None:
    assert read_position_or_0("0") == 0

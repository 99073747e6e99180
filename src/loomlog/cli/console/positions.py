"""Positions as people write them: like they are shown, or as programs do."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

import typer

from loomlog.core.copyset.lsn import EPOCH_MAX, LSN_MAX, OFFSET_MAX, make

STARTS: Final = ("earliest", "latest")
_COPYSET = re.compile(r"e(\d+)n(\d+)", re.ASCII)
_NUMBER = re.compile(r"\d+|\d{1,3}(,\d{3})+", re.ASCII)


def parse(text: str, least: int, otherwise: str = "") -> int:
    """4200, 4,200 or, of copyset logs, e3n17."""
    position = _value(text.strip())
    if position is None or not least <= position <= LSN_MAX:
        raise typer.BadParameter(
            f"{text!r} is no position: write a number from {least} on, "
            f"or as positions of copyset logs are shown, e3n17{otherwise}"
        )
    return position


def _value(text: str) -> int | None:
    if found := _COPYSET.fullmatch(text):
        epoch, offset = int(found[1]), int(found[2])
        return make(epoch, offset) if epoch <= EPOCH_MAX and offset <= OFFSET_MAX else None
    return int(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def read_start(text: str) -> int | str:
    """Parse where a reader begins: a position, or the name of one end of the log."""
    return text if text in STARTS else parse(text, 1, f", {' or '.join(STARTS)}")


read_position = partial(parse, least=1)
read_position_or_0 = partial(parse, least=0)

"""`loom append`: every line of standard input becomes an entry, in the order of the lines.

One batch is under way at a time, because only an awaited append is before the next one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from loomlog import limits
from loomlog.cli.connection import connected
from loomlog.cli.output import print_json
from loomlog.cli.standard_input import lines_as_they_come
from loomlog.errors import InvalidArgument, LoomError

if TYPE_CHECKING:
    import rich.progress

    from loomlog import Log
    from loomlog.types import Position


@dataclass(slots=True)
class Tally:
    """What was acknowledged so far."""

    lines: int = 0
    first: int = 0
    last: int = 0

    def add(self, positions: list[Position]) -> None:
        self.first = self.first or positions[0].position
        self.last = positions[-1].position
        self.lines += len(positions)

    def __str__(self) -> str:
        if self.lines == 0:
            return "nothing to append: no lines on standard input"
        return f"appended {self.lines:,} entries at positions {self.first} to {self.last}"


class Progress(Protocol):
    def advance(self, lines: int, count_bytes: int) -> None: ...


async def append(
    address: str, name: str, *, batch: int, key_separator: str | None, as_json: bool
) -> None:
    """Append standard input to the log; say how much, also if it fails on the way."""
    tally = Tally()
    async with connected(address) as cluster:
        try:
            with _progress() as progress:
                await _append_lines(cluster.log(name), tally, progress, batch, key_separator)
        except LoomError as error:
            if tally.lines:
                raise type(error)(f"{error} (before that: {tally})") from None
            raise
        except asyncio.CancelledError:  # Ctrl-C: the usual end of a pipe that never ends
            _say(name, tally, as_json=as_json)
            raise
    _say(name, tally, as_json=as_json)


def _say(name: str, tally: Tally, *, as_json: bool) -> None:
    if as_json:
        print_json({"log": name, "count": tally.lines, "first": tally.first, "last": tally.last})
    else:
        print(tally)


async def _append_lines(
    log: Log, tally: Tally, progress: Progress, batch: int, key_separator: str | None
) -> None:
    separator = None if key_separator is None else os.fsencode(key_separator)
    async for lines in lines_as_they_come(sys.stdin.fileno()):
        for values in batches(lines, batch):
            await _append_batch(log, tally, values, separator)
            progress.advance(len(values), sum(map(len, values)))


async def _append_batch(
    log: Log, tally: Tally, lines: list[bytes], separator: bytes | None
) -> None:
    if separator is None:
        tally.add(await log.append_many(lines))
        return
    pairs = [split_key(line, separator, tally.lines + n) for n, line in enumerate(lines, 1)]
    keys, values = zip(*pairs, strict=True)
    tally.add(await log.append_many(list(values), keys=list(keys)))


def batches(lines: list[bytes], count_max: int) -> Iterator[list[bytes]]:
    """Cut into batches of a good size; order is kept."""
    batch: list[bytes] = []
    batch_bytes = 0
    for line in lines:
        full = len(batch) >= count_max or batch_bytes + len(line) > limits.APPEND_BATCH_BYTES
        if batch and full:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(line)
        batch_bytes += len(line)
    if batch:
        yield batch


def split_key(line: bytes, separator: bytes, number: int) -> tuple[bytes, bytes]:
    """Key and value of a line."""
    key, found, value = line.partition(separator)
    if not found:
        shown = separator.decode(errors="backslashreplace")
        raise InvalidArgument(f"line {number} has no key: there is no {shown!r} in it")
    return key, value


@contextmanager
def _progress() -> Iterator[Progress]:
    """A moving line on a terminal, while standard input is not typed by hand; else nothing."""
    if not sys.stderr.isatty() or sys.stdin.isatty():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.fields[lines]:,} lines"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as rich:
        yield _Bar(rich)


class _Silent:
    def advance(self, lines: int, count_bytes: int) -> None:
        pass


class _Bar:
    def __init__(self, rich: rich.progress.Progress) -> None:
        self._rich = rich
        self._task = rich.add_task("append", total=_input_bytes(), lines=0)
        self._lines = 0

    def advance(self, lines: int, count_bytes: int) -> None:
        self._lines += lines
        self._rich.update(self._task, advance=count_bytes + lines, lines=self._lines)


def _input_bytes() -> int | None:
    """The size of standard input where it is a file."""
    return os.fstat(sys.stdin.fileno()).st_size or None

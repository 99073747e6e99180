"""`loom append`: every line of the input becomes an entry, in the order of the lines.

One batch is in flight at a time, because only an awaited append is ordered before the next one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from loomlog import limits
from loomlog.cli.console.command import connected
from loomlog.cli.console.entry_input import InputOptions, Parse
from loomlog.cli.console.options import CLUSTER, Cluster, Json, LogName
from loomlog.cli.console.output import say, span
from loomlog.console.entries import Record, append_records
from loomlog.errors import LoomError

if TYPE_CHECKING:
    from loomlog import Log
    from loomlog.types import Position


CHUNK_BYTES: Final = 256 * 1024  # of one read

Advance = Callable[[int, int], None]  # by lines and bytes


@dataclass(slots=True)
class Tally:
    """Counts acknowledged entries."""

    lines: int = 0
    first: int = 0
    last: int = 0

    def add(self, positions: list[Position]) -> None:
        self.first = self.first or positions[0].position
        self.last = positions[-1].position
        self.lines += len(positions)

    def __str__(self) -> str:
        if self.lines == 0:
            return "nothing to append: there are no lines"
        entries = "1 entry" if self.lines == 1 else f"{self.lines:,} entries"
        return f"appended {entries} at {span(self.first, self.last)}"


def _existing_file(text: str) -> Path:
    path = Path(text)
    if text != "-" and (not path.exists() or path.is_dir()):
        wrong = "is a directory" if path.is_dir() else "does not exist"
        raise typer.BadParameter(f"file {text!r} {wrong}")
    return path


async def append(
    log: LogName,
    file: Annotated[
        Any,
        typer.Argument(
            metavar="FILE",
            parser=_existing_file,
            show_default="standard input",
            help="File with the lines; - is standard input.",
        ),
    ] = None,
    *,
    lines: InputOptions,
    batch: Annotated[int, typer.Option(min=1, help="Lines per batch, at most.")] = 1000,
    expected_tail: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="POSITION",
            show_default="any",
            help="Append only if no entry follows this position (0: an empty log); otherwise fail "
            "and append nothing more.",
        ),
    ] = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Append each line of a file or of standard input, in order."""
    parse = lines.parser()
    tally = Tally()
    with _opened(file) as source:
        async with connected(cluster) as client:
            await client.log(log).earliest()  # raises NotFound before anything is read
            try:
                with _progress(source) as progress:
                    appender = Appender(client.log(log), tally, expected_tail)
                    await _append_lines(appender, source, progress, batch, parse)
            except LoomError as error:
                if tally.lines:
                    raise type(error)(f"{error} (before that: {tally})") from None
                raise
            except asyncio.CancelledError:  # Ctrl-C: the usual end of a pipe that never ends
                _say(log, tally, as_json=as_json)
                raise
    _say(log, tally, as_json=as_json)


@contextmanager
def _opened(file: Path | None) -> Iterator[int]:
    """Yield the descriptor to read."""
    if file is None or str(file) == "-":
        yield sys.stdin.fileno()
        return
    with file.open("rb") as opened:
        yield opened.fileno()


def _say(name: str, tally: Tally, *, as_json: bool) -> None:
    fields = {"log": name, "count": tally.lines, "first": tally.first, "last": tally.last}
    say(fields, str(tally), as_json=as_json)


async def _append_lines(
    appender: Appender, source: int, progress: Advance, batch: int, parse: Parse
) -> None:
    async for lines in lines_as_they_come(source):
        for some in batches(lines, batch):
            before = appender.tally.lines
            await appender.append([parse(line, before + n) for n, line in enumerate(some, 1)])
            progress(len(some), sum(map(len, some)))


@dataclass(slots=True)
class Appender:
    """Appends batch after batch; with an expected tail, each directly after the previous one."""

    log: Log
    tally: Tally
    expected_tail: int | None

    async def append(self, records: list[Record]) -> None:
        appended = await append_records(self.log, records, self.expected_tail)
        self.tally.add(appended)
        if self.expected_tail is not None:
            self.expected_tail = appended[-1].position


def batches(lines: list[bytes], count_max: int) -> Iterator[list[bytes]]:
    """Split into batches of a suitable size, in order."""
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


# ---- input, read without a thread and without blocking the loop


async def lines_as_they_come(fd: int) -> AsyncIterator[list[bytes]]:
    """Yield lists of complete lines, without line ends: those from one read of the descriptor.

    A last line without a line end counts as a line. A terminal or a slow program produces few lines
    at a time, a file many, so a list is a natural batch.
    """
    rest: list[bytes] = []  # pieces of an incomplete line
    async for chunk in _chunks(fd):
        first, *others = chunk.split(b"\n")
        rest.append(first)
        if others:
            lines = [b"".join(rest), *others[:-1]]
            rest = [others[-1]]
            yield [line.removesuffix(b"\r") for line in lines]
    if last := b"".join(rest):
        yield [last]


async def _chunks(fd: int) -> AsyncIterator[bytes]:
    while True:
        await _readable(fd)
        chunk = os.read(fd, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(fd, readable.set)
    except OSError:  # a regular file: always readable, and epoll refuses it
        await asyncio.sleep(0)
        return
    try:
        await readable.wait()
    finally:
        loop.remove_reader(fd)


# ---- progress


@contextmanager
def _progress(source: int) -> Iterator[Advance]:
    """Show a progress line on a terminal, unless the lines are typed by hand."""
    if not sys.stderr.isatty() or os.isatty(source):
        yield lambda lines, count_bytes: None
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
        input_bytes = os.fstat(source).st_size or None  # if it is a file
        task = rich.add_task("append", total=input_bytes, lines=0)
        shown = 0

        def advance(lines: int, count_bytes: int) -> None:
            nonlocal shown
            shown += lines
            rich.update(task, advance=count_bytes + lines, lines=shown)

        yield advance

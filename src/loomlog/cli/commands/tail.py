"""`loom tail`: the last entries of a log, in order, one per line."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from loomlog import limits
from loomlog.cli.console import entry_format
from loomlog.cli.console.command import connected
from loomlog.cli.console.entry_format import Show
from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import (
    CLUSTER,
    Cluster,
    Json,
    LogName,
    parse_moment,
    read_start,
)
from loomlog.cli.console.output import span
from loomlog.errors import LoomError, Unavailable

if TYPE_CHECKING:
    import loomlog
    from loomlog.types import Entry, Gap, Glsn

LAST: Final = 10  # entries, without --count
SAVE_S: Final = 1.0  # how often a checkpoint is saved
NOTICE_S: Final = 3.0  # without an entry, until stderr shows the reason
SILENCE_S: Final = limits.REQUEST_TIMEOUT_S  # without an entry, until the command fails


@dataclass(frozen=True, slots=True)
class Range:
    """Options that select the entries."""

    start: Annotated[
        Any,
        typer.Option(
            "--from",
            parser=read_start,
            metavar="WHERE",
            show_default="the last ten",
            help="First position (4200 or e3n17), a time (2026-11-16T03:00), earliest, or "
            "latest for new entries only.",
        ),
    ] = None
    since: Annotated[
        Any,
        typer.Option(
            parser=parse_moment, metavar="TIME", help="Begin at this time: 1h (ago), 2026-11-16."
        ),
    ] = None
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Continue after this checkpoint, and advance it. After a crash the last lines may "
            "be repeated; none is missed.",
        ),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Share the entries with other members of this group, and follow the log; see "
            "`loom group`.",
        ),
    ] = None
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "--max",
            "-n",
            min=0,
            metavar="N",
            show_default="10",
            help="The last N entries; with --from, --since or --checkpoint: at most N.",
        ),
    ] = None

    def has_start(self) -> bool:
        """Return whether a start was given; otherwise the last entries are printed."""
        starts = [given for given in (self.start, self.since, self.checkpoint) if given is not None]
        if len(starts) > 1:
            raise UsageError("give one of --from, --since and --checkpoint")
        if self.group is not None and self.checkpoint is not None:
            raise UsageError("give one of --group and --checkpoint: both store positions")
        return bool(starts)


@dataclass(frozen=True, slots=True)
class Look:
    """Options for the output format."""

    positions: Annotated[
        bool, typer.Option("--positions", "-p", help="Begin each line with the position.")
    ] = False
    template: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="TEXT",
            show_default="key, tab, value",
            help="Format of a line, such as '{position} {time} {key} {value} {stream}'.",
        ),
    ] = None
    raw: Annotated[bool, typer.Option("--raw", help="Write keys and values without escapes.")] = (
        False
    )

    def show(self, *, as_json: bool) -> Show:
        """Return the function that turns an entry into a line."""
        if as_json and (self.raw or self.template is not None):
            raise UsageError("--json has its own format: leave out --format and --raw")
        if self.template is not None:
            return entry_format.as_template(self.template, raw=self.raw)
        if as_json:
            return entry_format.as_json
        return entry_format.as_text(positions=self.positions, raw=self.raw)


async def tail(
    log: LogName,
    wanted: Range,
    look: Look,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow new entries until Ctrl-C.")
    ] = False,
    gaps: Annotated[
        bool,
        typer.Option(
            "--gaps",
            help="Also report positions without an entry (on stderr, or as JSON), and continue "
            "after lost entries.",
        ),
    ] = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Print the last entries of a log in order, one per line; all of them with --from earliest."""
    from loomlog.types import Gap

    has_start = wanted.has_start()
    show = look.show(as_json=as_json)
    show_gap = _print_gap_as_json if as_json else _print_gap
    async with connected(cluster) as client:
        source = client.log(log)
        if wanted.group is not None:
            await _tail_group(source, wanted, show)
            return
        name = wanted.checkpoint
        saver = _CheckpointSaver(source.checkpoint(name) if name else None)
        silence = Silence(source, follow=follow)
        async with silence.watched():
            last, doubt = (None, None) if follow and has_start else await _last(client, log)
            if last is None or has_start:
                first = await _first(source, wanted.since or wanted.start, saver)
            else:
                first = await _first_of_last(source, wanted.count, last)
            silence.position = first - 1
            if isinstance(wanted.start, int) and last is not None and first > last:
                print(f"{log} ends at {last}: there is nothing from {first} on", file=sys.stderr)
            count_max = wanted.count if has_start else None
            found = _found(source, first, None if follow else last, count_max, gaps=gaps)
            async with saver.on(), aclosing(found) as entries:
                async for entry in entries:
                    if isinstance(entry, Gap):
                        show_gap(entry)
                        silence.position = entry.last
                    else:
                        sys.stdout.buffer.write(show(entry) + b"\n")
                        silence.position = entry.position
                    saver.show(silence.position, at_once=follow)
        if doubt is not None and not follow:
            raise Unavailable(f"{log} may have more entries: {doubt}")


async def _tail_group(log: loomlog.Log, wanted: Range, show: Show) -> None:
    """Print the entries of this member's shards, up to the limit or until Ctrl-C."""
    start = wanted.since or wanted.start or "earliest"
    assert wanted.group is not None
    left = wanted.count
    async with log.group(wanted.group, start=start, commit_every_s=SAVE_S) as group:
        if left == 0:
            return
        async for entry in group:
            sys.stdout.buffer.write(show(entry) + b"\n")
            sys.stdout.flush()
            left = None if left is None else left - 1
            if left == 0:
                return


async def _first_of_last(log: loomlog.Log, count: int | None, last: Glsn) -> Glsn:
    count = LAST if count is None else count
    return await log.find_last(count, last) if count else last + 1


async def _last(client: loomlog.Cluster, name: str) -> tuple[Glsn, LoomError | None]:
    """Return the last position, or the last known one and the reason why there may be more."""
    try:
        return await client.log(name).tail(), None
    except Unavailable as error:
        reached = [info.reached for info in await client.logs() if info.name == name]
        return (reached[0], error) if reached else (0, error)


async def _first(
    log: loomlog.Log, start: int | str | datetime | None, saver: _CheckpointSaver
) -> Glsn:
    if isinstance(start, datetime):
        return await log.find_time(start)
    if start == "latest":
        return await log.tail() + 1
    if start == "earliest":
        return await log.earliest()
    return await saver.first(log) if start is None else int(start)


class Silence:
    """While no entry arrives, prints the reason on stderr; ends the command after a while, unless
    it follows the log. `position` is the last one that was shown."""

    def __init__(self, log: loomlog.Log, *, follow: bool) -> None:
        self._log = log
        self._follow = follow
        self._said = ""
        self.position: Glsn = 0

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        limit = asyncio.timeout(None)
        try:
            async with limit:
                watching = asyncio.create_task(self._watch(limit))
                try:
                    yield
                finally:
                    watching.cancel()
        except TimeoutError:
            if not limit.expired():
                raise
            raise Unavailable(
                f"no entry could be read for {SILENCE_S:g} s: {self._said or 'see `loom status`'}"
            ) from None

    async def _watch(self, limit: asyncio.Timeout) -> None:
        while True:
            before = self.position
            await asyncio.sleep(NOTICE_S)
            if self.position == before:
                await self._say()
            if self._follow or self.position != before:
                continue
            await asyncio.sleep(SILENCE_S - NOTICE_S)
            if self.position == before:
                limit.reschedule(asyncio.get_running_loop().time())
                return

    async def _say(self) -> None:
        try:
            log = await self._log.describe()
        except LoomError as error:
            reason = str(error)
        else:
            is_behind = log.tail is None or log.tail > self.position
            reasons = dict.fromkeys(s.condition for s in log.streams if s.condition)
            reason = "; ".join(reasons) if is_behind else ""
            if log.tail is not None and log.tail < self.position:
                reason = f"{log.name} ends at {log.tail}"
        if reason and reason != self._said:
            self._said = reason
            print(f"waiting for entries: {reason}", file=sys.stderr, flush=True)


class _CheckpointSaver:
    """Advances a checkpoint, if there is one, once the output was flushed. So no entry is missed:
    entries shown just before a crash are shown again."""

    def __init__(self, checkpoint: loomlog.Checkpoint | None) -> None:
        self._checkpoint = checkpoint
        self._written: Glsn = 0
        self._shown: Glsn = 0
        self._saved: Glsn = 0

    async def first(self, log: loomlog.Log) -> Glsn:
        """Return the position to start at."""
        earliest = await log.earliest()
        at = await self._checkpoint.get() if self._checkpoint else None
        if at is not None and at + 1 < earliest:
            were = "was" if at + 2 == earliest else "were"
            print(f"{span(at + 1, earliest - 1)} {were} trimmed unread", file=sys.stderr)
        return earliest if at is None else max(earliest, at + 1)

    def show(self, position: Glsn, *, at_once: bool) -> None:
        """Record that the entry at `position` was written to the output."""
        self._written = position
        if at_once:
            self._flush()

    def _flush(self) -> None:
        sys.stdout.flush()
        self._shown = self._written

    @asynccontextmanager
    async def on(self) -> AsyncIterator[None]:
        """Save the checkpoint periodically, and once more at the end."""
        saving = asyncio.create_task(self._save_again_and_again())
        try:
            yield
            self._flush()
        finally:
            saving.cancel()
            await self._save()

    async def _save_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            await self._save()

    async def _save(self) -> None:
        if self._checkpoint is not None and self._shown > self._saved:
            shown = self._shown
            await self._checkpoint.set(shown)
            self._saved = shown


async def _found(
    log: loomlog.Log, first: int, last: int | None, count_max: int | None, *, gaps: bool
) -> AsyncGenerator[Entry | Gap, None]:
    """Yield entries from `first` to `last` (None: no end), at most `count_max`, and `gaps`."""
    from loomlog.types import Gap

    if count_max == 0 or (last is not None and first > last):
        return
    count = 0
    async with aclosing(log.subscribe(start=first, stop=last, gaps=gaps)) as subscription:
        async for entry in subscription:
            yield entry
            count += not isinstance(entry, Gap)
            if count == count_max:
                return


def _print_gap(gap: Gap) -> None:
    """Print to stderr, because other programs may read the entries."""
    sys.stdout.flush()
    have = "has" if gap.first == gap.last else "have"
    print(f"{span(gap.first, gap.last)} {have} no entry: {gap.kind}", file=sys.stderr)


def _print_gap_as_json(gap: Gap) -> None:
    line = json.dumps({"gap": gap.kind, "first": gap.first, "last": gap.last})
    sys.stdout.buffer.write(line.encode() + b"\n")

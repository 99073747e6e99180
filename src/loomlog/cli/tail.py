"""`loom tail`: the entries of a log, in order, one a line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final

from loomlog.cli.connection import connected
from loomlog.cli.output import entry_fields, visible

if TYPE_CHECKING:
    from loomlog import Checkpoint, Log
    from loomlog.types import Entry, Gap, Glsn

Show = Callable[["Entry"], str]
ShowGap = Callable[["Gap"], None]

SAVE_S: Final = 1.0  # how often a checkpoint moves on


async def tail(
    address: str,
    name: str,
    *,
    start: int | None,
    follow: bool,
    count_max: int | None,
    checkpoint: str | None,
    show: Show,
    show_gap: ShowGap | None,
) -> None:
    """Print from `start` (default: behind the checkpoint, or the first entry of the log or its
    archive) to the last, or for ever. `show_gap` tells of positions without entry; None: the log
    does, if they were lost."""
    from loomlog.types import Gap

    async with connected(address) as cluster:
        log = cluster.log(name)
        moving = _Moving(log.checkpoint(checkpoint) if checkpoint else None)
        first = start if start is not None else await moving.first(log)
        last = None if follow else await log.tail()
        wanted = _wanted(log, first, last, count_max, gaps=show_gap is not None)
        async with moving.on(), aclosing(wanted) as found:
            async for entry in found:
                if isinstance(entry, Gap):
                    assert show_gap is not None
                    show_gap(entry)
                    moving.show(entry.last, at_once=follow)
                else:
                    sys.stdout.write(show(entry) + "\n")
                    moving.show(entry.position, at_once=follow)


class _Moving:
    """A checkpoint, if there is one, that follows what was shown. It moves on when that has left
    this process, so that nothing is missed: what was shown just before a crash is shown again."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        self._checkpoint = checkpoint
        self._written: Glsn = 0
        self._shown: Glsn = 0
        self._saved: Glsn = 0

    async def first(self, log: Log) -> Glsn:
        """Where to begin."""
        earliest = await log.earliest()
        at = await self._checkpoint.get() if self._checkpoint else None
        if at is not None and at + 1 < earliest:
            print(f"positions {at + 1} to {earliest - 1} were trimmed unread", file=sys.stderr)
        return earliest if at is None else max(earliest, at + 1)

    def show(self, position: Glsn, *, at_once: bool) -> None:
        """It was written."""
        self._written = position
        if at_once:
            self._flush()

    def _flush(self) -> None:
        sys.stdout.flush()
        self._shown = self._written

    @asynccontextmanager
    async def on(self) -> AsyncIterator[None]:
        """While this lasts, and once more at its end."""
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


async def _wanted(
    log: Log, first: int, last: int | None, count_max: int | None, *, gaps: bool
) -> AsyncGenerator[Entry | Gap, None]:
    """Entries from `first` to `last` (None: no end), at most `count_max`; `gaps` between them."""
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


def as_text(entry: Entry) -> str:
    return visible(entry.value)


def as_text_with_position(entry: Entry) -> str:
    return f"{entry.position}\t{visible(entry.value)}"


def as_json(entry: Entry) -> str:
    import json

    return json.dumps(entry_fields(entry))


def gap_as_text(gap: Gap) -> None:
    """Beside the entries, which other programs may read."""
    sys.stdout.flush()
    print(f"positions {gap.first} to {gap.last} have no entry: {gap.kind}", file=sys.stderr)


def gap_as_json(gap: Gap) -> None:
    import json

    print(json.dumps({"gap": gap.kind, "first": gap.first, "last": gap.last}))

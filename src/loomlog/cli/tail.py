"""`loom tail`: the entries of a log, in order, one a line."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from loomlog.cli.connection import connected
from loomlog.cli.output import entry_fields, visible

if TYPE_CHECKING:
    from loomlog import Log
    from loomlog.types import Entry

Show = Callable[["Entry"], str]


async def tail(
    address: str,
    name: str,
    *,
    start: int | None,
    follow: bool,
    count_max: int | None,
    show: Show,
) -> None:
    """Print from `start` (default: the first entry of the log or its archive) to the last, or for
    ever."""
    async with connected(address) as cluster:
        log = cluster.log(name)
        first = start if start is not None else await log.earliest()
        last = None if follow else await log.tail()
        async with aclosing(_wanted(log, first, last, count_max)) as entries:
            async for entry in entries:
                sys.stdout.write(show(entry) + "\n")
                if follow:
                    sys.stdout.flush()


async def _wanted(
    log: Log, first: int, last: int | None, count_max: int | None
) -> AsyncGenerator[Entry, None]:
    """Entries from `first` to `last` (None: no end), at most `count_max`."""
    if count_max == 0 or (last is not None and first > last):
        return
    count = 0
    async with aclosing(log.subscribe(start=first, stop=last)) as subscription:
        async for entry in subscription:
            yield entry
            count += 1
            if count == count_max:
                return


def as_text(entry: Entry) -> str:
    return visible(entry.value)


def as_text_with_position(entry: Entry) -> str:
    return f"{entry.position}\t{visible(entry.value)}"


def as_json(entry: Entry) -> str:
    import json

    return json.dumps(entry_fields(entry))

"""The entries that the page of a log shows: the newest ones, or those that a visitor searches."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

from loomlog.client.log import Log
from loomlog.config import parse_number
from loomlog.console import view
from loomlog.console.api.records import first_position
from loomlog.errors import InvalidArgument, LoomError, Retryable
from loomlog.types import Entry

ENTRIES: Final = 20  # of a log, on its page
ENTRIES_MAX: Final = 500
SEARCHED_MAX: Final = 20_000  # entries, for a key
PATIENCE_S: Final = 5.0  # a page is shown without the entries if they take longer


async def search(log: Log, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page shows. With `waits`, the same search may find more soon: nodes are away,
    or the log has no entries yet."""
    found: dict[str, Any] = {"asked": asked, "rows": [], "note": "", "after": None, "waits": False}
    try:
        async with asyncio.timeout(PATIENCE_S):
            await _search(log, asked, found)
    except TimeoutError:
        found["note"] = "The entries cannot be read at the moment: see the nodes."
        found["waits"] = True
    except LoomError as error:
        found["note"] = str(error)
        found["waits"] = isinstance(error, Retryable)
    return found


async def _search(log: Log, asked: Mapping[str, str], found: dict[str, Any]) -> None:
    wanted = asked["count"] or str(ENTRIES)
    most = parse_number(wanted) or 0
    if not 0 < most <= ENTRIES_MAX:
        raise InvalidArgument(f"show 1 to {ENTRIES_MAX} entries, not {wanted[:20]!r}")
    key = asked["key"].encode() if asked["key"] else None
    tail = await log.tail()
    if asked["from"]:
        start = await first_position(log, asked["from"])
    else:
        start = await log.find_last(SEARCHED_MAX if key is not None else most)
    searched = 0
    rows: list[Entry] = []
    if start <= tail:
        async with aclosing(log.subscribe(start, tail)) as source:
            async for entry in source:
                searched += 1
                if key is None or entry.key == key:
                    rows.append(entry)
                if searched >= SEARCHED_MAX or (asked["from"] and len(rows) >= most):
                    break
    rows = rows[:most] if asked["from"] else rows[-most:]
    info = await log.describe()
    found["rows"] = [view.entry(info, row) for row in reversed(rows)]
    found["after"] = tail + 1
    if key is not None:
        found["note"] = f"{len(rows)} of {searched:,} entries, from position {start:,} on"
    elif not rows:
        found["note"] = "There are no entries here."
        found["waits"] = True

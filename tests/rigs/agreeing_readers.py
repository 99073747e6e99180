"""Reads a log in all ways, which must say the same about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from loomlog.client.log import Log
from loomlog.errors import DataLoss, NotFound
from loomlog.types import Entry, Gap, Glsn

LOST = b"lost"
NOTHING = b"nothing"

Content = dict[Glsn, bytes]  # of some positions: values, LOST or NOTHING


async def content(log: Log, positions: list[Glsn]) -> Content:
    """Return what is at these positions, in order, after checking that all readers agree."""
    found = await _by_subscribing(log, positions)
    ways = {
        "read": await _by_reading(log, positions),
        "subscribe without gaps": await _by_advice(log, positions),
        "subscribe_arrow": await _by_arrow(log, positions),
    }
    for way, other in ways.items():
        differing = {p: (found[p], other[p]) for p in positions if found[p] != other[p]}
        assert not differing, f"subscribe and {way} differ: {differing}"
    return found


async def check_times(log: Log) -> None:
    """Check that a search for the time of any entry finds it, or the first one of that time; and
    that it raises DataLoss if that may be lost. Timestamps must grow with positions."""
    last = await log.tail()
    items = [item async for item in log.subscribe(await log.head(), last, gaps=True)]
    moments = {item.timestamp for item in items if not isinstance(item, Gap)}
    for moment in moments:
        expected = _first_at(items, moment)
        try:
            found = await log.find_time(moment)
        except DataLoss:
            found = 0
        assert found == expected, f"find_time({moment}) is {found}, not {expected}"


def _first_at(items: Iterable[Entry | Gap], moment: datetime) -> Glsn:
    """Return the first position of a time; 0: it may be lost."""
    is_behind_loss = False
    for item in items:
        if isinstance(item, Gap):
            is_behind_loss |= item.kind == "dataloss"
        elif item.timestamp >= moment:
            return 0 if is_behind_loss else item.position
        else:
            is_behind_loss = False
    raise AssertionError(f"no entry is as young as {moment}")


async def _by_reading(log: Log, positions: list[Glsn]) -> Content:
    found: Content = {}
    for position in positions:
        try:
            found[position] = (await log.read(position)).value
        except DataLoss:
            found[position] = LOST
        except NotFound:
            found[position] = NOTHING
    return found


async def _by_subscribing(log: Log, positions: list[Glsn]) -> Content:
    found = dict.fromkeys(positions, NOTHING)
    async for item in log.subscribe(positions[0], positions[-1], gaps=True):
        if isinstance(item, Gap):
            _note(found, item)
        else:
            found[item.position] = item.value
    return found


async def _by_advice(log: Log, positions: list[Glsn]) -> Content:
    """Continue after each loss where the error says."""
    found = dict.fromkeys(positions, NOTHING)
    start = positions[0]
    while True:
        try:
            async for entry in log.subscribe(start, positions[-1]):
                found[entry.position] = entry.value
                start = entry.position + 1
            return found
        except DataLoss as error:
            [advised] = map(int, re.findall(r"continue at (\d+)", str(error)))
            _note(found, Gap(start, advised - 1, "dataloss"))
            is_behind, start = advised > start, advised
        assert is_behind, f"position {advised} is advised again"


async def _by_arrow(log: Log, positions: list[Glsn]) -> Content:
    found = dict.fromkeys(positions, NOTHING)
    async for item in log.subscribe_arrow(positions[0], positions[-1], gaps=True):
        if isinstance(item, Gap):
            _note(found, item)
        else:
            columns = item.to_pydict()
            found.update(zip(columns["position"], columns["value"], strict=True))
    return found


def _note(found: Content, gap: Gap) -> None:
    if gap.kind == "dataloss":
        found.update((p, LOST) for p in found if gap.first <= p <= gap.last)

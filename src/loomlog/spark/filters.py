"""Derives the positions, streams and times to read from Spark's filters.

This only narrows the read: Spark applies all filters again to every row, so a filter that is not
understood here costs time, never correctness.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from loomlog.types import Glsn, StreamId

_TICK: Final = timedelta(microseconds=1)  # the resolution of timestamps, here and in Spark
_EQUAL: Final = (EqualTo, EqualNullSafe)


@dataclass(frozen=True, slots=True)
class WantedRows:
    """The rows that a query wants, and perhaps others; None: no bound."""

    first: Glsn | None = None
    last: Glsn | None = None
    streams: frozenset[StreamId] | None = None
    from_time: datetime | None = None
    to_time: datetime | None = None  # before it


def wanted_rows(filters: Iterable[Filter]) -> WantedRows:
    """Return the range that satisfies all filters."""
    found = WantedRows()
    for given in filters:
        column = getattr(given, "attribute", None)
        if column == ("position",):
            found = _by_position(found, given)
        elif column == ("stream",):
            found = _by_stream(found, given)
        elif column == ("timestamp",):
            found = _by_time(found, given)
    return found


def _by_position(found: WantedRows, given: Any) -> WantedRows:
    low, high = _bounds(given, 1, int)
    last = None if high is None else high - 1
    return replace(found, first=_latest(found.first, low), last=_earliest(found.last, last))


def _by_stream(found: WantedRows, given: Any) -> WantedRows:
    if isinstance(given, _EQUAL) and isinstance(given.value, int):
        wanted = frozenset({given.value})
    elif isinstance(given, In) and all(isinstance(value, int) for value in given.value):
        wanted = frozenset(given.value)
    else:
        return found
    return replace(found, streams=wanted if found.streams is None else found.streams & wanted)


def _by_time(found: WantedRows, given: Any) -> WantedRows:
    value = getattr(given, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return found
    low, high = _bounds(given, _TICK, datetime)
    return replace(
        found, from_time=_latest(found.from_time, low), to_time=_earliest(found.to_time, high)
    )


def _bounds(given: Any, step: Any, kind: type) -> tuple[Any, Any]:
    """Return the first wanted value and the first unwanted one above it; None: no bound."""
    if isinstance(given, In) and given.value and all(isinstance(v, kind) for v in given.value):
        return min(given.value), max(given.value) + step
    value = getattr(given, "value", None)
    if not isinstance(value, kind):
        return None, None
    match given:
        case EqualTo() | EqualNullSafe():
            return value, value + step
        case GreaterThan():
            return value + step, None
        case GreaterThanOrEqual():
            return value, None
        case LessThan():
            return None, value
        case LessThanOrEqual():
            return None, value + step
    return None, None


def _latest(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else max(one, other)


def _earliest(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else min(one, other)

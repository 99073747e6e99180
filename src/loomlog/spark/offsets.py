"""Converts offsets of streaming queries to positions of logs, and computes a query's lag."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from loomlog.types import Glsn


def lag(progress: Mapping[str, Any] | None) -> dict[str, int]:
    """Return how many positions a query is behind the tail of each log it reads, given its
    `lastProgress`; an empty dict if that is None, as it is before the first micro-batch."""
    found: dict[str, int] = {}
    for source in () if progress is None else progress["sources"]:
        done = positions(source["endOffset"])
        for log, tail in positions(source["latestOffset"]).items():
            found[log] = max(found.get(log, 0), tail - done.get(log, 0))
    return found


def positions(offset: Any) -> dict[str, Glsn]:
    """Return the last position read of each log; empty if the offset has another source."""
    parsed = json.loads(offset) if isinstance(offset, str) else offset
    match parsed:
        case {"log": str(log), "position": int(position)}:
            return {log: position}
        case {"logs": Mapping() as logs}:
            return {str(log): int(position) for log, position in logs.items()}
    return {}

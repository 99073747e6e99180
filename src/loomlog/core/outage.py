"""Add up what it costs a log if nodes are away: appends, reads and copies. Pure.

Each protocol says it of the parts of its logs (core/ordered/outage.py and its siblings).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from loomlog.types import NodeId


class PartOutage(NamedTuple):
    """The cost for entries that have their copies on the same nodes, such as those of a stream."""

    part: str  # for people, such as "stream 3"
    copies: int  # that each entry should have
    copies_left: int  # that each entry has at least; 0: some cannot be read
    appends_stop: str = ""  # why the log takes no appends; "": it does

    @property
    def reads_stop(self) -> str:
        return "" if self.copies_left else f"{self.part} has no copy left of some entries"


class LogOutage(NamedTuple):
    """The cost for a log as a whole."""

    copies: int  # of the part that has least left
    copies_left: int
    appends_stop: str
    reads_stop: str

    @property
    def is_affected(self) -> bool:
        return self.copies_left < self.copies or bool(self.appends_stop)


def of_log(parts: Iterable[PartOutage]) -> LogOutage | None:
    """Return what the outage of its parts means for a log; None if it has none."""
    parts = list(parts)
    if not parts:
        return None
    worst = min(parts, key=lambda part: (part.copies_left, -part.copies))
    appends_stop = next((part.appends_stop for part in parts if part.appends_stop), "")
    return LogOutage(worst.copies, worst.copies_left, appends_stop, worst.reads_stop)


def names(nodes: Iterable[NodeId]) -> str:
    """Return nodes in words."""
    return ", ".join(f"node {node}" for node in sorted(nodes))

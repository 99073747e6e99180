"""Add up what a log loses while nodes are down: appends, reads and copies. Pure.

Each protocol decides it for the parts of its logs (core/ordered/outage.py and its siblings).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from loomlog.types import NodeId


class PartOutage(NamedTuple):
    """The outage of entries that have their copies on the same nodes, such as those of a stream."""

    part: str  # for people, such as "stream 3"
    copies: int  # wanted, of each entry
    copies_left: int  # of the entries that have the fewest; 0: some cannot be read
    appends_stop: str = ""  # why the log takes no appends; "": it does

    @property
    def reads_stop(self) -> str:
        return "" if self.copies_left else f"{self.part} has no copy left of some entries"


class LogOutage(NamedTuple):
    """The outage of a log as a whole."""

    copies: int  # wanted in the part that has the fewest left
    copies_left: int
    appends_stop: str
    reads_stop: str

    @property
    def is_affected(self) -> bool:
        return self.copies_left < self.copies or bool(self.appends_stop)


def of_log(parts: Iterable[PartOutage]) -> LogOutage | None:
    """Return the outage of a log with these parts; None if it has no parts."""
    parts = list(parts)
    if not parts:
        return None
    worst = min(parts, key=lambda part: (part.copies_left, -part.copies))
    appends_stop = next((part.appends_stop for part in parts if part.appends_stop), "")
    return LogOutage(worst.copies, worst.copies_left, appends_stop, worst.reads_stop)


def names(nodes: Iterable[NodeId]) -> str:
    """Return the names of nodes for people."""
    return ", ".join(f"node {node}" for node in sorted(nodes))

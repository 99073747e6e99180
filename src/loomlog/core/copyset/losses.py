"""Decide up to which epochs a shard may have lost copies. Pure.

A damaged store is salvaged while its shard is closed: it takes nothing. So what is missing
afterwards is of epochs that were taken before the shard said that it is closed. Later ones lost
nothing, and where nothing was written, nothing may have been acknowledged.

Each closing has a number, of which the shard reports the last one until it takes copies again: what
was noted for one closing says nothing about another, between which copies were stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from loomlog.core.copyset.record import Epoch
from loomlog.types import LogId, ShardId


class Closing(NamedTuple):
    """A time in which a shard takes nothing."""

    process: str  # of its node
    number: int  # 0: the shard is open


class _Noted(NamedTuple):
    closing: Closing
    newest: Mapping[LogId, Epoch]


class Closings:
    """The shards that are closed, as the metadata repository knows."""

    def __init__(self) -> None:
        self._noted: dict[ShardId, _Noted] = {}

    def note(self, shard: ShardId, closing: Closing, newest: Mapping[LogId, Epoch]) -> None:
        """Note which epochs are the newest when a shard says that it is closed, or open."""
        if not closing.number:
            self._noted.pop(shard, None)
        elif shard not in self._noted or self._noted[shard].closing != closing:
            self._noted[shard] = _Noted(closing, newest)

    def lost_through(
        self, shard: ShardId, closing: Closing, newest: Mapping[LogId, Epoch]
    ) -> Mapping[LogId, Epoch]:
        """Return up to which epochs copies may be lost of a shard that says so, with its last
        closing. Logs that began since have lost none."""
        noted = self._noted.get(shard)
        return newest if noted is None or noted.closing != closing else noted.newest

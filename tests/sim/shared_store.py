"""A MetaStore for simulations: it outlives its users, takes its time, and may be away.

Several metadata repositories share one, as they would share an etcd. While it is away nothing is
read or written, and a write that was under way may or may not have happened, or happens later.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from loomlog.errors import LoomError, SwapUnknown, Unavailable
from loomlog.metadata.store.contract import Fence, StoredItem
from loomlog.metadata.store.memory import MemoryStore
from loomlog.testing.sim.world import World

DELAY_MAX_S = 0.002
ANSWER_S = 0.3  # how long clients wait for a store that is away
LATE = 0.3  # of the writes that find it away: those that happen later all the same ...
LATE_MAX_S = 0.5  # ... within this


class Copy(NamedTuple):
    """All that was in a store."""

    items: dict[str, StoredItem]
    version: int


class SharedStore(MemoryStore):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._delay_max_s = DELAY_MAX_S
        self._away = False
        self._absences = 0

    # ---- what a nemesis does

    def leave(self) -> None:
        self._world.note("store", "away")
        self._away = True
        self._absences += 1

    def slow_down(self, factor: float) -> None:
        self._world.note("store", "slow", factor)
        self._delay_max_s = DELAY_MAX_S * factor

    def come_back(self) -> None:
        """Make the store reachable again, as fast as before."""
        self._world.note("store", "well")
        self._away = False
        self._delay_max_s = DELAY_MAX_S

    def look(self, prefix: str) -> dict[str, bytes]:
        """Return what is stored under keys that begin so, at once."""
        found = {key: self._item(key) for key in sorted(self._items) if key.startswith(prefix)}
        return {key: item.value for key, item in found.items() if item is not None}

    def copy(self) -> Copy:
        return Copy(dict(self._items), self._version)

    def restore(self, copy: Copy) -> None:
        """Restore a copy; no request may be in progress."""
        self._world.note("store", "restored", copy.version)
        self._items, self._version = dict(copy.items), copy.version

    # ---- MetaStore

    async def get(self, key: str) -> StoredItem | None:
        await self._reached()
        return await super().get(key)

    async def list(self, prefix: str) -> dict[str, StoredItem]:
        await self._reached()
        return await super().list(prefix)

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        if self._away and self._world.chance(LATE):
            delay_s = self._world.random.random() * LATE_MAX_S
            self._world.after(delay_s, self._swap_late, key, expected, value, fences)
            raise await self._no_answer(key)
        await self._reached()
        absences = self._absences
        version = await super().compare_and_swap(key, expected, value, fences=fences)
        await self._delay()
        if self._absences > absences:
            raise await self._no_answer(key)
        return version

    def _swap_late(
        self, key: str, expected: int, value: bytes | None, fences: tuple[Fence, ...]
    ) -> None:
        try:
            self._swap(key, expected, value, fences)
        except LoomError:
            pass  # something else was written meanwhile

    async def _no_answer(self, key: str) -> SwapUnknown:
        await asyncio.sleep(ANSWER_S)
        return SwapUnknown(f"no answer from the store about {key!r}")

    async def _reached(self) -> None:
        await self._delay()
        if self._away:
            await asyncio.sleep(ANSWER_S)
            raise Unavailable("the store does not answer")

    async def _delay(self) -> None:
        await asyncio.sleep(self._world.random.random() * self._delay_max_s)

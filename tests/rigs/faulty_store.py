"""MetaStores in memory that fail as the test says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from loomlog.errors import SwapUnknown
from loomlog.metadata.store.contract import Fence, StoredItem
from loomlog.metadata.store.memory import MemoryStore


class FaultyStore(MemoryStore):
    """A store whose next swap goes wrong, or waits, and that can be damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], Awaitable[object]] | None = None  # once, ahead of a swap
        self.loses: str | None = None  # of the next swap: its "answer", or the "request" already

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        before, self.before = self.before, None
        if before is not None:
            await before()
        loses, self.loses = self.loses, None
        if loses != "request":
            version = await super().compare_and_swap(key, expected, value, fences=fences)
        if loses is not None:
            raise SwapUnknown("the store did not answer")
        return version

    def damage(self, key: str) -> None:
        """Flip a bit of what is stored."""
        stored, version = self._items[key]
        self._items[key] = StoredItem(stored[:-1] + bytes([stored[-1] ^ 1]), version)


class PowerLoss(Exception):  # noqa: N818 - what happens, not what is wrong
    """The process ended."""


class DyingStore(MemoryStore):
    """Takes a number of writes, then fails, as if the process had ended."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left = 1_000_000

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        if not self.writes_left:
            raise PowerLoss
        self.writes_left -= 1
        return await super().compare_and_swap(key, expected, value, fences=fences)

"""A MetaStore in memory, for the simulator and for tests.

The object represents the disk: pass the same one to the next incarnation of a metadata repository,
and it finds all swaps from before the crash. Every call yields to the loop before and after it
takes effect, so that a crash can happen on either side.
"""

from __future__ import annotations

import asyncio

from loomlog.metadata.store.checked_value import pack, versioned
from loomlog.metadata.store.contract import (
    Changed,
    Fence,
    ItemChange,
    StoredItem,
    Unwatch,
    Watchers,
    conflict,
    fence_fell,
)


class MemoryStore:
    """A MetaStore in memory."""

    def __init__(self) -> None:
        self._items: dict[str, StoredItem] = {}  # values as a disk would have them
        self._version = 0
        self._watchers = Watchers()

    async def get(self, key: str) -> StoredItem | None:
        await asyncio.sleep(0)
        return self._item(key)

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        await asyncio.sleep(0)
        version = self._swap(key, expected, value, fences)
        await asyncio.sleep(0)
        return version

    def _swap(self, key: str, expected: int, value: bytes | None, fences: tuple[Fence, ...]) -> int:
        for fence in fences:
            if self._version_of(fence.key) != fence.version:
                raise fence_fell(fence, self._version_of(fence.key))
        found = self._version_of(key)
        if found != expected:
            raise conflict(key, expected, found)
        self._version += 1
        version = self._version
        self._put(key, None if value is None else StoredItem(pack(key, value, version), version))
        return version

    def _item(self, key: str) -> StoredItem | None:
        item = self._items.get(key)
        return item and versioned(key, item.value, item.version, covered=item.version)

    def _version_of(self, key: str) -> int:
        item = self._items.get(key)
        return item.version if item else 0

    def _put(self, key: str, item: StoredItem | None) -> None:
        if item is None:
            self._items.pop(key, None)
        else:
            self._items[key] = item
        self._watchers.tell(ItemChange(key, self._item(key)))

    async def list(self, prefix: str) -> dict[str, StoredItem]:
        await asyncio.sleep(0)
        keys = [key for key in sorted(self._items) if key.startswith(prefix)]
        return {key: item for key in keys if (item := self._item(key)) is not None}

    def watch(self, prefix: str, changed: Changed) -> Unwatch:
        return self._watchers.add(prefix, changed)

    async def close(self) -> None:
        self._watchers.clear()

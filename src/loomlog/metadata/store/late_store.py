"""A MetaStore that may be unavailable at the start: it is opened when it is first used.

So a metadata repository can serve as a member of the round log while etcd is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loomlog.metadata.store.contract import (
    Changed,
    Fence,
    FencedStore,
    MetaStore,
    Unwatch,
    Versioned,
)


class LateStore:
    """Opens its store on use, and raises the error while that fails."""

    def __init__(self, open_store: Callable[[], Awaitable[MetaStore]]) -> None:
        self._open = open_store
        self._store: MetaStore | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> MetaStore:
        async with self._opening:
            if self._store is None:
                self._store = await self._open()
            return self._store

    async def get(self, key: str) -> Versioned | None:
        return await (await self.open()).get(key)

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        store = await self.open()
        return await store.compare_and_swap(key, expected, value, fences=fences)

    async def list(self, prefix: str) -> dict[str, Versioned]:
        return await (await self.open()).list(prefix)

    def watch(self, prefix: str, changed: Changed) -> Unwatch:
        """Watch the store, which must be open."""
        assert self._store is not None, "not opened yet"
        return self._store.watch(prefix, changed)

    def fenced(self, key: str, version: int) -> MetaStore:
        return FencedStore(self, Fence(key, version))

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()

"""The interface of metadata stores, a small ordered map with compare-and-swap, and views of one.

The interface is small, so that both SQLite and etcd can implement it. Versions come from one
counter of the whole store: a later change of any key has a higher version, and a key that was
deleted and written again never gets an old version.

Conflict, NotLeader (a fence fell) and Unavailable mean that nothing was written. SwapUnknown means
that the outcome is unknown: only a store on other machines raises it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from loomlog.errors import Conflict, NotLeader, SwapUnknown, Unavailable


class StoreFailed(Unavailable):
    """The disk of an embedded store cannot be written."""


class StoredItem(NamedTuple):
    """A value and its version, which a compare-and-swap has to name."""

    value: bytes
    version: int


class ItemChange(NamedTuple):
    """A change of a key; `item` is None if the key was deleted."""

    key: str
    item: StoredItem | None


class Fence(NamedTuple):
    """A key that must still be at this version when something is written."""

    key: str
    version: int


def conflict(key: str, expected: int, found: int) -> Conflict:
    """Return the error for a key that is not at the version expected."""
    return Conflict(
        f"metadata {key!r} is at version {found or 'none'}, not {expected or 'none'}: "
        "another process changed it"
    )


def fence_fell(fence: Fence, found: int) -> NotLeader:
    """Return the error for a fence that is no longer at its version; nothing was written."""
    return NotLeader(
        f"metadata {fence.key!r} is at version {found or 'none'}, not {fence.version}: "
        "another metadata repository leads by now"
    )


Changed = Callable[[ItemChange], None]
Unwatch = Callable[[], None]


class MetaStore(Protocol):
    """A store of versioned values. A swap survives a crash of the process and of the machine."""

    async def get(self, key: str) -> StoredItem | None: ...

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        """Write (None: delete) if the key is at version `expected` (0: absent), else Conflict.

        All `fences` must hold at that moment, otherwise NotLeader. Return the new version."""

    async def list(self, prefix: str) -> dict[str, StoredItem]:
        """Return all items whose key begins with `prefix`, in key order."""

    def watch(self, prefix: str, changed: Changed) -> Unwatch:
        """Call `changed` with every change from now on, in order, until the result is called."""

    async def close(self) -> None: ...


class FencedStore:
    """A view of a store that adds fences to its swaps. Closing it leaves the store open."""

    def __init__(self, store: MetaStore, *fences: Fence) -> None:
        self._store = store
        self._fences = fences
        self.get = store.get
        self.list = store.list
        self.watch = store.watch

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        every = (*self._fences, *fences)
        return await self._store.compare_and_swap(key, expected, value, fences=every)

    async def close(self) -> None:
        return


class WatchedStore(FencedStore):
    """A view of a store that reports when a swap failed, or its outcome is unknown."""

    def __init__(self, store: MetaStore, failed: Callable[[], None]) -> None:
        super().__init__(store)
        self._failed = failed

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        try:
            return await super().compare_and_swap(key, expected, value, fences=fences)
        except (Unavailable, SwapUnknown):
            self._failed()
            raise


class Watchers:
    """The watchers of keys; shared by the stores that live in this process."""

    def __init__(self) -> None:
        self._watchers: list[tuple[str, Changed]] = []

    def add(self, prefix: str, changed: Changed) -> Unwatch:
        watcher = (prefix, changed)
        self._watchers.append(watcher)

        def unwatch() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return unwatch

    def tell(self, change: ItemChange) -> None:
        for prefix, changed in list(self._watchers):
            if change.key.startswith(prefix):
                changed(change)

    def clear(self) -> None:
        self._watchers.clear()


class LateStore:
    """Opens its store at the first use, and raises the error while that fails. So a metadata
    repository can serve as a member of the round log while etcd is away."""

    def __init__(self, open_store: Callable[[], Awaitable[MetaStore]]) -> None:
        self._open = open_store
        self._store: MetaStore | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> MetaStore:
        async with self._opening:
            if self._store is None:
                self._store = await self._open()
            return self._store

    async def get(self, key: str) -> StoredItem | None:
        return await (await self.open()).get(key)

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        store = await self.open()
        return await store.compare_and_swap(key, expected, value, fences=fences)

    async def list(self, prefix: str) -> dict[str, StoredItem]:
        return await (await self.open()).list(prefix)

    def watch(self, prefix: str, changed: Changed) -> Unwatch:
        """Watch the store, which must be open."""
        assert self._store is not None, "not opened yet"
        return self._store.watch(prefix, changed)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()

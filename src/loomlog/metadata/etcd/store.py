"""A MetaStore in etcd, for several metadata repositories that share it.

Versions are etcd's revisions: one counter for the whole store, which never goes back; for metadata
that was moved here they begin above those that it had before. Reads are linearizable. Whatever
fails is tried again, also at other members, until the timeout; a swap takes as long again to learn
what became of it if its answer was lost.
"""

from __future__ import annotations

from typing import Final

from loomlog.config import EtcdSettings
from loomlog.metadata.etcd.connection import EtcdConnection, rpc
from loomlog.metadata.etcd.keys import Keys
from loomlog.metadata.etcd.swaps import Swaps
from loomlog.metadata.etcd.watch import Watch
from loomlog.metadata.store import (
    Change,
    Changed,
    Fence,
    FencedStore,
    MetaStore,
    Unwatch,
    Versioned,
)

_VERSIONS: Final = "metadata/versions"  # what is added to etcd's revisions


class EtcdStore:
    """Made by `open`."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._keys = Keys(settings.prefix)
        self._connection = EtcdConnection(settings)
        self._swaps = Swaps(self._connection, self._keys)
        self._watches: set[Watch] = set()
        self._above = 0

    @classmethod
    async def open(cls, settings: EtcdSettings) -> EtcdStore:
        """Connect. Unavailable if etcd does not answer, Unauthorized if it does not want us."""
        store = cls(settings)
        try:
            above = await store.get(_VERSIONS)  # names the revision at which watches begin, too
            store._above = int(above.value) if above else 0
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def endpoint(self) -> str:
        """The address of the member in use."""
        return self._connection.endpoint.address

    async def get(self, key: str) -> Versioned | None:
        request = rpc.RangeRequest(key=self._keys.key(key))
        answer = await self._connection.ask_now(lambda e: e.kv.Range, request)
        for item in answer.kvs:
            return Versioned(item.value, self._version(item.mod_revision))
        return None

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        raw_fences = tuple(Fence(fence.key, self._revision(fence.version)) for fence in fences)
        revision = await self._swaps.swap(key, self._revision(expected), value, raw_fences)
        return self._version(revision)

    async def list(self, prefix: str) -> dict[str, Versioned]:
        first, end = self._keys.range(prefix)
        request = rpc.RangeRequest(key=first, range_end=end)
        answer = await self._connection.ask_now(lambda e: e.kv.Range, request)
        return {
            self._keys.name(item.key): Versioned(item.value, self._version(item.mod_revision))
            for item in answer.kvs
        }

    def watch(self, prefix: str, changed: Changed) -> Unwatch:
        """It begins after the newest revision seen here: nothing since the last read is missed."""
        revision = self._connection.revision

        def tell(change: Change) -> None:
            key, item = change
            changed(Change(key, item and Versioned(item.value, self._version(item.version))))

        watch = Watch(self._connection, self._keys, prefix, revision, tell)
        self._watches.add(watch)

        def unwatch() -> None:
            watch.end()
            self._watches.discard(watch)

        return unwatch

    def fenced(self, key: str, version: int) -> MetaStore:
        return FencedStore(self, Fence(key, version))

    async def last_version(self) -> int:
        await self.get(_VERSIONS)
        return self._version(self._connection.revision)

    async def raise_versions(self, version: int) -> None:
        """Of a store that is empty: every version given from now on is above this one."""
        above = max(0, version - await self.last_version())
        await self.compare_and_swap(_VERSIONS, 0, str(above).encode())
        self._above = above

    def _version(self, revision: int) -> int:
        return revision + self._above

    def _revision(self, version: int) -> int:
        return version - self._above if version else 0

    async def close(self) -> None:
        for watch in self._watches:
            watch.end()
            await watch.ended()
        self._watches.clear()
        await self._swaps.close()
        await self._connection.close()

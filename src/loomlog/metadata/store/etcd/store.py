"""A MetaStore in etcd, for several metadata repositories that share it.

Versions are etcd's revisions: one counter for the whole store, which never goes back; for metadata
that was moved here they begin above those that it had before. Reads are linearizable. Failures are
retried, also at other members, until the timeout; a swap whose answer was lost takes as long again
to learn its outcome.
"""

from __future__ import annotations

from typing import Final

from loomlog.config import EtcdSettings
from loomlog.metadata.store.checked_value import pack, versioned
from loomlog.metadata.store.contract import (
    Change,
    Changed,
    Fence,
    FencedStore,
    MetaStore,
    Unwatch,
    Versioned,
)
from loomlog.metadata.store.etcd.connection import EtcdConnection, rpc
from loomlog.metadata.store.etcd.keys import Keys
from loomlog.metadata.store.etcd.swaps import Swaps
from loomlog.metadata.store.etcd.watch import Watch

_VERSIONS: Final = "metadata/versions"  # what is added to etcd's revisions


class EtcdStore:
    """A MetaStore in etcd. Created by `open`."""

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
        """Return the address of the member in use."""
        return self._connection.endpoint.address

    async def get(self, key: str) -> Versioned | None:
        request = rpc.RangeRequest(key=self._keys.key(key))
        answer = await self._connection.ask_now(lambda e: e.kv.Range, request)
        for item in answer.kvs:
            return versioned(key, item.value, self._version(item.mod_revision))
        return None

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        raw_fences = tuple(Fence(fence.key, self._revision(fence.version)) for fence in fences)
        stored = None if value is None else pack(key, value)
        revision = await self._swaps.swap(key, self._revision(expected), stored, raw_fences)
        return self._version(revision)

    async def list(self, prefix: str) -> dict[str, Versioned]:
        first, end = self._keys.range(prefix)
        request = rpc.RangeRequest(key=first, range_end=end)
        answer = await self._connection.ask_now(lambda e: e.kv.Range, request)
        found = ((self._keys.name(item.key), item) for item in answer.kvs)
        return {
            key: versioned(key, item.value, self._version(item.mod_revision)) for key, item in found
        }

    def watch(self, prefix: str, changed: Changed) -> Unwatch:
        """Watch from the newest revision seen here on: nothing since the last read is missed."""
        revision = self._connection.revision

        def tell(change: Change) -> None:
            key, item = change
            changed(Change(key, item and versioned(key, item.value, self._version(item.version))))

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
        """Start all later versions above this one; the store must be empty."""
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

"""A MetaStore in etcd, for several metadata repositories that share it.

Versions are etcd's revisions: one counter for the whole store, which never goes back. Reads are
linearizable. Whatever fails is tried again, also at other members, until the timeout; a swap takes
as long again to learn what became of it if its answer was lost.
"""

from __future__ import annotations

from loomlog.config import EtcdSettings
from loomlog.metadata.etcd.connection import EtcdConnection, rpc
from loomlog.metadata.etcd.keys import Keys
from loomlog.metadata.etcd.swaps import Swaps
from loomlog.metadata.etcd.watch import Watch
from loomlog.metadata.store import Changed, Fence, FencedStore, MetaStore, Unwatch, Versioned


class EtcdStore:
    """Made by `open`."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._keys = Keys(settings.prefix)
        self._connection = EtcdConnection(settings)
        self._swaps = Swaps(self._connection, self._keys)
        self._watches: set[Watch] = set()

    @classmethod
    async def open(cls, settings: EtcdSettings) -> EtcdStore:
        """Connect. Unavailable if etcd does not answer, Unauthorized if it does not want us."""
        store = cls(settings)
        try:
            await store.get("")  # names the revision at which watches begin
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
            return Versioned(item.value, item.mod_revision)
        return None

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        return await self._swaps.swap(key, expected, value, fences)

    async def list(self, prefix: str) -> dict[str, Versioned]:
        first, end = self._keys.range(prefix)
        request = rpc.RangeRequest(key=first, range_end=end)
        answer = await self._connection.ask_now(lambda e: e.kv.Range, request)
        return {
            self._keys.name(item.key): Versioned(item.value, item.mod_revision)
            for item in answer.kvs
        }

    def watch(self, prefix: str, changed: Changed) -> Unwatch:
        """It begins after the newest revision seen here: nothing since the last read is missed."""
        revision = self._connection.revision
        watch = Watch(self._connection, self._keys, prefix, revision, changed)
        self._watches.add(watch)

        def unwatch() -> None:
            watch.end()
            self._watches.discard(watch)

        return unwatch

    def fenced(self, key: str, version: int) -> MetaStore:
        return FencedStore(self, Fence(key, version))

    async def close(self) -> None:
        for watch in self._watches:
            watch.end()
            await watch.ended()
        self._watches.clear()
        await self._swaps.close()
        await self._connection.close()

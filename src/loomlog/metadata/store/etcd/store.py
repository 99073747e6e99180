"""A MetaStore in etcd, for several metadata repositories that share it.

Versions are etcd's revisions, one counter for the whole store, which never goes back; for imported
metadata they begin above its earlier versions. Reads are linearizable. Failed requests are retried,
also with other members, until the timeout; a swap whose answer was lost takes up to the same time
again to determine its outcome.

If etcd went back in time, a process that knew more refuses everything (`RolledBack`). Only the
history of the metadata can still be written, to record it for later processes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from loomlog.config import EtcdSettings
from loomlog.errors import LoomError
from loomlog.metadata.catalog.records import HISTORY
from loomlog.metadata.store.checked_value import pack, versioned
from loomlog.metadata.store.contract import (
    Changed,
    Fence,
    ItemChange,
    StoredItem,
    Unwatch,
)
from loomlog.metadata.store.etcd.connection import (
    AnswerLost,
    Compacted,
    Endpoint,
    EtcdConnection,
    Keys,
    rpc,
)
from loomlog.metadata.store.etcd.swaps import Swaps

_VERSIONS: Final = "metadata/versions"  # is added to etcd's revisions
_AGAIN_S: Final = 0.1  # after a stream that broke
_LOOK_S: Final = (
    0.5  # between checks whether other requests still use the member of a silent stream
)


class EtcdStore:
    """A MetaStore in etcd. Created by `open`."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._keys = Keys(settings.prefix)
        self._connection = EtcdConnection(settings)
        self._swaps = Swaps(self._connection, self._keys)
        self._watches: set[EtcdWatch] = set()
        self._above = 0

    @classmethod
    async def open(cls, settings: EtcdSettings) -> EtcdStore:
        """Connect. Raise Unavailable if etcd does not answer, Unauthorized if it refuses the
        user."""
        store = cls(settings)
        try:
            above = await store.get(_VERSIONS)  # also returns the revision at which watches begin
            store._above = int(above.value) if above else 0
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def endpoint(self) -> str:
        """Return the address of the member in use."""
        return self._connection.endpoint.address

    async def get(self, key: str) -> StoredItem | None:
        request = rpc.RangeRequest(key=self._keys.key(key))
        answer = await self._connection.ask_now(lambda e: e.kv.Range, request)
        self._connection.check()
        for item in answer.kvs:
            return versioned(key, item.value, self._version(item.mod_revision))
        return None

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        raw_fences = tuple(Fence(fence.key, self._revision(fence.version)) for fence in fences)
        stored = None if value is None else pack(key, value)
        swap = key, self._revision(expected), stored, raw_fences
        if key == HISTORY:
            return self._version(await self._swaps.swap(*swap, is_checked=False))
        try:
            revision = await self._swaps.swap(*swap)
        except LoomError:
            self._connection.check()
            raise
        self._connection.check()
        return self._version(revision)

    async def list(self, prefix: str) -> dict[str, StoredItem]:
        first, end = self._keys.range(prefix)
        request = rpc.RangeRequest(key=first, range_end=end)
        answer = await self._connection.ask_now(lambda e: e.kv.Range, request)
        self._connection.check()
        found = ((self._keys.name(item.key), item) for item in answer.kvs)
        return {
            key: versioned(key, item.value, self._version(item.mod_revision)) for key, item in found
        }

    def watch(self, prefix: str, changed: Changed) -> Unwatch:
        """Watch from the newest revision seen here on, so that no change since the last read is
        missed."""
        revision = self._connection.revision

        def tell(change: ItemChange) -> None:
            key, item = change
            changed(
                ItemChange(key, item and versioned(key, item.value, self._version(item.version)))
            )

        watch = EtcdWatch(self._connection, self._keys, prefix, revision, tell)
        self._watches.add(watch)

        def unwatch() -> None:
            watch.end()
            self._watches.discard(watch)

        return unwatch

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


logger = logging.getLogger(__name__)


class EtcdWatch:
    """Calls `changed` for every key under `prefix` that changes after `revision`, until `end`."""

    def __init__(
        self,
        connection: EtcdConnection,
        keys: Keys,
        prefix: str,
        revision: int,
        changed: Changed,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._prefix = prefix
        self._changed = changed
        self._reported = revision
        self._present: set[str] | None = None  # the keys that exist, as reported
        self._ended = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def end(self) -> None:
        self._ended = True
        self._task.cancel()

    async def ended(self) -> None:
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._follow_or_catch_up()
            except (AnswerLost, LoomError) as error:
                logger.info("watching %r in etcd is interrupted: %s", self._prefix, error)
            except Exception:  # otherwise its watcher would get nothing more
                logger.exception("watching %r in etcd is interrupted", self._prefix)
            await asyncio.sleep(_AGAIN_S)

    async def _follow_or_catch_up(self) -> None:
        try:
            if self._present is None:
                self._present = await self._present_at(self._reported)
            await self._follow()
        except Compacted:
            await self._catch_up()

    # ---- as long as etcd remembers

    async def _follow(self) -> None:
        endpoint = await self._connection.reach(self._connection.deadline())
        async with self._connection.stream(endpoint, lambda e: e.watch.Watch) as call:
            first, end = self._keys.range(self._prefix)
            create = rpc.WatchCreateRequest(
                key=first, range_end=end, start_revision=self._reported + 1
            )
            await call.write(rpc.WatchRequest(create_request=create))
            while response := await self._next(call, endpoint):
                if response.compact_revision:
                    raise Compacted
                if response.canceled:
                    raise AnswerLost(response.cancel_reason)
                for event in response.events:
                    self._tell_event(event)

    async def _next(self, call: Any, endpoint: Endpoint) -> Any:
        """Return the next message of the stream, falsy at its end; leave a member when other
        requests do."""
        reading = asyncio.ensure_future(call.read())
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=_LOOK_S)
                if not reading.done() and self._connection.endpoint is not endpoint:
                    raise AnswerLost(f"{endpoint.address} was left")
            return reading.result()
        finally:
            reading.cancel()

    def _tell_event(self, event: Any) -> None:
        key, version = self._keys.name(event.kv.key), event.kv.mod_revision
        if event.type == rpc.Event.DELETE:
            self._report(ItemChange(key, None), version)
        else:
            self._report(ItemChange(key, StoredItem(event.kv.value, version)), version)

    # ---- when it does not

    async def _present_at(self, revision: int) -> set[str]:
        first, end = self._keys.range(self._prefix)
        request = rpc.RangeRequest(key=first, range_end=end, revision=revision, keys_only=True)
        answer = await self._connection.ask_now(lambda e: e.kv.Range, request)
        return {self._keys.name(item.key) for item in answer.kvs}

    async def _catch_up(self) -> None:
        first, end = self._keys.range(self._prefix)
        request = rpc.RangeRequest(key=first, range_end=end)
        answer = await self._connection.ask_now(lambda e: e.kv.Range, request)
        found = {self._keys.name(item.key): item for item in answer.kvs}
        for key in sorted((self._present or set()) - set(found)):
            self._report(ItemChange(key, None), self._reported)
        for key, item in sorted(found.items(), key=lambda pair: pair[1].mod_revision):
            if item.mod_revision > self._reported:
                version = item.mod_revision
                self._report(ItemChange(key, StoredItem(item.value, version)), version)
        self._present = set(found)
        self._reported = answer.header.revision

    def _report(self, change: ItemChange, version: int) -> None:
        self._reported = version
        if self._present is not None:
            (self._present.discard if change.item is None else self._present.add)(change.key)
        if self._ended:
            return
        try:
            self._changed(change)
        except Exception:  # an error in a watcher must not end its watch
            logger.exception("a watcher of %r failed", self._prefix)

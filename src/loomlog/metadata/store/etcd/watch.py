"""A watch in etcd: reports every change under a prefix, once and in order.

A watch remembers the revision that it reported last and resumes after it wherever it connects. If
etcd has compacted that revision, the watch lists the keys and reports the differences.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from loomlog.errors import LoomError
from loomlog.metadata.store.contract import Change, Changed, Versioned
from loomlog.metadata.store.etcd.connection import (
    AnswerLost,
    Compacted,
    Endpoint,
    EtcdConnection,
    rpc,
)
from loomlog.metadata.store.etcd.keys import Keys

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 0.1  # after a stream that broke
_LOOK_S: Final = 0.5  # how often a silent stream checks that others use its member, too


class Watch:
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
        self._told = revision
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
            except Exception:  # or its watcher would get nothing more
                logger.exception("watching %r in etcd is interrupted", self._prefix)
            await asyncio.sleep(_AGAIN_S)

    async def _follow_or_catch_up(self) -> None:
        try:
            if self._present is None:
                self._present = await self._present_at(self._told)
            await self._follow()
        except Compacted:
            await self._catch_up()

    # ---- as long as etcd remembers

    async def _follow(self) -> None:
        endpoint = await self._connection.reach(self._connection.deadline())
        async with self._connection.stream(endpoint, lambda e: e.watch.Watch) as call:
            first, end = self._keys.range(self._prefix)
            create = rpc.WatchCreateRequest(key=first, range_end=end, start_revision=self._told + 1)
            await call.write(rpc.WatchRequest(create_request=create))
            while response := await self._next(call, endpoint):
                if response.compact_revision:
                    raise Compacted
                if response.canceled:
                    raise AnswerLost(response.cancel_reason)
                for event in response.events:
                    self._tell_event(event)

    async def _next(self, call: Any, endpoint: Endpoint) -> Any:
        """Return the next message of the stream, falsy at its end; leave a member as others do."""
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
            self._tell(Change(key, None), version)
        else:
            self._tell(Change(key, Versioned(event.kv.value, version)), version)

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
            self._tell(Change(key, None), self._told)
        for key, item in sorted(found.items(), key=lambda pair: pair[1].mod_revision):
            if item.mod_revision > self._told:
                version = item.mod_revision
                self._tell(Change(key, Versioned(item.value, version)), version)
        self._present = set(found)
        self._told = answer.header.revision

    def _tell(self, change: Change, version: int) -> None:
        self._told = version
        if self._present is not None:
            (self._present.discard if change.item is None else self._present.add)(change.key)
        if self._ended:
            return
        try:
            self._changed(change)
        except Exception:  # one watcher's mistake must not end its watch
            logger.exception("a watcher of %r failed", self._prefix)

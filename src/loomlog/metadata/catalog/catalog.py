"""The metadata of the cluster in memory: everything visible here is durable.

Reads are plain attributes. Every write first goes to the MetaStore by compare-and-swap, one at a
time, and is visible here once it has returned. Related keys are written in an order that the next
leader can complete or undo after a crash:

    create a log    the log (unfinished), its loglets, … then the log (not unfinished any more)
    delete a log    the log (unfinished: this decides), then delete its record; the records of its
                    loglets are deleted when no node has anything of them
    switch a log    each step is one write of the log (core/segments.py)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

from loomlog import limits
from loomlog.core.segments import Layout, Segment, Settings
from loomlog.errors import AlreadyExists, Corrupt, InvalidArgument, NotFound
from loomlog.metadata.catalog.kept_records import KeptRecords
from loomlog.metadata.catalog.records import (
    ACCESS,
    GIVEN_UP,
    AccessRecord,
    ClusterRecord,
    CountersRecord,
    LogRecord,
    Losses,
    NodeRecord,
    log_key,
    node_key,
)
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import Glsn, LogId, NodeId, StreamId


class Catalog(KeptRecords):
    """The metadata of the cluster. Created by `load`."""

    _new_secret: Callable[[], str]
    _locks: WeakValueDictionary[str, asyncio.Lock]

    def lock(self, name: str) -> asyncio.Lock:
        """Return the lock for creating, switching and deleting a log of this name."""
        return self._locks.setdefault(name, asyncio.Lock())

    def new_stamp(self) -> int:
        """Return a unique random number above 0."""
        return int.from_bytes(sha256(self._new_secret().encode()).digest()[:8], "big") or 1

    @classmethod
    async def load(
        cls,
        store: MetaStore,
        cluster_id: str,
        new_secret: Callable[[], str],
        *,
        has_rounds: bool = False,
    ) -> Catalog:
        """Read everything, and complete what a crash interrupted; a new cluster gets its secret.
        With `has_rounds` there are rounds, so the cluster is not new."""
        catalog = cls(store)
        catalog._new_secret = new_secret
        catalog._locks = WeakValueDictionary()
        await catalog._read()
        if not catalog.cluster.cluster_id:
            catalog._check_new(has_rounds)
            await catalog._put("cluster", ClusterRecord(cluster_id, new_secret()))
        if catalog.cluster.cluster_id != cluster_id:
            raise InvalidArgument(
                f"this metadata belongs to cluster {catalog.cluster.cluster_id!r}, "
                f"not {cluster_id!r}: give the right cluster id or another directory"
            )
        await catalog._finish_interrupted()
        return catalog

    def _check_new(self, has_rounds: bool) -> None:
        """Raise Corrupt if there is data, but no record of the cluster, which is written first."""
        if has_rounds or self._versions:
            what = "rounds" if has_rounds else f"records such as {min(self._versions)!r}"
            raise Corrupt(
                f"the metadata holds no record of its cluster, but there are {what}: restore the "
                "metadata from a copy, or start a new cluster on an empty directory and etcd prefix"
            )

    async def _finish_interrupted(self) -> None:
        for log in list(self.logs.values()):
            if log.unfinished:
                await self.delete_log(log.name)

    # ---- nodes

    async def put_node(
        self, node: NodeRecord, note_losses: Callable[[NodeRecord], NodeRecord] = lambda node: node
    ) -> NodeRecord:
        """Write a node's description of itself. The state that operators wished for stays, unless
        the node lost its data; a permission to replace it is used up, and the decision that its
        data never comes back is revoked. `note_losses` adds its losses."""
        async with self._writing:
            known = self.nodes.get(node.node_id)
            if known is not None and known.node_secret == node.node_secret:
                node = replace(
                    node,
                    draining=known.draining,
                    removing=known.removing,
                    draining_volumes=known.draining_volumes,
                    losses=known.without_losses(GIVEN_UP).losses,
                    generations=known.with_generations(node.generations).generations,
                )
            node = note_losses(node)
            if known != node:
                await self._write(node_key(node.node_id), node)
            return node

    async def update_node(self, node_id: NodeId, **changes: Any) -> NodeRecord:
        async with self._writing:
            changed = replace(self.node(node_id), **changes)
            await self._write(node_key(node_id), changed)
            return changed

    async def change_node(
        self, node_id: NodeId, change: Callable[[NodeRecord], NodeRecord]
    ) -> bool:
        """Write the changed record of a node; return whether it differs."""
        async with self._writing:
            known = self.node(node_id)
            changed = change(known)
            if changed != known:
                await self._write(node_key(node_id), changed)
            return changed != known

    async def make_replaceable(self, node: NodeRecord) -> None:
        """Let an empty node take the number of this one, unless one has already done so."""
        async with self._writing:
            known = self.nodes.get(node.node_id)
            if known is not None and known.node_secret == node.node_secret:
                await self._write(node_key(node.node_id), replace(known, replaceable=True))

    async def end_losses(self, node_id: NodeId, protocol: str, losses: Losses) -> None:
        """Forget losses of a node, unless they have changed."""
        async with self._writing:
            known = self.nodes.get(node_id)
            if known is not None and known.losses_of(protocol) == losses:
                await self._write(node_key(node_id), known.without_losses(protocol))

    async def note_generations(self, node_id: NodeId, numbers: Mapping[int, int]) -> None:
        async with self._writing:
            known = self.nodes.get(node_id)
            if known is not None and (grown := known.with_generations(numbers)) != known:
                await self._write(node_key(node_id), grown)

    async def remove_node(self, node_id: NodeId) -> None:
        await self._put(node_key(node_id), None)

    # ---- access rules

    async def put_access(self, record: AccessRecord) -> None:
        await self._put(ACCESS, record)

    # ---- logs

    async def create_log(self, name: str, settings: Settings, first: Glsn = 1) -> LogRecord:
        """Give a log an id and its first segment, and mark it as unfinished."""
        if name in self.logs:
            raise AlreadyExists(f"there is a log {name!r} already: choose another name")
        log_id = await self.new_loglet()
        segment = Segment(log_id, settings, first)
        log = LogRecord(log_id, name, (segment,), trimmed=first - 1, unfinished=True)
        await self._put(log_key(name), log)
        return log

    async def log_created(
        self, name: str, retention_s: int = 0, retention_bytes: int = 0
    ) -> LogRecord:
        return await self._update_log(
            name, unfinished=False, retention_s=retention_s, retention_bytes=retention_bytes
        )

    async def set_retention(self, name: str, **changes: int) -> LogRecord:
        return await self._update_log(self.log(name).name, **changes)

    async def trim_log(self, name: str, position: Glsn) -> LogRecord:
        if position <= self.log(name).trimmed:
            return self.log(name)
        return await self._change_log(name, lambda log: log.trim(position))

    async def new_loglet(self) -> LogId:
        return (await self._take_ids(logs=1)).log_id

    async def new_streams(self, count: int = 1) -> range:
        """Return ids for streams, whose records their protocol stores."""
        last = (await self._take_ids(streams=count)).stream_id
        return range(last - count + 1, last + 1)

    async def swap_layout(self, name: str, expected: Layout, layout: Layout) -> bool:
        """Replace the layout of a log; return False if it is no longer the expected one."""
        async with self._writing:
            log = self.log(name)
            if log.layout != expected:
                return False
            await self._write(log_key(name), log.with_layout(layout))
            return True

    async def delete_log(self, name: str) -> None:
        """Delete a log. It is gone from the first write on, even if the second one fails."""
        if not self._known(name).unfinished:
            await self._update_log(name, unfinished=True)
        await self._put(log_key(name), None)

    async def raise_version(self, name: str) -> None:
        """Write a log unchanged, to raise its version."""
        await self._update_log(name)

    # ---- writing

    async def raise_ids(self, log_id: LogId, stream_id: StreamId) -> None:
        """Never assign numbers that a node has already seen, even if this metadata lacks them."""
        if max(log_id, stream_id) > limits.NUMBER_MAX:
            raise InvalidArgument(
                f"no log or stream has a number above {limits.NUMBER_MAX}: found log {log_id}, "
                f"stream {stream_id}"
            )
        async with self._writing:
            last = self._counters
            raised = CountersRecord(max(last.log_id, log_id), max(last.stream_id, stream_id))
            if raised != last:
                await self._write("counters", raised)

    async def _take_ids(self, logs: int = 0, streams: int = 0) -> CountersRecord:
        """Reserve ids; return the last of them."""
        async with self._writing:
            last = self._counters
            taken = CountersRecord(last.log_id + logs, last.stream_id + streams)
            await self._write("counters", taken)
            return taken

    async def _update_log(self, name: str, **changes: Any) -> LogRecord:
        return await self._change_log(name, lambda log: replace(log, **changes))

    async def _change_log(self, name: str, change: Callable[[LogRecord], LogRecord]) -> LogRecord:
        async with self._writing:
            changed = change(self._known(name))
            await self._write(log_key(name), changed)
            return changed

    def _known(self, name: str) -> LogRecord:
        """Return a log, even while it is being created."""
        log = self.logs.get(name)
        if log is None:
            raise NotFound(f"log {name!r} was deleted")
        return log

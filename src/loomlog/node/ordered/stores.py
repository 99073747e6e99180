"""The stores of a node's log streams: found at the start, created, removed, opened again.

Each volume has one journal, which all streams on it share. A replica that cannot be opened does not
prevent others from being served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

from loomlog.core.conditions import Condition, Kind
from loomlog.errors import LoomError, Unavailable
from loomlog.node.disks import Disks
from loomlog.node.volume import Volume, is_of_volume
from loomlog.node.workers import finish, off_loop
from loomlog.storage.files import Finished, Worker
from loomlog.storage.ordered.data_file import Broken
from loomlog.storage.ordered.journal import Channel, Journal
from loomlog.storage.ordered.relocation import copy_early, drop_copy, finish_moves
from loomlog.storage.ordered.replica_paths import ReplicaPaths, StreamMeta, set_aside
from loomlog.storage.ordered.stream_store import StreamStore
from loomlog.types import LogId, StreamId

logger = logging.getLogger(__name__)


class StreamStores:
    """The stores of all replicas on this node. The constructor opens them, which blocks."""

    def __init__(self, disks: Disks) -> None:
        self._disks = disks
        self._settings = disks.settings.storage
        self._journals: dict[str, Journal] = {}  # by the node's path on the volume
        self.open: dict[StreamId, StreamStore] = {}
        self._unopened: dict[StreamId, str] = {}  # because their volume did not work
        self._changing: set[StreamId] = set()  # being created or deleted
        self._mover: Worker | None = None  # copies between volumes
        disks.own(self)
        finish_moves(disks.files, disks.paths)
        stamp = disks.opened.cluster_stamp
        self._paths = ReplicaPaths(disks.files, disks.paths, stamp, disks.settings.node_id)
        for stream_id, path in list(self._paths.streams.items()):
            self._open(stream_id, path)
        for condition in self._paths.found.conditions:
            logger.error("%s", condition.sentence)

    @property
    def conditions(self) -> list[Condition]:
        """The conditions of replicas that are damaged or not served."""
        damage = [
            Condition(kind, text, stream=store.meta.stream_id)
            for store in self.open.values()
            for kind, text in (
                (Kind.DATA_DAMAGED, _describe(store)),
                (Kind.DATA_LOST, _describe_lost(store)),
            )
            if text
        ]
        return [*self._paths.found.conditions, *damage]

    def unserved(self, held: Collection[StreamId]) -> set[StreamId]:
        """Return the streams with data here that are not `held` now, but may be later."""
        with_data = set(self._paths.streams).difference(held, self._changing)
        return with_data | self._paths.found.unserved

    @property
    def highest_ids(self) -> tuple[LogId, StreamId]:
        """The highest log id and stream id that were found here."""
        found, metas = self._paths.found, [store.meta for store in self.open.values()]
        return (
            max([found.highest_log_id, *(meta.log_id for meta in metas)]),
            max([found.highest_stream_id, *(meta.stream_id for meta in metas)]),
        )

    def _open(self, stream_id: StreamId, path: str) -> None:
        try:
            store = StreamStore.open(self._disks.files, path, self._journal(path), self._settings)
        except OSError as error:
            if is_of_volume(error):
                self._disks.volume_of(path).failed(error)
                self._unopened[stream_id] = path
            else:
                self._paths.is_damaged(stream_id, f"it cannot be opened ({error})")
        except Exception as error:  # damaged files may cause any error
            self._paths.is_damaged(stream_id, f"it cannot be opened ({error})")
        else:
            self._add(store)

    def why_unopened(self, stream_id: StreamId) -> str:
        """Return why a replica could not be opened, if it may be possible later; "" otherwise."""
        path = self._unopened.get(stream_id)
        if path is None:
            return ""
        return self._disks.volume_of(path).condition or f"{path} could not be opened"

    def unopened_on(self, volume: Volume) -> list[StreamId]:
        """Return the replicas that could not be opened because the volume did not work."""
        unopened = self._unopened.items()
        return [stream for stream, path in unopened if self._disks.volume_of(path) is volume]

    async def open_rest(self, volume: Volume) -> list[StreamStore]:
        """Recover the replicas that could not be opened while their volume did not work."""
        stores: list[StreamStore] = []
        for stream_id in self.unopened_on(volume):
            with suppress(LoomError):  # the node stops
                stores += await self._open_in_order(stream_id, self._unopened[stream_id])
        return stores

    async def _open_in_order(self, stream_id: StreamId, path: str) -> list[StreamStore]:
        """Return the store, if it can be opened now."""
        journal, stores = self._journal(path), list[StreamStore]()
        files, settings = self._disks.files, self._settings
        errors: list[Exception] = []

        def open_store() -> None:
            try:
                stores.append(StreamStore.open(files, path, journal, settings))
            except Exception as error:  # raising it would make the journal's volume fail
                errors.append(error)

        await self._in_order(journal, open_store)
        for error in errors:
            logger.error("stream %d cannot be opened at %s: %s", stream_id, path, error)
            if isinstance(error, OSError) and is_of_volume(error):
                return []  # tried again later
            self._paths.is_damaged(stream_id, f"it cannot be opened ({error})")
        del self._unopened[stream_id]
        for store in stores:
            self._add(store)
        return stores

    async def create(
        self, log_id: LogId, stream_id: StreamId, stamp: int, birth: int
    ) -> StreamStore:
        """Create an empty replica. A damaged one of the same stream is set aside."""
        path = self._paths.place(stream_id, self._stored_bytes, self._disks.usable_paths())
        damaged = self._paths.found.damaged_of(stream_id)
        aside: dict[str, str] = {}
        journal = self._journal(path)
        meta = StreamMeta(log_id, stream_id, stamp, birth, self._disks.opened.cluster_stamp)
        made: list[StreamStore] = []

        def create() -> None:
            files = self._disks.files
            for old in damaged:
                with suppress(OSError):  # it may be on another disk, which may fail
                    aside[old] = set_aside(files, old)
            made.append(StreamStore.create(files, path, meta, journal, self._settings))

        self._changing.add(stream_id)
        try:
            await self._in_order(journal, create)
        except BaseException:
            self._paths.forget(stream_id)
            raise
        finally:
            self._changing.discard(stream_id)
            self._paths.found.were_set_aside(aside)
            for old in aside:
                self._disks.volume_of(old).look_soon()
        self._add(made[0])
        return made[0]

    def place_elsewhere(self, store: StreamStore) -> str:
        """Return a path for a replica on another volume of this node. Raise Unavailable if there is
        none."""
        own = store.path.rpartition("/")[0]
        paths = [path for path in self._disks.usable_paths() if path != own]
        if not paths:
            raise Unavailable(f"{self._disks.volume_of(store.path).name} is the only usable volume")
        return self._paths.place_again(store.meta.stream_id, self._stored_bytes, paths)

    def _stored_bytes(self, stream_id: StreamId) -> int:
        store = self.open.get(stream_id)
        return store.stored_bytes if store else 0

    async def copy_early(self, store: StreamStore, path: str) -> set[str]:
        """Copy files that no longer change, while the replica is in use. Return their names."""
        self._mover = self._mover or self._disks.worker()
        copied: set[str] = set()
        for name in store.finished_files:
            copied |= await off_loop(
                self._mover, partial(copy_early, self._disks.files, store.path, path, [name])
            )
        return copied

    def drop_copy(self, path: str) -> None:
        """Remove an incomplete copy, if there is one."""
        if self._mover is not None:
            self._mover.run([partial(drop_copy, self._disks.files, path)], lambda error: None)

    def relocate(self, store: StreamStore, path: str, early: set[str], done: Finished) -> None:
        """Move a replica to a path on another volume. Nothing may be written to it."""
        old = store.path

        def moved(error: BaseException | None) -> None:
            if error is None:
                self._paths.streams[store.meta.stream_id] = path
                self._disks.volume_of(old).forget(old)
            done(error)

        def watch() -> None:
            self._disks.volume_of(path).watch(path)

        store.relocate(path, self._journal(path), early, watch, moved)

    async def delete(self, store: StreamStore) -> None:
        """Remove a replica's files, when its background work has finished. They do not reappear
        after a power loss."""

        def delete() -> None:
            self._disks.volume_of(store.path).forget(store.path)
            self._paths.remove(store.meta.stream_id)

        self._changing.add(store.meta.stream_id)
        try:
            await finish(store.settle)
            await self._in_order(self._journal(store.path), delete)
        finally:
            self._changing.discard(store.meta.stream_id)
        store.abandon()  # not closed, because the journal may still sync its files
        self.open.pop(store.meta.stream_id, None)
        self._paths.forget(store.meta.stream_id)

    def stop(self) -> None:
        for journal in self._journals.values():
            journal.close()

    def close(self) -> None:
        for store in self.open.values():
            store.close()

    def _add(self, store: StreamStore) -> None:
        self.open[store.meta.stream_id] = store
        self._disks.volume_of(store.path).watch(store.path)
        if store.context.damaged:
            logger.error("stream %d is damaged at %s", store.meta.stream_id, store.path)
        elif text := _describe(store):
            logger.log(logging.WARNING if store.lacks_commits else logging.ERROR, "%s", text)

    def _journal(self, stream_path: str) -> Journal:
        volume = self._disks.volume_of(stream_path)
        if volume.path not in self._journals:
            call_later = asyncio.get_running_loop().call_later
            worker = self._disks.worker()
            self._journals[volume.path] = Journal(worker, call_later, self._settings, volume.failed)
        return self._journals[volume.path]

    async def _in_order(self, journal: Journal, step: Callable[[], None]) -> None:
        """Run blocking work in the journal, after everything that was requested before."""
        try:
            await finish(lambda done: journal.call(Channel("replica"), [step], done))
        except OSError as error:
            node = self._disks.settings.node_id
            raise LoomError(f"node {node}: the disk failed: {error}") from error


def _describe(store: StreamStore) -> str:
    """Return a text about the damage of a replica; "" if none is known."""
    stream_id, context = store.meta.stream_id, store.context
    if store.lacks_commits:
        return (
            f"stream {stream_id} at {store.path}: its commits behind LLSN "
            f"{context.uncommitted_begin - 1} are not whole (after a power loss, or damaged); they "
            "come again from the vmr or from another replica, if one of them has them"
        )
    if context.damaged:
        return (
            f"stream {stream_id} at {store.path} lost committed entries: it is filled again from "
            "another replica, if one has them"
        )
    if lost := store.lost_llsns:
        return (
            f"stream {stream_id} at {store.path}: LLSN {lost[0]} to {lost[-1]} are damaged, kept "
            f"in {store.kept}; they come again from another replica, if one has them"
        )
    if broken := [each for each in store.broken if not each.lost]:
        place = _place(store, broken)
        return f"{place} cannot be read; repaired from another replica, if one has them"
    return ""


def _describe_lost(store: StreamStore) -> str:
    """Return a text about entries that are damaged on all replicas; "" if none are known."""
    lost = [each for each in store.broken if each.lost]
    return f"{_place(store, lost)} cannot be read, and no replica has them whole" if lost else ""


def _place(store: StreamStore, broken: Sequence[Broken]) -> str:
    ranges = [f"{b.llsn} to {b.next_llsn - 1}" for b in broken]
    more = f" and {len(ranges) - 3} more ranges" if len(ranges) > 3 else ""
    return f"stream {store.meta.stream_id} at {store.path}: LLSN {', '.join(ranges[:3])}{more}"

"""The disks of a storage node: its volumes, its workers, and the stores that protocols keep there.

What is not handed in is the real thing; the simulator hands in its own files, workers and stores.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from loomlog.config import NodeSettings
from loomlog.core.conditions import Condition, Kind
from loomlog.errors import Corrupt, InvalidArgument, Unavailable
from loomlog.node.access import KnownAccess
from loomlog.node.age_marks import Generations, KnownRun
from loomlog.node.failed_volumes import FailedVolumes
from loomlog.node.volume import Volume
from loomlog.storage.disk import EagerWorker, RealFiles, ThreadWorker, lock_directory
from loomlog.storage.files import Closable, Files, Worker, is_of_disk
from loomlog.storage.identity import Owner, is_owned, open_owned
from loomlog.storage.volumes import Volumes, node_path

logger = logging.getLogger(__name__)

OpenStore: TypeAlias = Callable[[str], Any]  # at a path
SalvageStore: TypeAlias = Callable[[Files, str], str]  # at a path; returns where it is then

S = TypeVar("S", bound=Closable)

# A volume with such an error is left out. Not one that is full: it can be read.
_OF_BAD_DISKS: Final = frozenset(
    (errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV, errno.ESTALE)
)


class Stores(Protocol):
    """The stores of a protocol on the disks. Both methods block."""

    def stop(self) -> None:
        """Called before the workers finish."""

    def close(self) -> None:
        """Called when the workers have finished."""


class Disks:
    """Opened at the start of a node, closed at its end; both block."""

    def __init__(
        self,
        settings: NodeSettings,
        files: Files | None = None,
        new_worker: Callable[[], Worker] | None = None,
        open_store: Mapping[str, OpenStore] | None = None,
        volume_changed: Callable[[Volume], None] = lambda volume: None,
    ) -> None:
        """`open_store`: opens simulated stores, by protocol. `volume_changed` is called when a
        volume failed, lost directories, or works again."""
        self.settings = settings
        self._handed_in = files
        self._new_worker = new_worker
        self._open_store = open_store or {}
        self._volume_changed = volume_changed
        self._workers: list[Worker] = []
        self._stores: list[Stores] = []
        self._opened: Volumes | None = None
        self._by_path: dict[str, Volume] = {}
        self._not_salvaged: set[str] = set()  # stores: it failed

    def open(self, failures: Mapping[str, OSError] | None = None) -> None:
        """Check and lock the volumes, except those where an earlier attempt met errors."""
        self.files = self._handed_in or RealFiles()
        self._opened = Volumes(
            self.files,
            self.settings.volumes,
            self.settings.cluster_id,
            self.settings.node_id,
            new_secret=partial(secrets.token_hex, 16),
            lock=None if self._handed_in else lock_directory,
            error_if_exists=self.settings.error_if_exists,
            failures=failures,
        )
        self.failed = FailedVolumes(self._opened, self.worker, self.settings.node_id)
        paths, limits = self._opened.paths, self.settings.volume_limits
        cluster, node = self.settings.cluster_id, self.settings.node_id
        self._by_path = {
            path: Volume(
                self.files,
                path,
                self.worker,
                self._volume_changed,
                limits.get(volume),
            )
            for volume in self.settings.volumes
            if (path := node_path(volume, cluster, node)) in paths
        }
        self.reader = self.worker()
        notes = self.worker()  # of their own: they are synced, and reads must not wait for that
        self.known_run = KnownRun(self.files, paths, notes)
        self.known_access = KnownAccess(self.files, paths, notes)
        self.generations = Generations(self.files, paths, notes)

    def watch(self) -> None:
        """Look after the volumes from now on."""
        for volume in self.volumes:
            volume.start()
        self.failed.start()

    def close(self, *, clean: bool = False) -> None:
        """`clean`: all that was acknowledged is written, and the metadata repository knows what
        happened before."""
        for volume in self.volumes:
            volume.stop()
        if self._opened is not None:
            self.failed.stop()
        for stores in self._stores:
            stores.stop()
        for worker in self._workers:
            worker.close()
        for stores in self._stores:
            stores.close()
        if clean:
            self.generations.close()
        if self._opened is not None:
            self._opened.close()

    # ---- volumes

    @property
    def opened(self) -> Volumes:
        """The volumes as they were checked, with the identity that is on them."""
        assert self._opened is not None
        return self._opened

    def name_of(self, error: OSError) -> str:
        """Return the volume that failed with an error; "" if that is not known, or none failed."""
        if error.errno not in _OF_BAD_DISKS:
            return ""
        names = (volume.rstrip("/") for volume in self.settings.volumes)
        path = str(error.filename or "")
        return next((name or "/" for name in names if path.startswith(f"{name}/")), "")

    @property
    def volumes(self) -> list[Volume]:
        return list(self._by_path.values())

    @property
    def paths(self) -> list[str]:
        """The node's directories, one on each volume."""
        return list(self._by_path)

    @property
    def shards(self) -> list[int]:
        """The index of each volume, which never changes."""
        return list(self.opened.shards.values())

    def volume_of(self, path: str) -> Volume:
        """Return the volume with a path that lies directly in the node's directory."""
        return self._by_path[path.rpartition("/")[0]]

    @property
    def conditions(self) -> list[Condition]:
        """Return what operators should know of the volumes, and of those that are missing."""
        command = f"`loom node replace {self.settings.node_id} --volume"
        missing = [
            Condition(
                Kind.VOLUME_MISSING,
                f"volume {name} is missing",
                f"mount it and restart the node; if its disk is lost, run {command} {name}`",
                volume=name,
            )
            for name in self.opened.missing.values()
            if name not in self.failed.names
        ]
        present = (each for volume in self.volumes for each in volume.conditions)
        return [*missing, *self.failed.conditions, *present]

    @property
    def take_nothing(self) -> bool:
        """Whether no volume can take anything new."""
        return not any(volume.takes_more for volume in self.volumes)

    def drain(self, names: Collection[str]) -> None:
        """Put nothing new on the volumes of these names; on others again."""
        known = [volume.name for volume in self.volumes]
        if unknown := sorted(set(names).difference(known)):
            raise InvalidArgument(f"it has no volume {unknown[0]}: those are {', '.join(known)}")
        for volume in self.volumes:
            volume.draining = volume.name in names

    def usable_paths(self) -> list[str]:
        """Return the node's directories where something new can be placed."""
        usable = [path for path, volume in self._by_path.items() if volume.takes_more]
        if not usable:
            raise Unavailable("; ".join(volume.refusal for volume in self.volumes))
        return usable

    # ---- what protocols keep there

    def own(self, stores: Stores) -> None:
        """Close these with the disks."""
        self._stores.append(stores)

    def worker(self) -> Worker:
        """Return a new worker, which is closed with the disks."""
        new_worker = self._new_worker
        worker: Worker
        if new_worker:
            worker = new_worker()
        else:
            loop = asyncio.get_running_loop()
            worker = EagerWorker(ThreadWorker(loop), loop.call_soon)
        self._workers.append(worker)
        return worker

    @property
    def waiting(self) -> int:
        """The number of jobs that wait for a disk."""
        return sum(getattr(worker, "waiting", 0) for worker in self._workers)

    def open_store(
        self,
        protocol: str,
        path: str,
        open_real: Callable[[str], S],
        is_empty: Callable[[S], bool],
        shard: int = 0,
    ) -> S:
        """Open a store that was made by this node, for this shard, or is new. Blocks."""
        if self._handed_in is not None:  # simulated stores are no directories
            simulated: S = self._open_store[protocol](path)
            return simulated
        owner = Owner(self.opened.cluster_stamp, self.settings.node_id, shard)
        return open_owned(self.files, path, owner, open_real, is_empty)

    def may_salvage(self, path: str) -> bool:
        """Return whether nothing is known that would prevent it."""
        return self._handed_in is None and path not in self._not_salvaged

    def salvage(
        self, path: str, damage: Corrupt, salvage_store: SalvageStore, shard: int = 0
    ) -> None:
        """Replace a damaged store by what can be read of it. Raises the damage if it is not this
        node's, or if that failed before. Blocks."""
        owner = Owner(self.opened.cluster_stamp, self.settings.node_id, shard)
        if not self.may_salvage(path) or not is_owned(self.files, path, owner):
            raise damage
        try:
            aside = salvage_store(self.files, path)
        except Exception as error:
            if not is_of_disk(error):  # there may be space later
                self._not_salvaged.add(path)
            raise Corrupt(f"{damage}; what can be read was not salvaged: {error}") from error
        logger.error(
            "%s: what can be read was salvaged, the rest must come from other nodes; the damaged "
            "directory is %s now",
            damage,
            aside,
        )

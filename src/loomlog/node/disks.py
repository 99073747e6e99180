"""The disks of a storage node: its volumes, its workers, and the stores of protocols.

The simulator passes its own files, workers and stores; otherwise real ones are used.
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

OpenStore: TypeAlias = Callable[[str], Any]  # given its path
SalvageStore: TypeAlias = Callable[[Files, str], str]  # returns the damaged store's new path

S = TypeVar("S", bound=Closable)

# A volume with one of these errors is left out. A full one is not, because it can be read.
_OF_BAD_DISKS: Final = frozenset(
    (errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV, errno.ESTALE)
)


class Stores(Protocol):
    """The stores of one protocol. Both methods block."""

    def stop(self) -> None:
        """Called before the workers finish."""

    def close(self) -> None:
        """Called when the workers have finished."""


class Disks:
    """The disks of one node. They are opened at its start and closed at its end; both block."""

    def __init__(
        self,
        settings: NodeSettings,
        files: Files | None = None,
        new_worker: Callable[[], Worker] | None = None,
        open_store: Mapping[str, OpenStore] | None = None,
        volume_changed: Callable[[Volume], None] = lambda volume: None,
    ) -> None:
        """`open_store` opens simulated stores, by protocol. `volume_changed` is called when a
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
        self._not_salvaged: set[str] = set()  # paths of stores where salvaging failed

    def open(self, failures: Mapping[str, OSError] | None = None) -> None:
        """Check and lock the volumes, except those in `failures`, where an earlier attempt
        failed."""
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
        notes = self.worker()  # separate, so that reads do not wait for syncs
        self.known_run = KnownRun(self.files, paths, notes)
        self.known_access = KnownAccess(self.files, paths, notes)
        self.generations = Generations(self.files, paths, notes)

    def watch(self) -> None:
        """Start the periodic checks of the volumes."""
        for volume in self.volumes:
            volume.start()
        self.failed.start()

    def close(self, *, clean: bool = False, ends_life: bool = False) -> None:
        """Close everything. `clean`: everything acknowledged is written, and the metadata
        repository knows of any earlier crash. `ends_life`: another process may have newer data."""
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
        if ends_life:
            self.generations.end_life()
        elif clean:
            self.generations.close()
        if self._opened is not None:
            self._opened.close()

    # ---- volumes

    @property
    def opened(self) -> Volumes:
        """The checked volumes, with their identity."""
        assert self._opened is not None
        return self._opened

    def name_of(self, error: OSError) -> str:
        """Return the volume to which an error belongs; "" if it is unknown, or the error does not
        concern a volume."""
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
        """The permanent index of each volume."""
        return list(self.opened.shards.values())

    def volume_of(self, path: str) -> Volume:
        """Return the volume of a path directly below the node's directory."""
        return self._by_path[path.rpartition("/")[0]]

    @property
    def conditions(self) -> list[Condition]:
        """The conditions of the volumes, including missing ones."""
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
        """True if no volume takes new data."""
        return not any(volume.takes_more for volume in self.volumes)

    def drain(self, names: Collection[str]) -> None:
        """Set which volumes are drained: no new data is placed on these."""
        present = [volume.name for volume in self.volumes]
        if unknown := sorted(set(names).difference(present)):
            raise InvalidArgument(f"it has no volume {unknown[0]}: those are {', '.join(present)}")
        for volume in self.volumes:
            volume.draining = volume.name in names

    def usable_paths(self) -> list[str]:
        """Return the node's directories on volumes that take new data. Raise Unavailable if there
        are none."""
        usable = [path for path, volume in self._by_path.items() if volume.takes_more]
        if not usable:
            raise Unavailable("; ".join(volume.refusal for volume in self.volumes))
        return usable

    # ---- the stores of protocols

    def own(self, stores: Stores) -> None:
        """Close these stores along with the disks."""
        self._stores.append(stores)

    def worker(self) -> Worker:
        """Return a new worker, which is closed along with the disks."""
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
        """The number of jobs that are waiting for a disk."""
        return sum(getattr(worker, "waiting", 0) for worker in self._workers)

    def open_store(
        self,
        protocol: str,
        path: str,
        open_real: Callable[[str], S],
        is_empty: Callable[[S], bool],
        shard: int = 0,
    ) -> S:
        """Open a store that this node created for this shard, or create it. Blocks."""
        if self._handed_in is not None:  # simulated stores have no directories
            simulated: S = self._open_store[protocol](path)
            return simulated
        owner = Owner(self.opened.cluster_stamp, self.settings.node_id, shard)
        return open_owned(self.files, path, owner, open_real, is_empty)

    def may_salvage(self, path: str) -> bool:
        """Return whether it makes sense to try to salvage a store."""
        return self._handed_in is None and path not in self._not_salvaged

    def salvage(
        self, path: str, damage: Corrupt, salvage_store: SalvageStore, shard: int = 0
    ) -> None:
        """Replace a damaged store by its readable parts. Raise `damage` if the store does not
        belong to this node, or if salvaging it failed before. Blocks."""
        owner = Owner(self.opened.cluster_stamp, self.settings.node_id, shard)
        if not self.may_salvage(path) or not is_owned(self.files, path, owner):
            raise damage
        try:
            aside = salvage_store(self.files, path)
        except Exception as error:
            if not is_of_disk(error):  # otherwise a later attempt may succeed
                self._not_salvaged.add(path)
            raise Corrupt(f"{damage}; what can be read was not salvaged: {error}") from error
        logger.error(
            "%s: what can be read was salvaged, the rest must come from other nodes; the damaged "
            "directory is %s now",
            damage,
            aside,
        )

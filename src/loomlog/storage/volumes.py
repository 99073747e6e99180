"""The volumes of a storage node, and the checks that they belong to it.

    <volume>/cid=<cluster id>/snid=<node id>/identity

Every storage node path has an identity (identity.py), checked at start and when the node registers.
A volume belongs to one node: if it has data of another node, or data without an identity, nothing
is written and the node does not start. Only an empty volume gets an identity; but an empty volume
that the node has used before is refused, because it is probably not mounted.

The identities on the volumes of a node differ only in their shard, a permanent index of the volume.
Marks record how many volumes have had each index, and how many of those an operator has given up.
While a volume is missing, the node runs without it, but accepts no empty one, which may be a wrong
mount. Once the missing volume is given up, it is refused, and a new volume gets its index.

A volume that cannot be read, locked or written when the node starts is left out and counts as
missing, provided that another volume lists it by name. `look_again` checks whether it works again;
the next start then uses it.

All functions block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any, Final

from loomlog.errors import AlreadyExists, Corrupt, InvalidArgument, LoomError
from loomlog.storage import identity as identities
from loomlog.storage import small_files
from loomlog.storage.files import Closable, Files
from loomlog.storage.identity import (
    LISTED_MAX,
    Identity,
    cluster_stamp,
    fingerprint,
    node_directories,
)
from loomlog.types import NodeId

_TAKEN: Final = "shard/"  # plus an index: the mark that counts the volumes that have had it
_GIVEN_UP: Final = "given-up/"  # plus an index: the mark that counts those that were given up


class Volumes:
    """The checked and locked volumes of one storage node."""

    def __init__(
        self,
        files: Files,
        volumes: Sequence[str],
        cluster_id: str,
        node_id: NodeId,
        *,
        new_secret: Callable[[], str],
        lock: Callable[[str], Closable] | None = None,
        error_if_exists: bool = False,
        failures: Mapping[str, OSError] | None = None,
    ) -> None:
        """Check the volumes, create the storage node paths, and lock them.

        `lock` locks a directory against other processes (disk.lock_directory). `failures` has
        errors that occurred later in an earlier attempt, by volume; these are left out, too."""
        if not volumes:
            raise InvalidArgument("a storage node needs a volume; give --volumes DIR")
        if "/" in cluster_id or not cluster_id:
            raise InvalidArgument(f"cluster id {cluster_id!r} must be a name without '/'")
        self._volumes = [volume.rstrip("/") or "/" for volume in volumes]
        _check_apart(self._volumes)
        self.files = files
        self._lock = lock
        self._locks: list[Closable] = []
        self._saving = Lock()
        self._expected = Identity(cluster_id, node_id, "")
        self._shards: dict[str, tuple[int, int]] = {}  # index and turn of each path
        self._failures = failures or {}
        self.failed: dict[str, str] = {}  # volumes that are left out, and why
        if error_if_exists:
            self._refuse_existing()
        try:
            self._leave_out_failed(self._check_owner)  # before anything is written
            self._leave_out_failed(lambda volume: self._locks.extend(self._claim(volume)))
            found = self._leave_out_failed(self._check_owner)  # again, now that they are locked
            self.identity = self._identify(found, new_secret)
        except BaseException:
            self.close()
            raise

    @property
    def paths(self) -> list[str]:
        """The node's directories, one on each volume that is used."""
        return list(map(self._path, self._volumes))

    def _path(self, volume: str) -> str:
        return node_path(volume, self._expected.cluster_id, self._expected.node_id)

    @property
    def cluster_stamp(self) -> str:
        """The stamp of the cluster, which its data carries."""
        return cluster_stamp(self.identity.cluster_secret)

    @property
    def shards(self) -> dict[str, int]:
        """The shard index of each storage node path."""
        return {path: self._shards[path][0] for path in self.paths}

    @property
    def missing(self) -> dict[int, str]:
        """The volumes that are neither present nor given up, by shard index."""
        return _missing([self.identity], self.shards.values())

    @property
    def given_up(self) -> list[int]:
        """The shard indexes of volumes that were given up, whether or not others have them now."""
        marks = self.identity.marks
        return [int(m.removeprefix(_GIVEN_UP)) for m in marks if m.startswith(_GIVEN_UP)]

    def give_up(self, volume: str) -> None:
        """Refuse a missing volume from now on, so that another one can replace it. May be called in
        any thread."""
        present = self.shards.values()
        names = {name: n for n, name in enumerate(self.identity.volumes) if n not in present}
        if not volume or volume not in names:
            missing = ", ".join(self.missing.values()) or "none"
            raise InvalidArgument(
                f"{volume} is no missing volume of this node (missing: {missing})"
            )
        shard = names[volume]
        self.note({f"{_GIVEN_UP}{shard}": self.identity.marks[f"{_TAKEN}{shard}"]})

    def has_replaced(self, path: str) -> bool:
        """Return whether the volume has replaced another one."""
        return self._shards[path][1] > 1

    def join(self, cluster_secret: str) -> None:
        """Bind the data to the cluster that admitted this node, or refuse another one. An empty
        secret means that the cluster has accepted the one that is stored here."""
        own = self.identity.cluster_secret
        cluster_secret = cluster_secret or own
        if own and own != cluster_secret:
            raise InvalidArgument(
                f"{self.paths[0]} belongs to another cluster named {self.identity.cluster_id}: "
                f"expected cluster secret {fingerprint(own)}, found "
                f"{fingerprint(cluster_secret)}; check --mr and --volumes"
            )
        with self._saving:
            self._save(cluster_secret=cluster_secret)

    def note(self, marks: Mapping[str, int]) -> None:
        """Store marks of a protocol. A mark never decreases. May be called in any thread."""
        with self._saving:
            self._save(marks=_highest([self.identity.marks, marks]))

    def drop(self, names: Collection[str]) -> None:
        """Delete marks of a protocol."""
        with self._saving:
            kept = {name: mark for name, mark in self.identity.marks.items() if name not in names}
            self._save(marks=kept)

    def _save(self, **changes: Any) -> None:
        changed = replace(self.identity, **changes)
        if changed != self.identity:
            small_files.save_at_each(self.paths, lambda path: self._save_at(path, changed))
            self.identity = changed

    def _save_at(self, path: str, identity: Identity) -> None:
        identities.save(self.files, path, self._of(path, identity))

    def _of(self, path: str, identity: Identity) -> Identity:
        shard, taken = self._shards[path]
        return replace(identity, shard=shard, taken=taken)

    def close(self) -> None:
        """Unlock the volumes."""
        for lock in self._locks:
            lock.close()
        self._locks = []

    def _refuse_existing(self) -> None:
        for path in self.paths:
            if self.files.exists(path):
                raise AlreadyExists(f"{path} exists; drop --error-if-exists to use its data")

    def _leave_out_failed(self, check: Callable[[str], object]) -> dict[str, Identity]:
        """Check each volume, and leave out those that fail. Raise if another volume does not list
        such a volume as this node's. Return the identities of the others, by path."""
        found: dict[str, Identity] = {}
        failures: dict[str, LoomError] = {}
        for volume in self._volumes:
            path = self._path(volume)
            try:
                check(volume)
                with _failing(f"volume {volume} cannot be read"):
                    if volume in self._failures:
                        raise self._failures[volume]
                    if identities.exists(self.files, path):
                        found[path] = identities.load(self.files, path)
            except (_FailedVolumeError, Corrupt) as error:
                failures[volume] = error
        self._volumes = [volume for volume in self._volumes if volume not in failures]
        missing = _missing(found.values(), {each.shard for each in found.values()}).values()
        for volume, failure in failures.items():
            if volume not in missing:
                raise failure
            self.failed[volume] = _reason(failure)
        self._check_mounted(found, missing)
        return found

    def look_again(self, volume: str) -> bool:
        """Return whether a failed volume can be used again. If not, `failed` has the reason. May be
        called in any thread."""
        path = self._path(volume)
        try:
            self._check_owner(volume)
            with _failing(f"{path} cannot be read"):
                if not identities.exists(self.files, path):
                    raise InvalidArgument("it is empty, but had data of this node: mount it")
                found = {path: identities.load(self.files, path)}
            self._check_same(found, self.identity)
            used = {path: self._of(path, self.identity) for path in self.paths}
            self._check_shards({**used, **found}, self.identity.marks)
            for lock in self._claim(volume):
                lock.close()
            if volume in self._failures:
                with _failing(f"volume {volume} cannot be used"):
                    _probe(self.files, str(self._failures[volume].filename))
        except LoomError as error:
            self.failed[volume] = _reason(error)
            return False
        return True

    def _claim(self, volume: str) -> list[Closable]:
        """Lock a volume, and create the node's directory on it."""
        locks = list[Closable]()
        path, parents = self._path(volume), self._path(volume).split("/")
        try:
            with _failing(f"volume {volume} is not writable"):
                if self._lock is not None:
                    locks.append(self._lock(volume))
                probe = f"{volume}/.loomlog-probe"
                self.files.open(probe, create=True).close()
                self.files.remove(probe)
            with _failing(f"cannot use {path}"):
                self._remove_unused(volume)
                self.files.make_directory(path)
                self.files.sync_directory("/".join(parents[:-1]))
                self.files.sync_directory("/".join(parents[:-2]) or "/")
        except BaseException:
            for lock in locks:
                lock.close()
            raise
        return locks

    def _remove_unused(self, volume: str) -> None:
        for path in node_directories(self.files, volume)[0]:
            if path != self._path(volume) and identities.is_unused(self.files, path):
                identities.remove_unused(self.files, path)

    def _check_owner(self, volume: str) -> None:
        """Refuse a volume that has data of anything but this node."""
        own = self._path(volume)
        _check_directory(self.files, volume)
        with _failing(f"volume {volume} cannot be read"):
            directories, are_all = node_directories(self.files, volume)
            if not are_all and own not in directories:
                raise InvalidArgument(
                    f"volume {volume} has more than {LISTED_MAX:,} other files, so there may be "
                    "data of a storage node that was not found: use a directory without them"
                )
            for path in directories:
                found = self._identity_at(path)
                if not found.is_of(self._expected):
                    if identities.is_unused(self.files, path):
                        continue  # left by a start that no cluster accepted
                    raise _mismatch(path, self._expected, found)
                if path != own:
                    raise InvalidArgument(
                        f"{path} is a second directory of {found}, which belongs at {own}; move "
                        "one of them out of the volume"
                    )

    def _check_mounted(self, found: Collection[str], missing: Collection[str]) -> None:
        """Refuse an empty volume while one of this node's volumes is missing."""
        for volume, path in zip(self._volumes, self.paths, strict=True):
            if path in found or not missing:
                continue
            gone = volume if volume in missing else min(missing)
            what = "had data of this node" if gone == volume else f"volume {gone} is missing"
            raise InvalidArgument(
                f"volume {volume} is empty, but {what}: mount it, or correct --volumes; if its "
                "disk is lost, start the node with its other volumes and run "
                f"`loom node replace {self._expected.node_id} --volume {gone}`, then add an empty "
                "one"
            )

    def _identity_at(self, path: str) -> Identity:
        if not identities.exists(self.files, path):
            raise InvalidArgument(
                f"{path} has data but no identity file, so nobody knows whose data it is; restore "
                "the file from another volume of that node or from a backup, or move the "
                "directory away"
            )
        return identities.load(self.files, path)

    def _identify(self, found: Mapping[str, Identity], new_secret: Callable[[], str]) -> Identity:
        """Return the identity of all volumes, and store it on empty ones."""
        joined_first = sorted(found.values(), key=lambda identity: not identity.cluster_secret)
        own = joined_first[0] if found else replace(self._expected, node_secret=new_secret())
        self._check_same(found, own)
        # After a crash, some volumes may lack the newest marks.
        marks = _highest(identity.marks for identity in found.values())
        self._check_shards(found, marks)
        self._give_shards(found, marks)
        own = replace(own, shard=0, taken=0, marks=marks)
        for path in self.paths:
            if path not in found:  # before others list it: after a crash it must not seem missing
                shard, taken = self._shards[path]
                own = replace(own, marks=_highest([own.marks, {f"{_TAKEN}{shard}": taken}]))
                self._save_at(path, own)
        own = replace(own, volumes=self._by_shard(_missing(found.values(), self.shards.values())))
        for path in self.paths:
            if found.get(path) != self._of(path, own):
                self._save_at(path, own)
        return own

    def _check_same(self, found: Mapping[str, Identity], own: Identity) -> None:
        """Refuse data of another node with the same number, or of another cluster."""
        for path, identity in found.items():
            if identity.node_secret != own.node_secret or (
                identity.cluster_secret not in ("", own.cluster_secret)
            ):
                raise _mismatch(path, own, identity)

    def _by_shard(self, missing: Mapping[int, str]) -> tuple[str, ...]:
        """Return all volumes of the node by shard index; "" where there is none."""
        volumes = {**missing, **dict(zip(self.shards.values(), self._volumes, strict=True))}
        return tuple(volumes.get(shard, "") for shard in range(max(volumes) + 1))

    def _check_shards(self, found: Mapping[str, Identity], marks: Mapping[str, int]) -> None:
        """Refuse two volumes with the same index, and one that was given up or replaced."""
        by_shard: dict[int, str] = {}
        for path, identity in found.items():
            other = by_shard.setdefault(identity.shard, path)
            if other != path:
                raise InvalidArgument(
                    f"{other} and {path} are copies of one volume: move the older one away"
                )
            if identity.taken < marks.get(
                f"{_TAKEN}{identity.shard}", 0
            ) or identity.taken <= marks.get(f"{_GIVEN_UP}{identity.shard}", 0):
                raise InvalidArgument(
                    f"{path} was given up as shard {identity.shard} of this node with `loom node "
                    "replace`: move it away, or empty it to use its disk"
                )

    def _give_shards(self, found: Mapping[str, Identity], marks: Mapping[str, int]) -> None:
        """Assign an index to each new volume."""
        self._shards = {path: (identity.shard, identity.taken) for path, identity in found.items()}
        used = {shard for shard, _ in self._shards.values()}
        free = (index for index in range(len(self.paths)) if index not in used)
        for path in [path for path in self.paths if path not in found]:
            shard = next(free)
            self._shards[path] = shard, marks.get(f"{_TAKEN}{shard}", 0) + 1


def _missing(found: Collection[Identity], present: Collection[int]) -> dict[int, str]:
    """Return the volumes of a node that are neither `present` nor given up, by shard index."""
    marks = _highest(identity.marks for identity in found)
    missing: dict[int, str] = {}
    for mark in (mark for mark in marks if mark.startswith(_TAKEN)):
        shard = int(mark.removeprefix(_TAKEN))
        if shard not in present and marks[mark] > marks.get(f"{_GIVEN_UP}{shard}", 0):
            names = (each.volumes[shard] for each in found if shard < len(each.volumes))
            missing[shard] = next(filter(None, names), f"shard {shard}")
    return missing


def node_path(volume: str, cluster_id: str, node_id: NodeId) -> str:
    """Return the directory of a node on a volume."""
    return f"{volume.rstrip('/')}/cid={cluster_id}/snid={node_id}"


def _check_apart(volumes: Sequence[str]) -> None:
    for position, volume in enumerate(volumes):
        if volume in volumes[:position]:
            raise InvalidArgument(f"volume {volume} is given twice")
        for other in volumes:
            if volume != other and f"{volume}/".startswith(f"{other.rstrip('/')}/"):
                raise InvalidArgument(f"volume {volume} is inside volume {other}; give one of them")


def _check_directory(files: Files, volume: str) -> None:
    with _failing(f"volume {volume} cannot be read"):
        try:
            files.list(volume)
        except FileNotFoundError:
            raise InvalidArgument(f"volume {volume} does not exist; create the directory") from None
        except NotADirectoryError:
            raise InvalidArgument(f"volume {volume} is not a directory") from None


class _FailedVolumeError(InvalidArgument):
    """The disk of a volume fails, or denies access."""


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Convert errors of the disk to _FailedVolumeError. `what` is the beginning of its message."""
    try:
        yield
    except OSError as error:
        raise _FailedVolumeError(
            f"{what} ({error.strerror or error}); check its disk, its mount and its permissions"
        ) from error


def _probe(files: Files, path: str) -> None:
    """Raise OSError if there is something at a path that cannot be read."""
    if files.exists(path):
        try:
            files.list(path)
        except NotADirectoryError:
            small_files.read(files, path)


def _reason(error: LoomError) -> str:
    """Return why a volume cannot be used, as the end of a sentence."""
    cause = error.__cause__
    return (cause.strerror or str(cause)) if isinstance(cause, OSError) else str(error)


def _mismatch(path: str, expected: Identity, found: Identity) -> InvalidArgument:
    return InvalidArgument(
        f"{path} holds other data: expected {expected}, found {found}; "
        "check --volumes, --cluster-id and --storage-node-id"
    )


def _highest(all_marks: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the highest value of each mark."""
    highest: dict[str, int] = {}
    for name, value in (mark for marks in all_marks for mark in marks.items()):
        highest[name] = max(value, highest.get(name, 0))
    return dict(sorted(highest.items()))

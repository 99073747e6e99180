"""The volumes of a storage node: where replicas live, and whose data it is.

    <volume>/cid=<cluster id>/snid=<node id>/identity
    <volume>/cid=<cluster id>/snid=<node id>/lsid=<log stream id>/…

Directory names alone prove nothing: every storage node path holds an identity, the same on all
volumes, checked at start and when the node registers. A replica lives whole on one volume.
Everything here blocks and belongs to the start of a node, except `place`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from loomlog.errors import AlreadyExists, Corrupt, InvalidArgument, NotFound, VersionMismatch
from loomlog.storage.files import Files
from loomlog.storage.stream_meta import replace_file
from loomlog.types import NodeId, StreamId

FORMAT = 1
_REMOVED = ".removed"  # ends the name of a replica whose removal was decided and begun


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose data a storage node path holds. `cluster_secret` is empty until the node has
    registered for the first time."""

    cluster_id: str
    node_id: NodeId
    node_secret: str
    cluster_secret: str = ""
    format: int = FORMAT
    has_copies: bool = False  # a LogsDB was made: if it is missing, copies are lost
    lost_below: int = 0  # of loglets with a lower id copies may be lost


class Lock(Protocol):
    def close(self) -> None: ...


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
        lock: Callable[[str], Lock] | None = None,
        error_if_exists: bool = False,
    ) -> None:
        """Check the volumes, make the storage node paths, lock them, find the replicas.

        `lock` locks a directory against other processes (disk.lock_directory)."""
        if not volumes:
            raise InvalidArgument("a storage node needs a volume; give --volumes DIR")
        if "/" in cluster_id or not cluster_id:
            raise InvalidArgument(f"cluster id {cluster_id!r} must be a name without '/'")
        volumes = [volume.rstrip("/") or "/" for volume in volumes]
        for position, volume in enumerate(volumes):
            if volume in volumes[:position]:
                raise InvalidArgument(f"volume {volume} is given twice")
            _check_volume(files, volume)
        self._files = files
        self.paths = [f"{volume}/cid={cluster_id}/snid={node_id}" for volume in volumes]
        if error_if_exists:
            self._refuse_existing()
        self._locks: list[Lock] = []
        try:
            self._claim(lock)
            self.identity = self._identify(Identity(cluster_id, node_id, ""), new_secret)
            self.streams = self._scan()  # the path of every replica on this node
        except BaseException:
            self.close()
            raise

    def place(self, stream_id: StreamId, stored_bytes: Mapping[StreamId, int]) -> str:
        """The path for a new replica: on the volume with the fewest bytes, then replicas."""
        if stream_id in self.streams:
            raise AlreadyExists(
                f"log stream {stream_id} has data at {self.streams[stream_id]}; if nobody needs "
                f"it, remove it with `loom node cleanup {self.identity.node_id}`"
            )
        path = min(self.paths, key=lambda path: self._load(path, stored_bytes))
        self.streams[stream_id] = stream_path = f"{path}/lsid={stream_id}"
        return stream_path

    def remove(self, stream_id: StreamId) -> None:
        """Remove a replica's files: whole, or, after a crash, by the next start. Blocking."""
        path = self.streams[stream_id]
        self._files.rename(path, path + _REMOVED)
        self._files.sync_directory(path.rpartition("/")[0])
        self._files.remove_tree(path + _REMOVED)

    def forget(self, stream_id: StreamId) -> None:
        """The replica's files are gone; the log stream may be placed here again."""
        if self.streams.pop(stream_id, None) is None:
            raise NotFound(f"log stream {stream_id} is not on this storage node")

    def join(self, cluster_secret: str, lost_below: int = 0) -> None:
        """Bind the data to the cluster that took this node in, or refuse another one."""
        own = self.identity.cluster_secret
        if own and own != cluster_secret:
            raise InvalidArgument(
                f"{self.paths[0]} belongs to another cluster named {self.identity.cluster_id}: "
                f"expected secret {own}, found {cluster_secret}; check --mr and --volumes"
            )
        self._save(cluster_secret=cluster_secret, lost_below=lost_below)

    def note_copies(self) -> None:
        """A LogsDB was made here. Blocking."""
        self._save(has_copies=True)

    def _save(self, **changes: Any) -> None:
        changed = replace(self.identity, **changes)
        if changed != self.identity:
            for path in self.paths:
                _save(self._files, path, changed)
            self.identity = changed

    def close(self) -> None:
        """Let other processes in."""
        for lock in self._locks:
            lock.close()
        self._locks = []

    def _load(self, path: str, stored_bytes: Mapping[StreamId, int]) -> tuple[int, int]:
        here = [s for s, stream in self.streams.items() if stream.startswith(f"{path}/")]
        return sum(stored_bytes.get(stream_id, 0) for stream_id in here), len(here)

    def _refuse_existing(self) -> None:
        for path in self.paths:
            if self._files.exists(path):
                raise AlreadyExists(f"{path} exists; drop --error-if-exists to use its data")

    def _claim(self, lock: Callable[[str], Lock] | None) -> None:
        for path in self.paths:
            try:
                self._files.make_directory(path)
                parents = path.split("/")
                self._files.sync_directory("/".join(parents[:-1]))
                self._files.sync_directory("/".join(parents[:-2]) or "/")
                if lock is not None:
                    self._locks.append(lock(path))
            except OSError as error:
                raise InvalidArgument(f"cannot use {path}: {error.strerror or error}") from None

    def _identify(self, expected: Identity, new_secret: Callable[[], str]) -> Identity:
        """The identity on all volumes; volumes without one get it."""
        found = {
            path: _load_identity(self._files, path)
            for path in self.paths
            if self._files.exists(f"{path}/identity")
        }
        for path, identity in found.items():
            if (identity.cluster_id, identity.node_id) != (expected.cluster_id, expected.node_id):
                raise _mismatch(path, expected, identity)
        identities = sorted(found.values(), key=lambda identity: not identity.cluster_secret)
        own = identities[0] if found else replace(expected, node_secret=new_secret())
        for path, identity in found.items():
            if identity.node_secret != own.node_secret or (
                identity.cluster_secret not in ("", own.cluster_secret)
            ):
                raise _mismatch(path, own, identity)
        for path in self.paths:
            if found.get(path) != own:
                _save(self._files, path, own)
        return own

    def _scan(self) -> dict[StreamId, str]:
        streams: dict[StreamId, str] = {}
        for path in self.paths:
            for name in self._files.list(path):
                stream_path = f"{path}/{name}"
                if name.startswith("lsid=") and name.endswith(_REMOVED):
                    self._files.remove_tree(stream_path)
                number = name.removeprefix("lsid=")
                if number == name or not number.isdecimal():
                    continue
                if not self._files.exists(f"{stream_path}/meta"):
                    continue  # its creation was interrupted
                if int(number) in streams:
                    raise InvalidArgument(
                        f"log stream {number} is on two volumes: {streams[int(number)]} and "
                        f"{stream_path}; move one of them away"
                    )
                streams[int(number)] = stream_path
        return streams


def _check_volume(files: Files, volume: str) -> None:
    probe = f"{volume}/.loomlog-probe"
    try:
        files.list(volume)
        files.open(probe, create=True).close()
        files.remove(probe)
    except FileNotFoundError:
        raise InvalidArgument(f"volume {volume} does not exist; create the directory") from None
    except NotADirectoryError:
        raise InvalidArgument(f"volume {volume} is not a directory") from None
    except OSError as error:
        raise InvalidArgument(
            f"volume {volume} is not writable ({error.strerror or error}); check its permissions"
        ) from None


def _save(files: Files, path: str, identity: Identity) -> None:
    text = json.dumps(asdict(identity), indent=2)
    replace_file(files, f"{path}/identity", text.encode() + b"\n")


def _load_identity(files: Files, path: str) -> Identity:
    file = files.open(f"{path}/identity")
    data = bytes(file.read(file.size(), 0))
    file.close()
    try:
        fields = json.loads(data)
        version = fields["format"]
    except (ValueError, TypeError, KeyError):
        raise Corrupt(f"{path}/identity cannot be read; restore it from another volume") from None
    if version != FORMAT:
        raise VersionMismatch(
            f"{path}/identity: expected format {FORMAT}, found {version}; upgrade the software"
        )
    try:
        return Identity(**fields)
    except TypeError:
        raise Corrupt(f"{path}/identity has other fields than expected") from None


def _mismatch(path: str, expected: Identity, found: Identity) -> InvalidArgument:
    return InvalidArgument(
        f"{path} holds other data: expected {_describe(expected)}, found {_describe(found)}; "
        "check --volumes, --cluster-id and --storage-node-id"
    )


def _describe(identity: Identity) -> str:
    secrets = f", node secret {identity.node_secret}" if identity.node_secret else ""
    if identity.cluster_secret:
        secrets += f", cluster secret {identity.cluster_secret}"
    return f"cluster {identity.cluster_id}, storage node {identity.node_id}{secrets}"

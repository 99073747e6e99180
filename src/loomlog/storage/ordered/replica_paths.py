"""The directories of log stream replicas on the volumes of a node: their meta files, and finding,
placing and removing them.

    <storage node path>/lsid=<log stream id>/meta    see small_files.py; replaced atomically

Stamps identify the data, whatever its directory is called. They are random numbers that are chosen
at creation; a request that does not name them deletes nothing.

A directory is served only if its meta file is readable and names this cluster and the stream in the
directory's name, and if no other directory has the same stream. Every other directory is left
alone, with a message for operators, and the node serves the rest. A damaged replica is renamed when
the metadata repository recreates it, and only operators delete it. A replica is entirely on one
volume.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final

from loomlog.core.conditions import Condition, Kind
from loomlog.errors import AlreadyExists, Corrupt, LoomError, NotFound, VersionMismatch
from loomlog.storage import small_files
from loomlog.storage.files import Files
from loomlog.types import Glsn, Llsn, LogId, NodeId, StreamId

logger = logging.getLogger(__name__)

REMOVED: Final = ".removed"  # suffix of a replica that is being removed
SET_ASIDE: Final = ".damaged"  # suffix of a damaged replica that was recreated
META_FORMAT: Final = 2
_ADVICE: Final = "move it out of the volume"


@dataclass(frozen=True, slots=True)
class StreamMeta:
    """The contents of a meta file."""

    log_id: LogId
    stream_id: StreamId
    stamp: int = 0  # of the stream, the same on all its replicas
    birth: int = 0  # of this replica
    cluster: str = ""  # the stamp of the cluster
    epoch: int = 0  # the seal epoch
    trimmed_glsn: Glsn = 0
    base_llsn: Llsn = 1  # the first LLSN of this replica
    base_high_watermark: Glsn = 0  # before its first commit
    wiping: bool = False  # the stored data is void: the replica restarts at the base


def save_meta(files: Files, path: str, meta: StreamMeta) -> None:
    """Write the meta file. It survives a power loss in every sync mode, because fencing relies on
    its epoch. Blocking."""
    data = small_files.encode({"format": META_FORMAT, **asdict(meta)})
    small_files.replace_file(files, f"{path}/meta", data)


def load_meta(files: Files, path: str) -> StreamMeta:
    """Read the meta file. Blocking."""
    fields = small_files.decode(small_files.read(files, f"{path}/meta"))
    if fields is None:
        raise Corrupt(f"{path}/meta does not match its checksum; recreate this replica")
    version = fields.pop("format", None)
    if version != META_FORMAT:
        raise VersionMismatch(f"{path}/meta: expected format {META_FORMAT}, found {version}")
    try:
        return StreamMeta(**fields)
    except TypeError:
        raise Corrupt(f"{path}/meta has other fields than it should; recreate it") from None


@dataclass(slots=True)
class FoundReplicas:
    """The replicas found on the volumes, and why some are not served."""

    served: dict[StreamId, str] = field(default_factory=dict)  # their paths
    refused: list[str] = field(default_factory=list)  # messages for operators
    taken: dict[StreamId, str] = field(default_factory=dict)  # streams of refused replicas, and why
    damaged: dict[str, tuple[StreamId, str]] = field(default_factory=dict)  # by path, and why
    misplaced: set[StreamId] = field(default_factory=set)  # in directories of other streams
    highest_log_id: LogId = 0
    highest_stream_id: StreamId = 0

    @property
    def conditions(self) -> list[Condition]:
        """The conditions that operators should know."""
        damaged = [
            Condition(
                Kind.DATA_DAMAGED,
                f"{path} is not served: {reason}; it is recreated if another node has all of the "
                "stream",
                stream=stream_id,
            )
            for path, (stream_id, reason) in self.damaged.items()
        ]
        return [*(Condition(Kind.DATA_REFUSED, text) for text in self.refused), *damaged]

    @property
    def unserved(self) -> set[StreamId]:
        """The streams with data that is not served, and that operators may bring back."""
        return {*self.taken, *self.misplaced, *(number for number, _ in self.damaged.values())}

    def damaged_of(self, number: StreamId) -> list[str]:
        """Return the paths of the stream's damaged replicas."""
        return [path for path, (stream_id, _) in self.damaged.items() if stream_id == number]

    def were_set_aside(self, moved: Mapping[str, str]) -> None:
        """Called when damaged replicas were renamed."""
        for path, aside in moved.items():
            del self.damaged[path]
            logger.warning("the damaged replica at %s is at %s now", path, aside)

    def refuse(self, path: str, number: StreamId, reason: str) -> None:
        """Record that a directory is not served."""
        self.taken[number] = f"{path} is not served: {reason}; {_ADVICE}"
        self.refused.append(self.taken[number])


class ReplicaPaths:
    """The replicas of a node and their paths."""

    def __init__(self, files: Files, paths: Sequence[str], cluster: str, node_id: NodeId) -> None:
        """Find the replicas on the volumes, given the node's directories there and the stamp of the
        cluster. Blocking."""
        self._files = files
        self._paths = paths
        self._node_id = node_id
        finish_removals(files, paths)
        self.found = find_replicas(files, paths, cluster)
        self.streams = dict(self.found.served)  # the path of every replica on this node

    def place(
        self,
        stream_id: StreamId,
        stored_bytes: Callable[[StreamId], int],
        paths: Sequence[str] | None = None,
    ) -> str:
        """Choose the path of a new replica: on the volume with the fewest bytes, then the fewest
        replicas. `paths` restricts it to these directories of the node."""
        if stream_id in self.found.taken:
            raise AlreadyExists(self.found.taken[stream_id])
        if stream_id in self.streams:
            raise AlreadyExists(
                f"log stream {stream_id} has data at {self.streams[stream_id]}; if nobody needs "
                f"it, remove it with `loom node cleanup {self._node_id}`"
            )
        path = self.place_again(stream_id, stored_bytes, paths or self._paths)
        self.streams[stream_id] = path
        return path

    def place_again(
        self, stream_id: StreamId, stored_bytes: Callable[[StreamId], int], paths: Sequence[str]
    ) -> str:
        """Return the path for a replica on one of these volumes, without recording it."""
        # A node with only one volume, the usual case, need not sum up thousands of replicas.
        path = paths[0] if len(paths) == 1 else min(paths, key=partial(self._load, stored_bytes))
        return f"{path}/lsid={stream_id}"

    def is_damaged(self, stream_id: StreamId, reason: str) -> None:
        """Called when a replica cannot be opened: it is not served."""
        self.found.damaged[self.streams.pop(stream_id)] = stream_id, reason

    def remove(self, stream_id: StreamId) -> None:
        """Remove a replica's files. After a crash, the next start finishes it. Blocking."""
        path = self.streams[stream_id]
        if self._files.exists(path):  # otherwise an earlier attempt failed halfway
            self._files.rename(path, path + REMOVED)
        self._files.sync_directory(path.rpartition("/")[0])
        self._files.remove_tree(path + REMOVED)

    def forget(self, stream_id: StreamId) -> None:
        """Forget a replica whose files were removed."""
        if self.streams.pop(stream_id, None) is None:
            raise NotFound(f"log stream {stream_id} is not on this storage node")

    def _load(self, stored_bytes: Callable[[StreamId], int], path: str) -> tuple[int, int]:
        here = [s for s, stream in self.streams.items() if stream.startswith(f"{path}/")]
        return sum(map(stored_bytes, here)), len(here)


def find_replicas(files: Files, paths: Sequence[str], cluster: str) -> FoundReplicas:
    """Check every directory of a replica. Blocking."""
    found = FoundReplicas()
    candidates: defaultdict[StreamId, list[str]] = defaultdict(list)
    for path, number in _directories(files, paths):
        if not files.exists(f"{path}/meta") and not has_data(files, path):
            continue  # its creation was interrupted
        found.highest_stream_id = max(found.highest_stream_id, number)
        try:
            meta = load_meta(files, path)
        except VersionMismatch as error:
            found.refuse(path, number, str(error))
            continue
        except (LoomError, OSError) as error:
            found.damaged[path] = number, _unreadable(files, path, error)
            continue
        found.highest_log_id = max(found.highest_log_id, meta.log_id)
        if (reason := _mismatch(meta, number, cluster)) is None:
            candidates[number].append(path)
        else:
            found.refuse(path, number, reason)
            if meta.cluster == cluster:
                found.misplaced.add(meta.stream_id)
    for number, same in candidates.items():
        if len(same) == 1:
            found.served[number] = same[0]
        else:
            for path in same:
                others = " and ".join(other for other in same if other != path)
                found.refuse(path, number, f"the same log stream is at {others}")
    for _, number in _directories(files, paths, SET_ASIDE):
        found.highest_stream_id = max(found.highest_stream_id, number)
    return found


def set_aside(files: Files, path: str) -> str:
    """Rename a damaged replica. Return its new path. Blocking."""
    aside = path + SET_ASIDE
    count = 1
    while files.exists(aside):
        count += 1
        aside = f"{path}{SET_ASIDE}-{count}"
    files.rename(path, aside)
    files.sync_directory(path.rpartition("/")[0])
    return aside


def has_data(files: Files, path: str) -> bool:
    """Return whether the directory may have entries. Blocking."""
    data = f"{path}/data"
    return files.exists(data) and any(".seg" in name for name in files.list(data))


def finish_removals(files: Files, paths: Sequence[str]) -> None:
    """Finish interrupted removals. Blocking."""
    for path in paths:
        for name in files.list(path):
            if name.startswith("lsid=") and name.endswith(REMOVED):
                files.remove_tree(f"{path}/{name}")


def _directories(
    files: Files, paths: Sequence[str], ending: str = ""
) -> Iterator[tuple[str, StreamId]]:
    for path in paths:
        for name in files.list(path):
            number, found, _ = name.removeprefix("lsid=").partition(ending or "/")
            if name.startswith("lsid=") and number.isdecimal() and found == ending:
                yield f"{path}/{name}", int(number)


def _mismatch(meta: StreamMeta, number: StreamId, cluster: str) -> str | None:
    if meta.cluster != cluster:
        return f"it belongs to another cluster: expected {cluster!r}, found {meta.cluster!r}"
    if meta.stream_id != number:
        return f"it holds log stream {meta.stream_id}, not {number}"
    return None


def _unreadable(files: Files, path: str, error: LoomError | OSError) -> str:
    if not files.exists(f"{path}/meta"):
        return "its meta file is missing"
    return f"its meta file cannot be read ({error})"

"""The replicas of log streams on the volumes of a node: their meta files, and how replicas are
found by their contents, placed and removed.

    <storage node path>/lsid=<log stream id>/meta    see small_files.py; replaced atomically

Stamps identify the data, whatever its directory is called. They are random numbers, chosen when
something is created; nothing is deleted on a request that does not name them.

A directory is served only if its meta file can be read and names this cluster and the number in the
directory's name, and if no other directory holds the same stream. Every other one stays as it is,
with a reason for operators; the node serves the rest. A damaged one makes room when the metadata
repository recreates the replica: it is renamed, and only operators delete it. A replica lives whole
on one volume.
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

REMOVED: Final = ".removed"  # ends the name of a replica whose removal was decided and begun
SET_ASIDE: Final = ".damaged"  # suffix of a replica that was recreated
META_FORMAT: Final = 2
_ADVICE: Final = "move it out of the volume"


@dataclass(frozen=True, slots=True)
class StreamMeta:
    """The owner of the data, its seal epoch, how far it was trimmed, and where it starts if that is
    not the first entry of the stream."""

    log_id: LogId
    stream_id: StreamId
    stamp: int = 0  # of the stream, the same on all its replicas
    birth: int = 0  # of this replica
    cluster: str = ""  # the stamp of the cluster
    epoch: int = 0
    trimmed_glsn: Glsn = 0
    base_llsn: Llsn = 1
    base_high_watermark: Glsn = 0  # before the first commit
    wiping: bool = False  # the stored data is void: the replica restarts at the base


def save_meta(files: Files, path: str, meta: StreamMeta) -> None:
    """Write the meta file. It survives a power loss in every sync mode: epochs fence. Blocking."""
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
    refused: list[str] = field(default_factory=list)  # a sentence for operators each
    taken: dict[StreamId, str] = field(default_factory=dict)  # numbers of those, and why
    damaged: dict[str, tuple[StreamId, str]] = field(default_factory=dict)  # by path; and why
    misplaced: set[StreamId] = field(default_factory=set)  # are in directories of other numbers
    highest_log_id: LogId = 0
    highest_stream_id: StreamId = 0

    @property
    def conditions(self) -> list[Condition]:
        """Return what operators should know of them."""
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
        """Return the streams with data that operators may bring back."""
        return {*self.taken, *self.misplaced, *(number for number, _ in self.damaged.values())}

    def damaged_of(self, number: StreamId) -> list[str]:
        """Return the paths that the stream's damaged replicas are at."""
        return [path for path, (stream_id, _) in self.damaged.items() if stream_id == number]

    def were_set_aside(self, moved: Mapping[str, str]) -> None:
        """Damaged replicas have other paths now."""
        for path, aside in moved.items():
            del self.damaged[path]
            logger.warning("the damaged replica at %s is at %s now", path, aside)

    def refuse(self, path: str, number: StreamId, reason: str) -> None:
        """Leave the directory alone."""
        self.taken[number] = f"{path} is not served: {reason}; {_ADVICE}"
        self.refused.append(self.taken[number])


class ReplicaPaths:
    """Finds the replicas when it is made; that blocks."""

    def __init__(self, files: Files, paths: Sequence[str], cluster: str, node_id: NodeId) -> None:
        """`paths`: of the node on its volumes; `cluster`: the stamp that its replicas carry."""
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
        """Return the path for a new replica: on the volume with the fewest bytes, then replicas.
        `paths`: only on volumes with these storage node paths."""
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
        """Return the path for a replica on one of these volumes, without noting it."""
        # Most nodes have one volume, and may have thousands of replicas to look at.
        path = paths[0] if len(paths) == 1 else min(paths, key=partial(self._load, stored_bytes))
        return f"{path}/lsid={stream_id}"

    def is_damaged(self, stream_id: StreamId, reason: str) -> None:
        """Do not serve a replica that cannot be opened."""
        self.found.damaged[self.streams.pop(stream_id)] = stream_id, reason

    def remove(self, stream_id: StreamId) -> None:
        """Remove a replica's files: whole, or, after a crash, by the next start. Blocking."""
        path = self.streams[stream_id]
        if self._files.exists(path):  # else an earlier attempt failed halfway
            self._files.rename(path, path + REMOVED)
        self._files.sync_directory(path.rpartition("/")[0])
        self._files.remove_tree(path + REMOVED)

    def forget(self, stream_id: StreamId) -> None:
        """Let the log stream be placed here again; its files are gone."""
        if self.streams.pop(stream_id, None) is None:
            raise NotFound(f"log stream {stream_id} is not on this storage node")

    def _load(self, stored_bytes: Callable[[StreamId], int], path: str) -> tuple[int, int]:
        here = [s for s, stream in self.streams.items() if stream.startswith(f"{path}/")]
        return sum(map(stored_bytes, here)), len(here)


def find_replicas(files: Files, paths: Sequence[str], cluster: str) -> FoundReplicas:
    """Look at every directory of a replica. Blocking."""
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
    """Give a damaged replica another name, and return its path. Blocking."""
    aside = path + SET_ASIDE
    count = 1
    while files.exists(aside):
        count += 1
        aside = f"{path}{SET_ASIDE}-{count}"
    files.rename(path, aside)
    files.sync_directory(path.rpartition("/")[0])
    return aside


def has_data(files: Files, path: str) -> bool:
    """Return whether entries may be stored in the directory. Blocking."""
    data = f"{path}/data"
    return files.exists(data) and any(".seg" in name for name in files.list(data))


def finish_removals(files: Files, paths: Sequence[str]) -> None:
    """Remove what an interrupted removal left. Blocking."""
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

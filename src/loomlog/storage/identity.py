"""Files that name the owner of the data in their directory (small_files.py).

    <volume>/cid=<cluster id>/snid=<node id>/identity         of the directory of a storage node
    <volume>/cid=<cluster id>/snid=<node id>/<store>/owner    of a store: a protocol's database

Directory names alone prove nothing. Messages show fingerprints instead of secrets. The rows of a
store do not name clusters and nodes, so a store is opened only if its owner file says that it was
created here, and if no copy of it is on another volume.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from crc32c import crc32c

from loomlog.errors import Corrupt, InvalidArgument, VersionMismatch
from loomlog.storage import small_files
from loomlog.storage.files import Closable, Files, closed_on_failure
from loomlog.types import NodeId

FORMAT: Final = 6
_FILE: Final = "identity"
_FIRST_FILES: Final = frozenset((_FILE, "generation", "origin"))  # created before registration
_STORES: Final = frozenset(("chains", "logs"))
_DEPTH_MAX: Final = 4  # two more levels than where data should be
LISTED_MAX: Final = 10_000  # bounds the search of a volume with many other files
_PARENTS: Final = ("cid=", "snid=")  # prefixes of the directories above data


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a storage node path. `cluster_secret` is empty until the node has registered."""

    cluster_id: str
    node_id: NodeId
    node_secret: str = field(repr=False)
    cluster_secret: str = field(default="", repr=False)
    marks: dict[str, int] = field(default_factory=dict)  # of protocols, by name; never decrease
    volumes: tuple[str, ...] = ()  # the node's volumes that are not given up, by shard; "": none
    shard: int = 0  # the permanent index of this volume, wherever it is mounted
    taken: int = 0  # how many volumes have had this index, including this one

    def is_of(self, node: Identity) -> bool:
        """Return whether both name the same cluster and node. Secrets are compared elsewhere."""
        return (self.cluster_id, self.node_id) == (node.cluster_id, node.node_id)

    def __str__(self) -> str:
        """Return a text for messages, with fingerprints instead of secrets."""
        text = f"cluster {self.cluster_id}, storage node {self.node_id}"
        if self.node_secret:
            text += f", node secret {fingerprint(self.node_secret)}"
        if self.cluster_secret:
            text += f", cluster secret {fingerprint(self.cluster_secret)}"
        return text


def fingerprint(secret: str) -> str:
    """Return a prefix of a secret's hash, to tell secrets apart in messages."""
    return hashlib.sha256(secret.encode()).hexdigest()[:8]


def cluster_stamp(secret: str) -> str:
    """Return a stamp that tells clusters apart without revealing the secret."""
    return hashlib.sha256(f"loomlog cluster {secret}".encode()).hexdigest()[:16] if secret else ""


def exists(files: Files, path: str) -> bool:
    return files.exists(f"{path}/{_FILE}")


def save(files: Files, path: str, identity: Identity) -> None:
    data = small_files.encode({"format": FORMAT, **asdict(identity)})
    small_files.replace_file(files, f"{path}/{_FILE}", data)


def load(files: Files, path: str) -> Identity:
    """Read the identity of a node directory. Raise Corrupt if it is damaged."""
    data = small_files.read(files, f"{path}/{_FILE}")
    line, _, crc = data.partition(b"\n")
    fields = _fields(line) or _fields(data)  # format 1 had several lines
    if fields is not None and fields.get("format") != FORMAT:
        raise VersionMismatch(
            f"{path}/{_FILE}: expected format {FORMAT}, found {fields.get('format')}; "
            "use the release that wrote it"
        )
    if fields is not None and crc == b"%08x\n" % crc32c(line):
        del fields["format"]
        try:
            return Identity(**{**fields, "volumes": tuple(fields["volumes"])})
        except (KeyError, TypeError):
            pass  # another program wrote it
    raise Corrupt(
        f"{path}/{_FILE} is damaged; copy it from another volume of this node or a backup; if "
        f"there is none, run `loom node replace {path.rpartition('=')[2]}` and start the node "
        "with empty volumes"
    )


def is_unused(files: Files, path: str) -> bool:
    """Return whether a node directory was created by a start that no cluster accepted: it has no
    data, and its identity has not joined a cluster."""
    names = {name.removesuffix(".tmp") for name in files.list(path)}
    return _FILE in names and names <= _FIRST_FILES and not load(files, path).cluster_secret


def remove_unused(files: Files, path: str) -> None:
    """Remove an unused directory. If that is interrupted, the rest is still recognised as one."""
    for name in sorted(files.list(path), key=_FILE.__eq__):  # the identity last
        files.remove(f"{path}/{name}")
    files.remove_tree(path)
    files.sync_directory(path.rpartition("/")[0])


def _fields(line: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def node_directories(files: Files, volume: str) -> tuple[list[str], bool]:
    """Return the directories under a volume that have an identity or data of a storage node, and
    whether the search was complete.

    It covers the whole volume, because a directory may have been copied or mounted at the wrong
    level, but begins where they should be."""
    found: list[str] = []
    likely, others = deque([(volume, 0)]), deque[tuple[str, int]]()
    for _ in range(LISTED_MAX):
        waiting = likely or others
        if not waiting:
            break
        path, depth = waiting.popleft()
        names = _names(files, path)
        if _is_node_directory(path, names):
            found.append(path)
        elif depth < _DEPTH_MAX:
            for name in names:
                where = likely if name.startswith(_PARENTS) else others
                where.append((f"{path.rstrip('/')}/{name}", depth + 1))
    return found, not (likely or others)


def _is_node_directory(path: str, names: list[str]) -> bool:
    if path.rpartition("/")[2].startswith("snid="):
        return _FILE in names or _is_data(names)
    stores = not _STORES.isdisjoint(names)
    return any(name.startswith("lsid=") for name in names) or (_FILE in names and stores)


def _is_data(names: list[str]) -> bool:
    return any(name.startswith("lsid=") or name in _STORES for name in names)


def _names(files: Files, path: str) -> list[str]:
    """Return the names in a directory; [] if it is a file, or belongs to others and cannot be
    read."""
    try:
        return files.list(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        if path.rpartition("/")[2].startswith(_PARENTS):
            raise  # it may be ours
        return []


# ---- stores

OWNER_FILE: Final = "owner"
_OWNER_FORMAT: Final = 2
_OWNER_ADVICE: Final = "check --volumes, or move it out of the volume"


class Owner(NamedTuple):
    """The cluster and node that a store was created for."""

    cluster: str  # the cluster's stamp
    node_id: NodeId
    shard: int = 0  # for protocols with a store on each volume

    def __str__(self) -> str:
        shard = f", shard {self.shard}" if self.shard else ""
        return f"cluster {self.cluster or 'unknown'}, storage node {self.node_id}{shard}"


S = TypeVar("S", bound=Closable)


def open_owned(
    files: Files,
    path: str,
    owner: Owner,
    open_store: Callable[[str], S],
    is_empty: Callable[[S], bool],
) -> S:
    """Open the store at `path` if it belongs to `owner`, or is empty and is given to it.
    Blocking."""
    is_marked = files.exists(f"{path}/{OWNER_FILE}")
    if is_marked and (found := _load_owner(files, path)) != owner:
        raise InvalidArgument(f"{path} belongs to {found}, not to {owner}; {_OWNER_ADVICE}")
    if is_marked:
        return open_store(path)
    with _removed_if_not_made(files, path):
        store = open_store(path)
        with closed_on_failure(store):
            if not is_empty(store):
                raise InvalidArgument(f"{path} has no file that says whose it is; {_OWNER_ADVICE}")
            _save_owner(files, path, owner)
    return store


@contextmanager
def _removed_if_not_made(files: Files, path: str) -> Iterator[None]:
    """Remove the directory of a store that could not be created, unless it existed before: if it
    was deleted while this process ran, the old store may still be open, and would write into the
    new directory when it is closed."""
    is_new = not files.exists(path)
    try:
        yield
    except Exception:
        if is_new and files.exists(path) and not files.exists(f"{path}/{OWNER_FILE}"):
            files.remove_tree(path)
        raise


def is_owned(files: Files, path: str, owner: Owner) -> bool:
    """Return whether the store at `path` certainly belongs to `owner`. Blocking."""
    try:
        return files.exists(f"{path}/{OWNER_FILE}") and _load_owner(files, path) == owner
    except Corrupt:
        return False


def find_copies(files: Files, paths: Sequence[str]) -> dict[str, str]:
    """Return the stores of which there are copies, each with the path of another copy.
    Blocking."""
    marked = [path for path in paths if files.exists(f"{path}/{OWNER_FILE}")]
    stamps = {path: small_files.read(files, f"{path}/{OWNER_FILE}") for path in marked}
    return {
        path: other
        for path in marked
        for other in marked
        if other != path and stamps[other] == stamps[path]
    }


def _save_owner(files: Files, path: str, owner: Owner) -> None:
    fields = {"format": _OWNER_FORMAT, **owner._asdict(), "stamp": secrets.token_hex(8)}
    small_files.replace_file(files, f"{path}/{OWNER_FILE}", small_files.encode(fields))


def _load_owner(files: Files, path: str) -> Owner:
    fields = small_files.decode(small_files.read(files, f"{path}/{OWNER_FILE}"))
    try:
        if fields is not None:
            return Owner(fields["cluster"], fields["node_id"], fields["shard"])
    except KeyError:
        pass  # nothing of ours wrote it
    raise Corrupt(
        f"{path}/{OWNER_FILE} does not match its checksum: restore it, or move the directory away"
    )

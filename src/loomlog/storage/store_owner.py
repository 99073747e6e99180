"""The owner of a store: a database that a protocol keeps on a volume.

    <store>/owner    see small_files.py

The rows of a store know nothing of clusters and nodes. It is opened only if this file says that it
was made here, and if no copy of it is on another volume.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from loomlog.errors import Corrupt, InvalidArgument
from loomlog.storage import small_files
from loomlog.storage.files import Files
from loomlog.types import NodeId

FILE: Final = "owner"
FORMAT: Final = 1
_ADVICE: Final = "check --volumes, or move it out of the volume"


class Owner(NamedTuple):
    cluster: str  # its stamp
    node_id: NodeId

    def __str__(self) -> str:
        return f"cluster {self.cluster or 'unknown'}, storage node {self.node_id}"


class Store(Protocol):
    def close(self) -> None: ...


S = TypeVar("S", bound=Store)


def open_owned(
    files: Files,
    path: str,
    owner: Owner,
    open_store: Callable[[str], S],
    is_empty: Callable[[S], bool],
) -> S:
    """Open the store at `path` if it is the owner's; an empty one becomes it. Blocking."""
    is_marked = files.exists(f"{path}/{FILE}")
    if is_marked and (found := _load(files, path)) != owner:
        raise InvalidArgument(f"{path} belongs to {found}, not to {owner}; {_ADVICE}")
    store = open_store(path)
    if not is_marked:
        if not is_empty(store):
            store.close()
            raise InvalidArgument(f"{path} has no file that says whose it is; {_ADVICE}")
        _save(files, path, owner)
    return store


def find_copies(files: Files, paths: Sequence[str]) -> dict[str, str]:
    """Return the stores that are there twice: for each, where another copy of it is. Blocking."""
    marked = [path for path in paths if files.exists(f"{path}/{FILE}")]
    stamps = {path: small_files.read(files, f"{path}/{FILE}") for path in marked}
    return {
        path: other
        for path in marked
        for other in marked
        if other != path and stamps[other] == stamps[path]
    }


def _save(files: Files, path: str, owner: Owner) -> None:
    fields = {"format": FORMAT, **owner._asdict(), "stamp": secrets.token_hex(8)}
    small_files.replace_file(files, f"{path}/{FILE}", small_files.encode(fields))


def _load(files: Files, path: str) -> Owner:
    fields = small_files.decode(small_files.read(files, f"{path}/{FILE}"))
    if fields is None:
        raise Corrupt(f"{path}/{FILE} does not match its checksum; restore it from another node")
    return Owner(fields["cluster"], fields["node_id"])

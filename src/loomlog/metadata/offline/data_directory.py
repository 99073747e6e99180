"""Check what may be started on the data directory of a vmr.

    metadata.sqlite, rounds/    a vmr alone
    quorum/                     one of several, whose metadata is in etcd

A directory that holds part of a cluster is never used for a new one: that would give a new secret
and the same numbers again, while the nodes still hold everything.
"""

from __future__ import annotations

from loomlog.errors import Corrupt, InvalidArgument
from loomlog.storage.files import Files


def database_in(directory: str) -> str:
    return f"{directory}/metadata.sqlite"


def rounds_in(directory: str) -> str:
    return f"{directory}/rounds"


def quorum_in(directory: str) -> str:
    return f"{directory}/quorum"


def has_rounds(files: Files, directory: str) -> bool:
    return _is_filled(files, rounds_in(directory))


def check_alone(files: Files, directory: str) -> None:
    """Raise InvalidArgument if one of several vmr was here."""
    if _is_filled(files, quorum_in(directory)):
        raise InvalidArgument(
            f"{directory} belongs to one of several vmr: start it with --store etcd, or give an "
            "empty --data to a new cluster"
        )


def check_of_several(files: Files, directory: str) -> None:
    """Raise InvalidArgument if a vmr alone was here."""
    if has_rounds(files, directory) or files.exists(database_in(directory)):
        raise InvalidArgument(
            f"{directory} holds the metadata of a vmr alone: move it with `loom metadata export` "
            "and `loom metadata import`, and give an empty --data"
        )


def metadata_missing(directory: str) -> Corrupt:
    return Corrupt(
        f"{rounds_in(directory)} holds the rounds of a cluster, but {database_in(directory)} holds "
        "no metadata: restore that file (and its -wal) from a copy, or the directory from an "
        "export with `loom metadata import`; for a new cluster give an empty --data"
    )


def _is_filled(files: Files, directory: str) -> bool:
    return files.exists(directory) and bool(files.list(directory))

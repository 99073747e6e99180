"""Two small files (small_files.py) on the volumes of a storage node that show older copies.

    <volume>/cid=<cluster id>/snid=<node id>/generation
    <volume>/cid=<cluster id>/snid=<node id>/run

generation   of the data on the volume, a number that grows with every start, and while the node
             writes: data with a lower one than it had before is an older copy. A volume without
             one beside others that have one is new
run          the newest run of the metadata (core/history.py) that the node knows: metadata with an
             earlier one is an older copy. The newest counts

Both are the same on all volumes that a node runs with, except after a crash. Everything here
blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from loomlog.core.history import Run, Seen
from loomlog.storage import small_files
from loomlog.storage.files import Files

logger = logging.getLogger(__name__)

_GENERATION: Final = "generation"
_RUN: Final = "run"


def load_generation(files: Files, path: str) -> int | None:
    """Return that of a volume, or 0 if there is none. None: there is one, but it cannot be read.
    That is no sign of an older copy, which would have one that can."""
    if not files.exists(f"{path}/{_GENERATION}"):
        return 0
    mark = _load(files, f"{path}/{_GENERATION}", number=int)
    return None if mark is None else int(mark["number"])


def save_generation(files: Files, path: str, generation: int) -> None:
    """Store it on a volume."""
    data = small_files.encode({"number": generation})
    small_files.replace_small_file(files, f"{path}/{_GENERATION}", data)


def load_run(files: Files, paths: Sequence[str]) -> Seen:
    """Return the newest one. A file that is damaged counts as none: others know as much."""
    found = (_load(files, f"{path}/{_RUN}", number=int, id=str, revision=int) for path in paths)
    marks = [mark for mark in found if mark is not None]
    runs = (Seen(Run(mark["number"], mark["id"]), mark["revision"]) for mark in marks)
    return max(runs, default=Seen())


def save_run(files: Files, paths: Sequence[str], seen: Seen) -> None:
    """Store it on every volume that can be written to; raise OSError if none can."""
    (number, run_id), revision = seen
    data = small_files.encode({"number": number, "id": run_id, "revision": revision})
    failures: list[OSError] = []
    for path in paths:
        try:
            small_files.replace_small_file(files, f"{path}/{_RUN}", data)
        except OSError as error:
            failures.append(error)
    if len(failures) == len(paths):
        raise failures[0]


def _load(files: Files, path: str, **kinds: type) -> dict[str, Any] | None:
    """Return the fields of a mark, which are of these kinds; None if there is none, or none that
    can be read."""
    try:
        if not files.exists(path):
            return None
        fields = small_files.decode(small_files.read(files, path))
    except OSError as error:
        logger.error("%s cannot be read (%s): an older copy may go unnoticed", path, error)
        return None
    if fields is None or any(type(fields.get(name)) is not kind for name, kind in kinds.items()):
        logger.error("%s is damaged: an older copy may go unnoticed", path)
        return None
    return fields

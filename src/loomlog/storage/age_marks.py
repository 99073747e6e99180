"""Small files (small_files.py) on the volumes of a storage node that reveal older copies.

    <volume>/cid=<cluster id>/snid=<node id>/generation
    <volume>/cid=<cluster id>/snid=<node id>/origin
    <volume>/cid=<cluster id>/snid=<node id>/run

generation   a number of the data on the volume that grows with every start, and while the node
             writes: data with a lower one than it had before is an older copy. A volume without
             one, next to others that have one, is new. It is `clean` if the node stopped after its
             last write: then nothing of this generation is missing. Otherwise it has the stamp of
             the origin file
origin       an empty file that is never changed; its stamp differs in a copy (core/generation.py)
run          the newest run of the metadata (core/history.py) that the node knows: metadata with an
             earlier one is an older copy

Generation and run are the same on all volumes that a node runs with, except for the stamp, and
except after a crash; then the newest run counts. All functions block.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from loomlog.core.generation import NO_GENERATION, Generation
from loomlog.core.history import Run, Seen
from loomlog.storage import small_files
from loomlog.storage.files import Files

logger = logging.getLogger(__name__)

_GENERATION: Final = "generation"
_ORIGIN: Final = "origin"
_RUN: Final = "run"


def load_generation(files: Files, path: str) -> Generation | None:
    """Return the generation of a volume, or NO_GENERATION; None if there is one that cannot be
    read."""
    try:
        if not files.exists(f"{path}/{_GENERATION}"):
            return NO_GENERATION
    except OSError:
        pass  # `_load` logs it
    mark = _load(files, f"{path}/{_GENERATION}", number=int)
    if mark is None:
        return None
    return Generation(mark["number"], mark.get("clean") is True, str(mark.get("stamp", "")))


def save_generation(files: Files, path: str, generation: Generation) -> None:
    """Store the generation of a volume."""
    data = small_files.encode(generation._asdict())
    small_files.replace_small_file(files, f"{path}/{_GENERATION}", data)


def stamp_of_origin(files: Files, path: str) -> str:
    """Return the stamp of a volume's origin file, which is created if it is missing; "" if the
    stamp cannot be determined."""
    origin = f"{path}/{_ORIGIN}"
    try:
        if not files.exists(origin):
            files.open(origin, create=True).close()
        return files.stamp(origin)
    except OSError as error:
        logger.warning(
            "%s cannot be read (%s): if killed, the node counts as crashed", origin, error
        )
        return ""


def load_run(files: Files, paths: Sequence[str]) -> Seen:
    """Return the newest run on any volume. Damaged files are ignored: the others are as new."""
    loaded = (_load(files, f"{path}/{_RUN}", number=int, id=str, revision=int) for path in paths)
    marks = [mark for mark in loaded if mark is not None]
    runs = (Seen(Run(mark["number"], mark["id"]), mark["revision"]) for mark in marks)
    return max(runs, default=Seen())


def save_run(files: Files, paths: Sequence[str], seen: Seen) -> None:
    """Store the run on every volume that can be written. Raise OSError if none can."""
    (number, run_id), revision = seen
    data = small_files.encode({"number": number, "id": run_id, "revision": revision})
    small_files.save_at_each(
        paths, lambda path: small_files.replace_small_file(files, f"{path}/{_RUN}", data)
    )


def _load(files: Files, path: str, **kinds: type) -> dict[str, Any] | None:
    """Return the fields of a mark, checking that they have these types; None if there is no mark
    or it cannot be read."""
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

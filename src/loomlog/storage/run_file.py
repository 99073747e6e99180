"""The newest run of the metadata (core/history.py) that a node knows, on its volumes.

    <volume>/cid=<cluster id>/snid=<node id>/run

The same on all volumes; after a crash the newest counts. Everything here blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from loomlog.core.history import Run, Seen
from loomlog.storage import small_files
from loomlog.storage.files import Files

logger = logging.getLogger(__name__)

_NAME: Final = "run"


def load(files: Files, paths: Sequence[str]) -> Seen:
    """Return what was noted last. A file that is damaged counts as none: others know as much."""
    return max((_load(files, f"{path}/{_NAME}") for path in paths), default=Seen())


def save(files: Files, paths: Sequence[str], seen: Seen) -> None:
    """Note it durably, on every volume that can be written to; raises OSError if none can."""
    (number, run_id), revision = seen
    data = small_files.encode({"number": number, "id": run_id, "revision": revision})
    failures: list[OSError] = []
    for path in paths:
        try:
            small_files.replace_small_file(files, f"{path}/{_NAME}", data)
        except OSError as error:
            failures.append(error)
    if len(failures) == len(paths):
        raise failures[0]


def _load(files: Files, path: str) -> Seen:
    try:
        if not files.exists(path):
            return Seen()
        fields = small_files.decode(small_files.read(files, path))
    except OSError as error:
        logger.error("%s cannot be read: %s", path, error)
        return Seen()
    if fields is None:
        logger.error("%s is damaged: which metadata this node has met is not known", path)
        return Seen()
    return Seen(Run(fields["number"], fields["id"]), fields["revision"])

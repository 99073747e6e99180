"""The generation of a storage node's data: a number that grows with every start, and while the data
is written to. Data with a lower one than it had before is an older copy.

    <volume>/cid=<cluster id>/snid=<node id>/generation

The same on all volumes, but for a crash; any of them may be an older copy, so the lowest counts. A
volume without one is new. Everything here blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from loomlog.errors import Corrupt
from loomlog.storage import small_files
from loomlog.storage.files import Files

logger = logging.getLogger(__name__)

_NAME: Final = "generation"


def load(files: Files, paths: Sequence[str]) -> int | None:
    """Return the lowest one; 0: there is none. None: there is one, but it cannot be read. That is
    no sign of an older copy, which would have one that can."""
    found = [f"{path}/{_NAME}" for path in paths if files.exists(f"{path}/{_NAME}")]
    numbers = [number for path in found if (number := _load(files, path)) is not None]
    return min(numbers, default=None if found else 0)


def save(files: Files, paths: Sequence[str], generation: int) -> None:
    """Keep it on all volumes; raises OSError if one of them cannot be written to."""
    text = b"%d" % generation
    for path in paths:
        small_files.replace_small_file(
            files, f"{path}/{_NAME}", b"%s %08x\n" % (text, crc32c(text))
        )


def _load(files: Files, path: str) -> int | None:
    try:
        return _number(small_files.read(files, path))
    except (OSError, Corrupt) as error:
        logger.error("%s cannot be read (%s): an older copy may go unnoticed", path, error)
        return None


def _number(data: bytes) -> int:
    text, _, crc = data.partition(b" ")
    if not text.isdigit() or crc != b"%08x\n" % crc32c(text):
        raise Corrupt("its checksum is wrong")
    return int(text)

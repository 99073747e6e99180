"""Small files that are replaced as a whole: a line of JSON, and its CRC32C in hex on a second line.

All functions block.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Sequence
from typing import Any

from crc32c import crc32c

from loomlog.storage.files import Files


def encode(fields: dict[str, Any]) -> bytes:
    line = json.dumps(fields).encode()
    return b"%s\n%08x\n" % (line, crc32c(line))


def decode(data: bytes) -> dict[str, Any] | None:
    """Return the fields; None if the data does not match its checksum or has no fields."""
    line, _, crc = data.partition(b"\n")
    if crc != b"%08x\n" % crc32c(line):
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def read(files: Files, path: str) -> bytes:
    file = files.open(path)
    data = bytes(file.read(file.size(), 0))
    file.close()
    return data


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Replace a file atomically: after a crash it has either the old or the new contents."""
    temporary = f"{path}.tmp"
    file = files.open(temporary, create=True)
    file.truncate(0)
    file.write([data], 0)
    file.sync()
    file.close()
    files.rename(temporary, path)
    files.sync_directory(path.rpartition("/")[0])


def replace_small_file(files: Files, path: str, data: bytes) -> None:
    """Like `replace_file`, but overwrite the old file in place if the disk is full. That needs no
    space, and a node must be able to run, or nothing could be deleted there."""
    try:
        replace_file(files, path, data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not files.exists(path):
            raise
        file = files.open(path)
        try:
            file.write([data], 0)
            file.truncate(len(data))
            file.sync()
        finally:
            file.close()


def save_at_each(paths: Sequence[str], save: Callable[[str], None]) -> None:
    """Call `save` for each path. Raise OSError only if it fails for all: one copy is enough."""
    failures: list[OSError] = []
    for path in paths:
        try:
            save(path)
        except OSError as error:
            failures.append(error)
    if len(failures) == len(paths):
        raise failures[0]

"""Small files that are replaced whole: one line of JSON, then its CRC32C in hex on another line.

Everything here blocks.
"""

from __future__ import annotations

import errno
import json
from typing import Any

from crc32c import crc32c

from loomlog.storage.files import Files


def encode(fields: dict[str, Any]) -> bytes:
    line = json.dumps(fields).encode()
    return b"%s\n%08x\n" % (line, crc32c(line))


def decode(data: bytes) -> dict[str, Any] | None:
    """Return the fields; None if they do not match their checksum, or are none."""
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
    """Write a whole file; after a crash it is the old one or the new one."""
    temporary = f"{path}.tmp"
    file = files.open(temporary, create=True)
    file.truncate(0)
    file.write([data], 0)
    file.sync()
    file.close()
    files.rename(temporary, path)
    files.sync_directory(path.rpartition("/")[0])


def replace_small_file(files: Files, path: str, data: bytes) -> None:
    """Like `replace_file`, but overwrite the old file if the disk is full: that needs no space, and
    a node must be able to take part, or nothing could be deleted there."""
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

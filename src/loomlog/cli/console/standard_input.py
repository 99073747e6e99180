"""Lines from standard input, as they come, without a thread and without blocking the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Final

CHUNK_BYTES: Final = 256 * 1024


async def lines_as_they_come(fd: int) -> AsyncIterator[list[bytes]]:
    """Lists of whole lines, without line ends: all that one read of the descriptor gave.

    A last line without an end counts as a line. Few lines come at a time from a person or a
    slow program, many from a file, so a list is a natural batch.
    """
    rest: list[bytes] = []  # pieces of a line whose end has not come yet
    async for chunk in _chunks(fd):
        first, *others = chunk.split(b"\n")
        rest.append(first)
        if others:
            lines = [b"".join(rest), *others[:-1]]
            rest = [others[-1]]
            yield [line.removesuffix(b"\r") for line in lines]
    if last := b"".join(rest):
        yield [last]


async def _chunks(fd: int) -> AsyncIterator[bytes]:
    while True:
        await _readable(fd)
        chunk = os.read(fd, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(fd, readable.set)
    except OSError:  # a regular file: always readable, and epoll refuses it
        await asyncio.sleep(0)
        return
    try:
        await readable.wait()
    finally:
        loop.remove_reader(fd)

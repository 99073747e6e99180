"""Check that SQLite's write-ahead log is intact, before SQLite reads it.

A process that was killed leaves a log behind. SQLite silently uses the part before the first frame
with a wrong checksum, and deletes the rest. That is right for a torn tail. But every transaction
was synced before the next one began: if frames of a later transaction follow, a bad frame is
damage, and committed transactions would be lost.

    header (32 bytes) | frame header (24 bytes) | page | frame header | page | …

Numbers are big-endian. Each checksum covers all that came before. Frames of the current generation
have the header's two salts; others are remains from before the log was last reset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct(">IIIIIIII")  # magic, format, page size, sequence, salts, checksum
_FRAME: Final = struct.Struct(">IIIIII")  # page number, pages after commit, salts, checksum
_WORDS: Final = {0x377F0682: struct.Struct("<II"), 0x377F0683: struct.Struct(">II")}
_MASK: Final = 0xFFFFFFFF

_Sum = tuple[int, int]


class _Frame(NamedTuple):
    at: int
    commits: bool  # it ends a transaction
    salts: _Sum
    checksum: _Sum


def damage_in(data: bytes) -> str:
    """Return the damage in the content of a write-ahead log; "" if there is none."""
    if len(data) <= _HEADER.size or not any(data[: _HEADER.size]):
        return ""  # it was never synced
    magic, _, page_bytes, _, *rest = _HEADER.unpack_from(data)
    words = _WORDS.get(magic)
    salts, checksum = (rest[0], rest[1]), (rest[2], rest[3])
    if words is None or _add(words, data[:24], (0, 0)) != checksum:
        return "the header of its -wal has a wrong checksum"
    frames = list(_frames(data, page_bytes))
    whole = _count_whole(data, frames, salts, checksum, words)
    later = _later_transaction(frames[whole:], salts)
    if later is None:
        return ""
    return f"its -wal has a damaged frame at byte {frames[whole].at}, before a whole transaction"


def _frames(data: bytes, page_bytes: int) -> Iterator[_Frame]:
    step = _FRAME.size + page_bytes
    for at in range(_HEADER.size, len(data) - step + 1, step):
        _, pages, salt, other_salt, *checksum = _FRAME.unpack_from(data, at)
        yield _Frame(at, pages != 0, (salt, other_salt), (checksum[0], checksum[1]))


def _count_whole(
    data: bytes, frames: list[_Frame], salts: _Sum, checksum: _Sum, words: struct.Struct
) -> int:
    step = frames[1].at - frames[0].at if len(frames) > 1 else len(data) - _HEADER.size
    for count, frame in enumerate(frames):
        page = data[frame.at + _FRAME.size : frame.at + step]
        checksum = _add(words, page, _add(words, data[frame.at : frame.at + 8], checksum))
        if frame.salts != salts or frame.checksum != checksum:
            return count
    return len(frames)


def _later_transaction(rest: list[_Frame], salts: _Sum) -> _Frame | None:
    """Return a frame of a transaction after the one that the first frame belongs to."""
    ended = False
    for number, frame in enumerate(rest):
        current = frame.salts == salts
        if ended and current:
            return frame
        ended = ended or (frame.commits and (current or number == 0))
    return None


def _add(words: struct.Struct, data: bytes, checksum: _Sum) -> _Sum:
    first, second = checksum
    for one, other in words.iter_unpack(data):
        first = (first + one + second) & _MASK
        second = (second + other + first) & _MASK
    return first, second

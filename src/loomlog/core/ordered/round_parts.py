"""The parts of a round, one by one or packed. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Reversible, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, overload

from loomlog.types import CommitContext, Glsn, Llsn, StreamId

if TYPE_CHECKING:
    from loomlog.core.ordered.rounds import Round

PART: Final = struct.Struct("<IIQQQ")  # the fields of RoundPart, also on disk


class RoundPart(NamedTuple):
    """The part of a round for one stream: [llsn, llsn + length) become [glsn, glsn + length)."""

    stream_id: StreamId
    epoch: int
    llsn: Llsn
    glsn: Glsn
    length: int


class PackedParts(Sequence[RoundPart]):
    """The parts of a round over many streams, in their stored form and decoded on access."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data) // PART.size

    @overload
    def __getitem__(self, at: int) -> RoundPart: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[RoundPart, ...]: ...
    def __getitem__(self, at: int | slice) -> RoundPart | tuple[RoundPart, ...]:
        if isinstance(at, slice):
            return tuple(self)[at]
        return RoundPart._make(PART.unpack_from(self.data, range(len(self))[at] * PART.size))

    def __iter__(self) -> Iterator[RoundPart]:
        return map(RoundPart._make, PART.iter_unpack(self.data))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self.data)


def commits_after(
    rounds: Reversible[Round], stream_id: StreamId, sent: Glsn
) -> list[CommitContext]:
    """Return the commits of a stream in the rounds after the high watermark that was sent."""
    parts: list[tuple[Round, RoundPart]] = []
    for round_ in reversed(rounds):
        if round_.high_watermark <= sent:
            break
        part = round_.part_of(stream_id)
        if part is not None and part.length:
            parts.append((round_, part))
    commits = []
    for round_, part in reversed(parts):
        commits.append(round_.commit_of(part, sent))
        sent = round_.high_watermark
    return commits

"""Parts of a replica as they are copied to another: batches, and commits that cover exactly them.

A commit may be larger than a part. Then it is cut between batches, and each piece is a commit of
its own; all but the last have their own last GLSN as high watermark, so that a replica with only
the first pieces does not claim to have heard more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from loomlog.core.ordered.recovery import last_place
from loomlog.errors import Corrupt
from loomlog.types import CommitContext, Glsn, Llsn


class Beginning(NamedTuple):
    """The start of a replica's data."""

    llsn: Llsn
    glsn: Glsn  # 0: nothing is stored
    prev_high_watermark: Glsn  # before its first commit


class Part(NamedTuple):
    """Batches as they are stored, joined."""

    buffer: memoryview
    first_llsn: Llsn
    last_llsn: Llsn
    commits: list[CommitContext]


def pieces(
    commits: Iterable[CommitContext], first_llsn: Llsn, last_llsn: Llsn
) -> list[CommitContext]:
    """Return the commits of these entries, which start and end with a batch."""
    found: list[CommitContext] = []
    for commit in commits:
        if commit.last_llsn >= first_llsn:
            found.append(cut(commit, first_llsn, last_llsn))
        if commit.last_llsn >= last_llsn:
            break
    return found


def cut(commit: CommitContext, first_llsn: Llsn, last_llsn: Llsn) -> CommitContext:
    """The piece of a commit that lies between the two, which it overlaps."""
    before = max(0, first_llsn - commit.llsn)
    after = max(0, commit.last_llsn - last_llsn)
    piece = commit._replace(
        glsn=commit.glsn + before,
        llsn=commit.llsn + before,
        length=commit.length - before - after,
    )
    if before:
        piece = piece._replace(prev_high_watermark=piece.glsn - 1)
    return piece._replace(high_watermark=last_place(piece).glsn) if after else piece


def check_cover(
    commits: Sequence[CommitContext], ends: Sequence[Llsn], first_llsn: Llsn, high_watermark: Glsn
) -> None:
    """Raises Corrupt unless the commits cover exactly the batches that end at `ends`, each batch
    by one commit, and go on from `high_watermark`."""
    boundaries = set(ends)
    llsn = first_llsn
    for commit in commits:
        if (
            commit.llsn != llsn
            or commit.length < 1
            or commit.last_llsn not in boundaries
            or commit.glsn <= high_watermark
            or commit.high_watermark < last_place(commit).glsn
        ):
            raise Corrupt(f"{commit} does not follow LLSN {llsn - 1} and GLSN {high_watermark}")
        llsn, high_watermark = commit.last_llsn + 1, commit.high_watermark
    if not ends or llsn != ends[-1] + 1:
        raise Corrupt(f"commits up to LLSN {llsn - 1} for entries up to {ends[-1:]}")

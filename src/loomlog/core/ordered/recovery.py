"""Recover the context of a replica after a restart, from what is stored. Pure.

docs/design/ordered.md, "Commit contexts and recovery", states the rule.

A commit of which some entries are not stored is dropped. Only the newest commit may be dropped: if
an older one lacks entries too, the replica has lost data and is damaged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from loomlog.types import CommitContext, Glsn, Llsn


class Place(NamedTuple):
    """Both numbers of an entry; (0, 0) means none."""

    glsn: Glsn
    llsn: Llsn


NOWHERE = Place(0, 0)


@dataclass(frozen=True, slots=True)
class RecoveredContext:
    """The context of a replica after a restart."""

    high_watermark: Glsn
    uncommitted_begin: Llsn  # the first LLSN that is not committed
    uncommitted_end: Llsn  # one past the last LLSN that is stored
    local_low: Place  # the first committed entry that is kept, or NOWHERE
    local_high: Place  # the last committed entry, kept or trimmed, or NOWHERE
    damaged: bool = False  # committed data is lost: synchronise from a peer
    readable: bool = True  # the committed entries have no hole: at most their end is lost


def last_place(commit: CommitContext) -> Place:
    """Return the last entry of a commit that is not empty."""
    return Place(commit.glsn + commit.length - 1, commit.last_llsn)


def recover(
    commits: Iterable[CommitContext],
    last_llsn: Llsn,
    *,
    trimmed_glsn: Glsn = 0,
    base: tuple[Glsn, Llsn] = (0, 1),
) -> RecoveredContext:
    """Recover from the stored commits, newest first, and the last stored entry.

    Only as many commits are taken from the iterable as are needed. A commit that is entirely
    trimmed needs no entries. `base` is the high watermark and the first LLSN of a replica without
    commits. The result's `local_low` is NOWHERE: the store has to search for it.
    """
    empty = partly = kept = None
    dropped = 0
    for commit in commits:
        if not commit.length:
            empty = empty or commit
        elif commit.last_llsn <= last_llsn or last_place(commit).glsn <= trimmed_glsn:
            kept = commit
            break
        else:
            partly = commit
            dropped += 1
    high_watermark, begin = _committed(empty, partly, kept) or base
    return RecoveredContext(
        high_watermark=high_watermark,
        uncommitted_begin=begin,
        uncommitted_end=max(begin, last_llsn + 1),
        local_low=NOWHERE,
        local_high=last_place(kept) if kept else NOWHERE,
        damaged=dropped > 1 or (kept is None and begin > last_llsn + 1),
    )


def _committed(
    empty: CommitContext | None, partly: CommitContext | None, kept: CommitContext | None
) -> tuple[Glsn, Llsn] | None:
    """Return the high watermark and the first uncommitted LLSN, if there are commits. `empty` is
    newer than `partly` and `kept`."""
    if partly:
        return partly.prev_high_watermark, partly.llsn
    newest = empty or kept
    if newest:
        return newest.high_watermark, newest.last_llsn + 1
    return None

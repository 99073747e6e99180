"""The recovery rule of docs/design/ordered.md, "Commit contexts and recovery"."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loomlog.core.ordered.recovery import NOWHERE, Place, recover
from loomlog.types import CommitContext


def cc(hwm: int, prev: int, glsn: int, llsn: int, length: int) -> CommitContext:
    return CommitContext(hwm, prev, glsn, llsn, length, epoch=1)


OLDER = cc(hwm=10, prev=0, glsn=4, llsn=1, length=3)  # LLSN 1..3 are GLSN 4..6
NEWEST = cc(hwm=30, prev=20, glsn=25, llsn=4, length=2)  # LLSN 4..5 are GLSN 25..26


def test_an_empty_replica_starts_at_one() -> None:
    context = recover([], 0)
    assert (context.high_watermark, context.uncommitted_begin, context.uncommitted_end) == (0, 1, 1)
    assert context.local_high == NOWHERE
    assert not context.damaged


def test_entries_without_a_commit_are_uncommitted() -> None:
    context = recover([], 9)
    assert (context.uncommitted_begin, context.uncommitted_end) == (1, 10)


@pytest.mark.parametrize("last_llsn", [5, 6, 9])
def test_a_covered_commit_is_kept(last_llsn: int) -> None:
    context = recover([NEWEST, OLDER], last_llsn)
    assert context.high_watermark == 30
    assert (context.uncommitted_begin, context.uncommitted_end) == (6, last_llsn + 1)
    assert context.local_high == Place(26, 5)
    assert not context.damaged


@pytest.mark.parametrize("last_llsn", [3, 4])
def test_a_partly_applied_commit_is_dropped_whole(last_llsn: int) -> None:
    context = recover([NEWEST, OLDER], last_llsn)
    assert context.high_watermark == 20, "its previous high watermark, not that of the one before"
    assert (context.uncommitted_begin, context.uncommitted_end) == (4, last_llsn + 1)
    assert context.local_high == Place(6, 3)
    assert not context.damaged


@pytest.mark.parametrize("last_llsn", [0, 2])
def test_more_than_one_incomplete_commit_is_damage(last_llsn: int) -> None:
    context = recover([NEWEST, OLDER], last_llsn)
    assert context.damaged
    assert (context.high_watermark, context.uncommitted_begin) == (0, 1)
    assert context.uncommitted_end == last_llsn + 1
    assert context.local_high == NOWHERE


def test_an_empty_commit_moves_the_high_watermark_only() -> None:
    context = recover([cc(40, 30, 0, 6, 0), NEWEST, OLDER], 7)
    assert (context.high_watermark, context.uncommitted_begin, context.uncommitted_end) == (
        40,
        6,
        8,
    )
    assert context.local_high == Place(26, 5)


def test_an_empty_commit_goes_with_the_partly_applied_one_before_it() -> None:
    context = recover([cc(40, 30, 0, 6, 0), NEWEST, OLDER], 4)
    assert (context.high_watermark, context.uncommitted_begin) == (20, 4)
    assert not context.damaged


def test_a_replica_that_only_heard_of_others() -> None:
    context = recover([cc(40, 30, 0, 1, 0)], 0)
    assert (context.high_watermark, context.uncommitted_begin, context.uncommitted_end) == (
        40,
        1,
        1,
    )
    assert not context.damaged


def test_trimmed_entries_are_not_missed() -> None:
    context = recover([NEWEST], 0, trimmed_glsn=26)
    assert (context.high_watermark, context.uncommitted_begin, context.uncommitted_end) == (
        30,
        6,
        6,
    )
    assert not context.damaged


def test_commits_that_trimming_removed_are_missed_only_with_their_entries() -> None:
    assert not recover([NEWEST], 4, trimmed_glsn=6).damaged
    assert recover([NEWEST], 2, trimmed_glsn=6).damaged


def test_no_more_commits_are_read_than_needed() -> None:
    def commits() -> Iterator[CommitContext]:
        yield NEWEST
        raise AssertionError("one commit is enough here")

    assert recover(commits(), 5).high_watermark == 30


def test_a_replica_that_began_above_the_first_entry() -> None:
    context = recover([], 100, base=(500, 101))
    assert (context.high_watermark, context.uncommitted_begin, context.uncommitted_end) == (
        500,
        101,
        101,
    )
    assert not context.damaged
    partly = recover([cc(510, 500, 501, 101, 2)], 101, base=(500, 101))
    assert (partly.high_watermark, partly.uncommitted_begin) == (500, 101)
    assert not partly.damaged

"""A check of nodes that crashed needs as few shards as can be, and never too few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, combinations

import pytest

from loomlog.core.copyset.coverage import Check, check_of
from loomlog.core.copyset.log_state import trim
from loomlog.core.copyset.messages import EpochEnd, LogState
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.record import make
from loomlog.types import ShardId


def ended(epoch: int, last: int = 5) -> EpochEnd:
    return EpochEnd(epoch, lng=last, last=last, seal=epoch, wave=1)


def state(*nodesets: Iterable[int], replication: int = 2) -> LogState:
    """Return a log with an epoch of each nodeset, all of them recovered, with records."""
    history = tuple(
        EpochMetadata(epoch, tuple(map(Member, nodeset)), replication)
        for epoch, nodeset in enumerate(nodesets, 1)
    )
    count = len(history)
    ends = tuple(map(ended, range(1, count + 1)))
    return LogState(count + 1, 1, history, last_clean=count, tail=0, ends=ends)


def test_a_node_is_awaited_that_may_have_what_the_crashed_one_forgot() -> None:
    assert check_of(state((1, 2, 3)), [1], [1, 2]) == Check((3,), (1, 2), ())


def test_it_is_not_if_others_have_a_copy_of_everything() -> None:
    assert check_of(state((1, 2, 3), replication=3), [1], [1, 2]) == Check((), (1, 2), ())
    assert check_of(state((1, 2, 3, 4)), [1], [1, 2, 3, 4]) == Check((), (1, 2, 3, 4), ())


def test_all_are_needed_if_too_few_are_left_that_did_not_crash() -> None:
    """Then entries may be on no shard, which the check detects."""
    assert check_of(state((1, 2, 3)), [1, 2], [1, 2, 3]) == Check((), (1, 2, 3), (1,))
    assert check_of(state((1, 2, 3)), [1, 2], [1, 2]).awaited == (3,)


def test_a_node_that_was_given_up_is_not_awaited_and_vouches_for_nothing() -> None:
    given_up = check_of(state((1, 2, 3)), [1], [1, 2], given_up=[3])
    assert given_up == Check((), (1, 2), (1,)), "what it had may be on no shard"
    assert check_of(state((1, 2, 3)), [1, 3], [2], given_up=[3]).awaited == (1,)


def test_the_crashed_node_itself_is_needed() -> None:
    assert check_of(state((1, 2, 3), replication=3), [1], [2, 3]).awaited == (1,)


def test_shards_are_not_needed_of_epochs_that_the_node_is_not_in_or_that_have_no_records() -> None:
    others = state((4, 5, 6), (1, 2, 3))
    assert check_of(others, [1], [1, 2, 3]) == Check((), (1, 2, 3), ())
    empty = replace(state((1, 2, 3), (1, 4, 5)), ends=(ended(1), ended(2, last=0)))
    assert check_of(empty, [1], [1, 2, 3]).awaited == ()
    trimmed = trim(state((1, 4, 5), (1, 2, 3)), make(1, 5))
    assert check_of(trimmed, [1], [1, 2, 3]).awaited == ()


# ---- never too few


def subsets(shards: Iterable[ShardId]) -> Iterator[frozenset[ShardId]]:
    each = sorted(shards)
    sizes = (combinations(each, size) for size in range(len(each) + 1))
    return map(frozenset, chain.from_iterable(sizes))


def is_sound(count: int, replication: int) -> bool:
    """Return whether, if nobody is awaited, each record is on a shard that compares it and did not
    crash, or it is looked for on all shards."""
    shards = frozenset(range(1, count + 1))
    log = state(sorted(shards), replication=replication)
    for crashed in subsets(shards):
        for there in subsets(shards):
            check = check_of(log, crashed, there)
            if check.awaited or not crashed:
                continue
            for copyset in map(frozenset, combinations(sorted(shards), replication)):
                is_compared = (copyset - crashed).intersection(check.shards)
                is_looked_for = check.epochs == (1,) and there == shards
                if not (is_compared or is_looked_for or copyset.isdisjoint(crashed)):
                    return False
    return True


@pytest.mark.parametrize(("count", "replication"), [(2, 2), (3, 2), (3, 3), (4, 2), (4, 3), (5, 3)])
def test_a_record_that_a_crashed_node_forgot_is_found_wherever_it_is(
    count: int, replication: int
) -> None:
    assert is_sound(count, replication)


def test_without_the_rule_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpochMetadata, "is_f_majority", lambda self, shards: True)
    assert not is_sound(3, 2)

"""Short copysets: of fewer nodes than wanted, while others take no copies."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from loomlog.core.copyset.effects import GapKind, NeedMetadata, ReaderEffect, ReadGap
from loomlog.core.copyset.log_state import (
    awaited,
    completed,
    first_state,
    lost_together,
    newest_state,
    short_epochs,
    take_epoch,
    use_short,
)
from loomlog.core.copyset.messages import Delivered, EpochEnd, LogState, UseShort
from loomlog.core.copyset.nodeset import (
    EpochMetadata,
    Exclusions,
    Member,
    Trouble,
    choose_short,
    shard_of,
)
from loomlog.core.copyset.reader import CopysetReader
from loomlog.core.copyset.record import Kind, Record, make
from loomlog.errors import InvalidArgument

NODESET = tuple(map(Member, (1, 2, 3)))
PLAIN = EpochMetadata(1, NODESET, 3)
SHORT = PLAIN.with_short((1, 2))


def test_a_short_copyset_counts_wherever_nodes_are_counted() -> None:
    assert SHORT.can_hold_a_copyset((1, 2))
    assert not SHORT.can_hold_a_copyset((1, 3))
    assert not SHORT.can_replicate((1, 2))
    assert PLAIN.is_f_majority((3,))
    assert not SHORT.is_f_majority((3,))
    assert SHORT.is_f_majority((1,))


def test_one_that_contains_another_says_nothing_more() -> None:
    assert SHORT.with_short((1, 2, 3)) == SHORT
    assert SHORT.with_short((2, 1)) == SHORT
    assert SHORT.with_short((2,)).short == ((2,),)
    assert SHORT.with_short((1, 3)).short == ((1, 2), (1, 3))


def test_it_has_one_shard_of_every_node_that_takes_copies() -> None:
    shards = [shard_of(node, index) for node in (1, 2, 3) for index in (0, 1)]
    metadata = EpochMetadata(1, tuple(map(Member, shards)), 3)
    takers = [shard for shard in shards if shard % 3 != 0]
    chosen = choose_short(7, metadata, [s for s in takers if s & 3 != 3], least=2)
    assert sorted(shard & 3 for shard in chosen) == [1, 2]
    assert choose_short(7, metadata, shards, least=2) == ()
    assert choose_short(7, metadata, shards[:2], least=2) == ()


@pytest.mark.parametrize("trouble", [None, Trouble.NO_SPACE])
def test_a_sequencer_uses_it_only_while_others_take_no_copies(trouble: Trouble | None) -> None:
    exclusions = Exclusions()
    assert set(exclusions.choose_copyset(SHORT, (), Random(1), 0.0) or ()) == {1, 2, 3}
    if trouble is None:
        exclusions.down = frozenset([3])
    else:
        exclusions.refused(3, trouble, 0.0)
    assert exclusions.choose_copyset(SHORT, (), Random(1), 0.0) == (1, 2)
    exclusions.down = frozenset([2])
    assert exclusions.choose_copyset(SHORT, (), Random(1), 0.0) is None


def taken(epochs: int, last_clean: int = 0) -> LogState:
    state = first_state(NODESET, 3)
    for _ in range(epochs):
        state = take_epoch(state, 1, NODESET, least=2)
    return replace(state, last_clean=last_clean)


def test_a_recovery_names_it_for_the_one_epoch_that_it_recovers() -> None:
    state = taken(4, last_clean=1)
    first = state.epoch - 3
    short = use_short(state, UseShort(1, state.epoch, first + 1, (1, 2)))
    assert [bool(short.metadata_of(first + n).short) for n in range(4)] == [
        False,
        True,
        False,
        False,
    ]
    again = use_short(short, UseShort(1, state.epoch, first + 1, (1, 3)))
    assert again.metadata_of(first + 1).short == ((1, 2), (1, 3))
    both = use_short(short, UseShort(1, state.epoch, first + 2, (1, 2)))
    assert [metadata.since for metadata in both.history] == [first, first + 1, first + 3]
    assert use_short(state, UseShort(1, state.epoch - 1, first + 1, (1, 2))) is state
    assert use_short(state, UseShort(1, state.epoch, state.last_clean, (1, 2))) is state


def test_two_shards_of_a_node_are_refused() -> None:
    """Two shards of a node are lost together, so they count as one copy."""
    shards = [shard_of(node, index) for node in (1, 2, 3) for index in (0, 1)]
    nodeset = tuple(map(Member, shards))
    state = take_epoch(first_state(nodeset, 3), 1, nodeset, least=2)
    for pair in (shards[:2], (shards[0], shard_of(9, 0))):
        with pytest.raises(InvalidArgument, match="no short copyset"):
            take_epoch(state, 1, nodeset, short=pair, least=2)
        later = take_epoch(state, 1, nodeset, least=2)
        with pytest.raises(InvalidArgument, match="no short copyset"):
            use_short(later, UseShort(1, later.epoch, later.epoch - 1, tuple(pair)))
    short = take_epoch(state, 1, nodeset, short=shards[1:3], least=2)
    assert not short.history[-1].can_hold_a_copyset(shards[:2])


def test_it_is_forgotten_when_all_copies_are_complete() -> None:
    state = taken(3, last_clean=0)
    epoch = state.epoch - 1
    short = use_short(state, UseShort(1, state.epoch, epoch, (1, 2)))
    end = EpochEnd(epoch, lng=0, last=5, seal=epoch, wave=1)
    clean = replace(short, last_clean=epoch, ends=(end,))
    assert completed(short, epoch) is short
    assert short_epochs(clean) == [epoch]
    assert short_epochs(replace(clean, ends=())) == []  # it has no records
    assert short_epochs(replace(clean, trimmed=make(epoch + 1, 0))) == []
    assert completed(clean, epoch).history == state.history
    other = replace(clean, history=(PLAIN._replace(since=epoch + 1),))
    assert completed(other, epoch) is other, "it was trimmed meanwhile"


def test_nodes_of_a_short_copyset_may_have_had_all_copies() -> None:
    state = replace(taken(1), history=(SHORT,))
    assert lost_together(state, {1: 9, 2: 9}) == [1, 2]
    assert lost_together(state, {1: 9, 3: 9}) == []


def test_recovery_waits_for_as_many_nodes_as_a_log_needs() -> None:
    state = taken(2)
    assert awaited(state, (1, 2), state.epoch - 1) == []
    assert awaited(state, (1,), state.epoch - 1) == [2, 3]
    assert awaited(replace(state, least=3), (1, 2), state.epoch - 1) == [3]


def test_after_a_rollback_all_that_is_not_recovered_counts_as_short() -> None:
    state = taken(2)
    for epoch in (state.epoch, state.epoch + 5):
        found = newest_state(state, epoch, (1, 2, 3))
        for each in range(state.last_clean + 1, found.epoch + 1):
            assert not found.metadata_of(each).is_f_majority((3,))
        assert found.history[-1].replication == 3
        assert take_epoch(found, 1, NODESET).metadata_of(found.epoch + 1).replication == 3


def test_a_reader_asks_for_the_metadata_before_it_believes_a_loss() -> None:
    """Nodes show a recovered epoch; the reader knows it only as it was before."""
    before = taken(2)
    epoch = before.epoch - 1
    short = use_short(before, UseShort(1, before.epoch, epoch, (1, 2)))
    end = EpochEnd(epoch, lng=0, last=5, seal=epoch, wave=1)
    after = replace(short, last_clean=epoch, ends=(end,))
    reader = CopysetReader(1, make(epoch, 1))
    reader.learn_state(before, 0.0)
    later = Record(make(epoch, 4), 2, Kind.HOLE, 0, (1, 2, 3), 1, 0, epoch + 1)
    now, effects = 0.0, list[ReaderEffect]()
    for question in range(1, 60):
        now += 1.0
        gone = Delivered([later], make(epoch + 1, 1), 0, make(epoch + 1, 0))
        effects += reader.answered(3, question, gone, now)
        effects += reader.woken(now)
    assert any(isinstance(effect, NeedMetadata) for effect in effects)
    assert not any(isinstance(effect, ReadGap) for effect in effects)
    effects = reader.learn_state(after, now)
    assert not any(
        isinstance(effect, ReadGap) and effect.kind is GapKind.DATALOSS for effect in effects
    )

"""Negative controls: short copysets with one rule left out, which the judge must notice."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import pytest
from copyset_parties import EpochStore, Node
from copyset_world import CopysetWorld
from violation import finds

from loomlog.core.copyset import log_state
from loomlog.core.copyset.messages import GetState, LogState, Preempted, SetClean
from loomlog.core.copyset.nodeset import EpochMetadata, node_of
from loomlog.core.copyset.procedures import Steps, ask_store
from loomlog.core.copyset.record import Epoch
from loomlog.core.copyset.recovery import EpochRecovery, Failed
from loomlog.types import ShardId

SEEDS = 1000  # at most
Patch = pytest.MonkeyPatch
LOST = "is said to be lost|was acknowledged|shows .* and Void|nothing is shown|is only on"


def notices(complaint: str, *, first: int = 0, shards: int = 1) -> bool:
    """Return whether the judge complains in these words (a pattern), with some seed."""
    return first_seed(complaint, first=first, shards=shards) is not None


def first_seed(complaint: str, *, first: int = 0, shards: int = 1) -> int | None:
    """Return the first seed from `first` on with which the judge complains in these words (a
    pattern), if any; `first` did when the test was written."""
    make = partial(CopysetWorld, short=True, shards=shards)
    return finds(complaint, make, range(first, first + SEEDS))


def test_short_copysets_are_forgotten_when_nodes_are_counted(monkeypatch: Patch) -> None:
    def forgetful(
        self: EpochMetadata, shards: Collection[ShardId], empty: Collection[ShardId] = ()
    ) -> bool:
        return not self.can_replicate(set(self.shards).difference(shards))

    monkeypatch.setattr(EpochMetadata, "is_f_majority", forgetful)
    assert notices(LOST, first=45)


def test_recovery_uses_a_short_copyset_that_nobody_else_knows(monkeypatch: Patch) -> None:
    def secretly(
        self: EpochRecovery, short: tuple[ShardId, ...]
    ) -> Steps[Failed | Preempted | None]:
        self._metadata = self._metadata.with_short(short)
        yield from ask_store(GetState(self._log))
        return None

    monkeypatch.setattr(EpochRecovery, "_use_short", secretly)
    assert notices(LOST, first=123)


def test_a_recovered_epoch_is_known_by_the_short_copyset_of_its_sequencer_only(
    monkeypatch: Patch,
) -> None:
    """The shorter copyset is used from the beginning, and forgotten when the epoch is clean."""
    set_clean = log_state.set_clean

    def forgetful(state: LogState, request: SetClean) -> LogState:
        after = set_clean(state, request)
        return after if after is state else log_state.completed(after, after.last_clean)

    monkeypatch.setattr(log_state, "set_clean", forgetful)
    assert notices(LOST, first=5)


def test_fewer_nodes_than_a_log_needs_take_appends(monkeypatch: Patch) -> None:
    def greedy(
        self: EpochStore, metadata: EpochMetadata, takers: Collection[ShardId]
    ) -> tuple[ShardId, ...]:
        return tuple(sorted(takers))[: self.least - 1]

    monkeypatch.setattr(EpochStore, "_short", greedy)
    assert notices(LOST + "|not on all of")


def test_two_shards_of_a_node_are_a_short_copyset(monkeypatch: Patch) -> None:
    short = EpochStore._short

    def on_one_node(
        self: EpochStore, metadata: EpochMetadata, takers: Collection[ShardId]
    ) -> tuple[ShardId, ...]:
        chosen = {node_of(shard) for shard in short(self, metadata, takers)[:1]}
        return tuple(shard for shard in metadata.shards if node_of(shard) in chosen)

    monkeypatch.setattr(EpochStore, "_short", on_one_node)
    assert notices("no short copyset", first=41, shards=2), "it is refused"
    monkeypatch.setattr(EpochMetadata, "_check_short", lambda self, shards: None)
    assert notices(LOST, first=41, shards=2), "else it loses records"


def test_an_epoch_counts_as_complete_although_records_are_left(monkeypatch: Patch) -> None:
    is_filled = CopysetWorld._is_filled

    def hasty(self: CopysetWorld, donor: ShardId, lost: float) -> bool:
        is_filled(self, donor, 0.5)  # most of it is lost
        return True

    monkeypatch.setattr(CopysetWorld, "_is_filled", hasty)
    assert notices(LOST, first=5)


def test_a_node_that_lost_its_disk_completes_records(monkeypatch: Patch) -> None:
    def has_nothing(self: CopysetWorld, node: Node, epoch: Epoch) -> bool:
        return node.up and not node.counts_in(epoch)

    with monkeypatch.context() as broken:
        broken.setattr(CopysetWorld, "_has_all", has_nothing)
        seed = first_seed(LOST, first=28)
    assert seed is not None
    CopysetWorld(seed, short=True).run()  # with the rule, nobody complains

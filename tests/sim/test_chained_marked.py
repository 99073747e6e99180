"""Chains of which an operator gives up nodes that are away, and that may return nevertheless."""

from __future__ import annotations

import pytest
from chained_marked_world import MarkedWorld
from seed_chunks import chunks
from violation import finds, run_world

from loomlog.core.chained import reconfigure
from loomlog.core.chained.chain import Replica
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import Steps
from loomlog.core.chained.upkeep import Action
from loomlog.limits import POSITION_MAX
from loomlog.types import Glsn, NodeId

CHUNKS = 8
SEEDS_PER_CHUNK = 150
CONTROL_SEEDS = 200
Patch = pytest.MonkeyPatch


def test_what_left_may_stand_where_another_chain_has_something_since() -> None:
    assert run_world(MarkedWorld, 470).begun_again


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=1))
def test_only_what_nodes_had_that_were_given_up_is_lost(chunk: int) -> None:
    seeds = range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)
    worlds = [run_world(MarkedWorld, seed) for seed in seeds]
    assert sum(world.begun_again for world in worlds) > SEEDS_PER_CHUNK // 15
    assert sum(world.returned for world in worlds) > SEEDS_PER_CHUNK
    assert sum(world.judge.losses for world in worlds) > 5
    assert sum(world.kept for world in worlds) > 0
    assert sum(len(world.judge.acknowledged) for world in worlds) > 3 * SEEDS_PER_CHUNK


# ---- with one rule left out, which the judge must notice


def notices(complaint: str, make: type[MarkedWorld] = MarkedWorld, *, first: int = 0) -> bool:
    """Return whether the judge complains in these words (a pattern), with a seed from `first` on;
    that one did when the test was written."""
    return finds(complaint, make, range(first, first + CONTROL_SEEDS)) is not None


class TrustingWorld(MarkedWorld):
    """Nodes that were given up serve what they served before. Clients mostly ask for the tail."""

    uses = (30, 5, 5, 60, 0)

    def _left_on(self, record: ChainedRecord, node: NodeId) -> list[Replica]:
        return []


def test_a_node_that_returns_serves_clients_that_know_nothing_of_it() -> None:
    assert notices("the log is said to end", TrustingWorld, first=330)


class StubbornWorld(MarkedWorld):
    """A node that returns stays given up."""

    def _register(self, node: NodeId) -> None:
        is_given_up = node in self._given_up
        super()._register(node)
        if is_given_up:
            self._given_up.add(node)

    def _calm_down(self) -> None:
        super()._calm_down()
        self._given_up.clear()

    def _wanted(self) -> Action:
        wanted = super()._wanted()
        self._decided = frozenset(node for node in self._decided if not self.nodes[node].up)
        return wanted


def test_a_node_that_returns_counts_as_lost() -> None:
    assert notices("was given up, and", StubbornWorld, first=7)


def test_what_left_is_copied_although_another_chain_has_something_there(
    monkeypatch: Patch,
) -> None:
    def find_all(epoch: int, source: Replica, gaps: object, first: Glsn) -> Steps[list[range]]:
        yield from ()
        return [range(first, POSITION_MAX)]

    monkeypatch.setattr(reconfigure, "find_additions", find_all)
    assert notices("showed .* now", first=470)


def test_what_only_a_node_has_that_returns_is_removed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ChainedRecord, "note_witnesses", lambda record, *replicas: record)
    assert notices("are to be removed, and only they have")

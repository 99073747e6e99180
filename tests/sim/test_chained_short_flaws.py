"""Negative controls: chains that become short, with one rule left out, which must be noticed."""

from __future__ import annotations

import pytest
from chained_short_world import ShortWorld, StoppedWorld
from violation import finds

from loomlog.core.chained import upkeep
from loomlog.core.chained.admission import Admission
from loomlog.core.chained.chain import Chain
from loomlog.core.chained.reconfigure import Goal
from loomlog.core.chained.upkeep import ChainsStanding, NewEpoch, Nodes

SEEDS = 200
Patch = pytest.MonkeyPatch


def notices(complaint: str, make: type[ShortWorld] = ShortWorld, *, first: int = 0) -> bool:
    """Return whether the judge complains in these words (a pattern), with a seed from `first` on;
    that one did when the test was written."""
    return finds(complaint, make, range(first, first + SEEDS)) is not None


def test_what_is_missing_is_given_up_though_the_chain_is_long_enough(monkeypatch: Patch) -> None:
    def hasty(chains: ChainsStanding, chain: Chain, nodes: Nodes) -> bool:
        return (chains.lost | chains.missing).issuperset(chain)

    monkeypatch.setattr(upkeep, "_is_lost", hasty)
    assert notices("was given up, and", first=1)


def test_a_chain_begins_again_without_nodes_that_are_away(monkeypatch: Patch) -> None:
    monkeypatch.setattr(upkeep, "_away", lambda chains, chain, nodes: [])
    new_epoch = upkeep._new_epoch

    def without(chains: ChainsStanding, nodes: Nodes, reason: str) -> object:
        wanted = new_epoch(chains, nodes, reason)
        if not isinstance(wanted, NewEpoch):
            return wanted
        there = [r for r in wanted.older if nodes.reachable(r.node_id)]
        return NewEpoch(
            wanted.reason, wanted.leaving, wanted.unfit, wanted.fresh, tuple(there), short=True
        )

    monkeypatch.setattr(upkeep, "_new_epoch", without)
    assert notices("was given up, and", first=5)


def test_replicas_that_left_are_removed_while_their_chain_is_short(monkeypatch: Patch) -> None:
    monkeypatch.setattr(upkeep, "is_needless", lambda chains, replica, nodes: True)
    assert notices("is removed, and .* is only on|is lost, and . disks", first=6)


def test_a_chain_is_left_to_the_last_node_while_another_one_is_filled(monkeypatch: Patch) -> None:
    next_goal = Admission.next_goal

    def careless(admission: Admission, took_s: float) -> Goal:
        return next_goal(admission, took_s)._replace(short=True)

    monkeypatch.setattr(Admission, "next_goal", careless)
    assert notices("not well without node", StoppedWorld, first=3)


def test_a_chain_is_left_to_the_last_node_that_stops(monkeypatch: Patch) -> None:
    goal = NewEpoch.goal

    def careless(wanted: NewEpoch, *fresh: object) -> object:
        return goal(wanted, *fresh)._replace(short=True)  # type: ignore[arg-type]

    monkeypatch.setattr(NewEpoch, "goal", careless)
    assert notices("not well without node", StoppedWorld, first=32)


def test_a_chain_is_left_to_the_last_node_by_a_switch(monkeypatch: Patch) -> None:
    monkeypatch.setattr(StoppedWorld, "goal_to_close", lambda world, short: Goal(close=True))
    assert notices("not well without node", StoppedWorld, first=28)

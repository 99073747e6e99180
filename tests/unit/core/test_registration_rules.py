"""Secrets, and what operators want, decide who may register as which storage node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from loomlog.core.registration import Verdict, judge, life_of, older_shards


@dataclass(frozen=True)
class Node:
    """A node as the metadata knows it."""

    node_secret: str = "own"
    removing: bool = False
    replaceable: bool = False
    generations: Mapping[int, int] = field(default_factory=lambda: {0: 7, 1: 5})
    process: str = "before"
    life: int = 3


@dataclass(frozen=True)
class Words:
    """The words of a node that wants to register."""

    node_secret: str = "own"
    cluster_secret: str = ""
    shards: tuple[int, ...] = (0, 1)
    generations: tuple[int, ...] = (8, 6)
    process: str = "now"
    clean: bool = False


OWN = Words()
OTHER = Words("other")
MEMBER = Words(cluster_secret="cluster")
STRANGER = Words("other", "cluster")


@pytest.mark.parametrize(
    ("claim", "known", "verdict"),
    [
        (OTHER, None, Verdict.NEW),
        (OWN, Node(), Verdict.KNOWN),
        (OWN, Node(removing=True), Verdict.KNOWN),
        (OTHER, Node(), Verdict.HELD_BACK),
        (OTHER, Node(replaceable=True), Verdict.REPLACES),
        (OTHER, Node(replaceable=True, removing=True), Verdict.HELD_BACK),
        (MEMBER, None, Verdict.REMOVED),
        (MEMBER, Node(), Verdict.KNOWN),
        (MEMBER, Node(removing=True), Verdict.REMOVED),
        (STRANGER, Node(), Verdict.OTHER_SECRET),
        (STRANGER, Node(replaceable=True), Verdict.OTHER_SECRET),
    ],
)
def test_secrets_and_wishes_decide(claim: Words, known: Node | None, verdict: Verdict) -> None:
    found = judge(claim, known, reachable=False, contradicted=False, has_data=False)
    assert found is verdict


@pytest.mark.parametrize("known", [None, Node(), Node(replaceable=True)])
def test_data_without_a_cluster_is_not_taken_in(known: Node | None) -> None:
    found = judge(OTHER, known, reachable=False, contradicted=False, has_data=True)
    assert found is Verdict.HAS_DATA


def test_a_node_may_lack_the_clusters_secret_and_have_data() -> None:
    """The node was admitted, and ended before it could write the secret."""
    assert judge(OWN, Node(), reachable=False, contradicted=False, has_data=True) is Verdict.KNOWN


@pytest.mark.parametrize("claim", [OTHER, STRANGER])
def test_a_number_that_is_connected_is_taken(claim: Words) -> None:
    for known in (Node(), Node(replaceable=True), Node(removing=True)):
        found = judge(claim, known, reachable=True, contradicted=True, has_data=True)
        assert found is Verdict.CONNECTED


def test_a_node_that_connects_again_is_no_copy_unless_it_lived_on_elsewhere() -> None:
    for contradicted, verdict in ((False, Verdict.KNOWN), (True, Verdict.COPY)):
        found = judge(MEMBER, Node(), reachable=True, contradicted=contradicted, has_data=True)
        assert found is verdict
    away = judge(MEMBER, Node(), reachable=False, contradicted=True, has_data=True)
    assert away is Verdict.KNOWN, "the metadata may be too old: that is judged elsewhere"


def test_an_older_copy_is_known_by_its_generation() -> None:
    assert not older_shards(OWN, Node()), "both have just been raised"
    assert older_shards(replace(OWN, generations=(7, 6)), Node()) == {0}
    assert older_shards(replace(OWN, generations=(3, 5)), Node()) == {0, 1}
    assert not older_shards(replace(OWN, generations=(0, 0)), Node()), "none can be kept now"
    assert not older_shards(Words(generations=(7, 5), process="before"), Node()), "same process"
    assert not older_shards(replace(OTHER, generations=(3, 3)), Node()), "it is another node"
    assert not older_shards(replace(OWN, generations=(3, 3)), None)


def test_a_shard_is_compared_with_itself_only() -> None:
    """A shard that was left out for a while falls behind the others, but is no older copy."""
    assert not older_shards(replace(OWN, shards=(1,), generations=(6,)), Node())
    assert not older_shards(replace(OWN, generations=(20, 6)), Node(generations={0: 19, 1: 5}))
    assert not older_shards(replace(OWN, shards=(2,), generations=(1,)), Node()), "it is new"


def test_another_life_begins_after_a_crash() -> None:
    assert life_of(OWN, None) == 1
    assert life_of(OWN, Node()) == 4
    assert life_of(replace(OWN, clean=True), Node()) == 3, "it stopped, and was started again"
    assert life_of(replace(OWN, process="before"), Node()) == 3, "it only lost its connection"
    assert life_of(replace(OTHER, clean=True), Node()) == 4, "it took the place of another node"
    assert life_of(replace(OWN, clean=True), Node(life=0)) == 1, "nobody counted before"

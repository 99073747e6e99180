"""Secrets, and what operators want, decide who may register as which storage node."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from loomlog.core.registration import Verdict, is_older_copy, judge


@dataclass(frozen=True)
class Node:
    """A node as the metadata knows it."""

    node_secret: str = "own"
    removing: bool = False
    replaceable: bool = False
    generation: int = 7
    process: str = "before"


@dataclass(frozen=True)
class Words:
    """The words of a node that wants to register."""

    node_secret: str = "own"
    cluster_secret: str = ""
    generation: int = 8
    process: str = "now"


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
    """It was admitted, and ended before it could write the secret."""
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
    assert not is_older_copy(OWN, Node()), "it has just been raised"
    assert is_older_copy(replace(OWN, generation=7), Node())
    assert is_older_copy(replace(OWN, generation=3), Node())
    assert not is_older_copy(replace(OWN, generation=0), Node()), "it cannot keep one now"
    assert not is_older_copy(Words(generation=7, process="before"), Node()), "the same process"
    assert not is_older_copy(replace(OTHER, generation=3), Node()), "it is another node"
    assert not is_older_copy(replace(OWN, generation=3), None)

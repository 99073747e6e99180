"""Decide whether a storage node may register, and as which. Pure.

Node ids and directory names prove nothing. A node's own secret proves that it is the node that the
metadata knows; the cluster's secret proves that it was part of the cluster once. A node with
neither is new: it needs a free number, or an operator's permission to replace another node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol


class KnownNode(Protocol):
    """The metadata's record of a node."""

    @property
    def node_secret(self) -> str: ...
    @property
    def removing(self) -> bool: ...
    @property
    def replaceable(self) -> bool: ...
    @property
    def generations(self) -> Mapping[int, int]: ...
    @property
    def process(self) -> str: ...
    @property
    def life(self) -> int: ...


class Claim(Protocol):
    """The statements of a node that wants to register. Its cluster secret, if it states one, has
    been verified."""

    @property
    def node_secret(self) -> str: ...
    @property
    def cluster_secret(self) -> str: ...
    @property
    def shards(self) -> Sequence[int]: ...
    @property
    def generations(self) -> Sequence[int]: ...
    @property
    def process(self) -> str: ...
    @property
    def clean(self) -> bool: ...


class Verdict(Enum):
    """The decision about a node that wants to register."""

    KNOWN = "it is the node of this number"
    NEW = "the number is free"
    REPLACES = "it takes the place of a node that lost its volumes"
    HELD_BACK = "it is empty and wants the number of another node: an operator decides"
    CONNECTED = "another node of this number is connected"
    COPY = "it has a copy of the data of a node that is connected, used with other metadata"
    HAS_DATA = "it has data and does not say of which cluster"
    REMOVED = "it was removed from the cluster"
    OTHER_SECRET = "it has data of another node"


def judge(
    claim: Claim,
    known: KnownNode | None,
    *,
    reachable: bool,
    contradicted: bool,
    has_data: bool,
) -> Verdict:
    """Judge a claim. `reachable`: a node of this number is connected. `contradicted`: the claimant
    knows runs that this metadata lacks. `has_data`: the claimant says that it stores data."""
    is_known = is_same(claim, known)
    if known is not None and not is_known and reachable:
        return Verdict.CONNECTED
    if reachable and contradicted:  # the connected node was admitted: the metadata is not too old
        return Verdict.COPY
    if claim.cluster_secret:
        if known is None or known.removing:
            return Verdict.REMOVED
        return Verdict.KNOWN if is_known else Verdict.OTHER_SECRET
    if is_known:
        return Verdict.KNOWN
    if has_data:
        return Verdict.HAS_DATA
    if known is None:
        return Verdict.NEW
    return Verdict.REPLACES if known.replaceable and not known.removing else Verdict.HELD_BACK


def is_same(claim: Claim, known: KnownNode | None) -> bool:
    return known is not None and known.node_secret == claim.node_secret


def may_have_twin(claim: Claim, known: KnownNode | None) -> bool:
    """Return whether another process with the node's data may be running: one registered before
    this one."""
    if known is None or not is_same(claim, known):
        return False
    return known.process not in ("", claim.process)


def is_twin(claim: Claim, process: str) -> bool:
    """Return whether the process that answers where the node registered last is another one. Older
    nodes do not say which process they are."""
    return process not in ("", claim.process)


def older_shards(claim: Claim, known: KnownNode | None) -> frozenset[int]:
    """Return the shards of a node whose data is older than when it last registered."""
    if known is None or not is_same(claim, known) or claim.process == known.process:
        # The same process has not lost data. If it failed to write the generation that it was
        # given, it repeats an old one.
        return frozenset()
    claimed = zip(claim.shards, claim.generations, strict=True)
    return frozenset(shard for shard, n in claimed if 0 < n <= known.generations.get(shard, 0))


def life_of(claim: Claim, known: KnownNode | None) -> int:
    """Return the number of a node's life. A new life begins when the node is started after a crash:
    its disks may have lost writes since its last generation."""
    if known is None:
        return 1
    continues = is_same(claim, known) and (claim.process == known.process or claim.clean)
    return max(1, known.life) if continues else known.life + 1

"""Predict what a `chained` log loses while nodes are down. Pure.

Chains continue with the remaining replicas, provided that these are as many as appends need.
"""

from __future__ import annotations

from collections.abc import Collection

from loomlog.core.chained.upkeep import ChainsStanding
from loomlog.core.outage import PartOutage
from loomlog.types import NodeId


def outage(chains: ChainsStanding, away: Collection[NodeId]) -> list[PartOutage]:
    """Return the outage of each chain."""
    projection = chains.projection
    parts = []
    for index in range(len(projection.chains)):
        left = sum(replica.node_id not in away for replica in chains.whole(index))
        stop = ""
        if not projection.closed and left < projection.least:
            stop = f"chain {index} has {left} of the {projection.least} replicas that it needs"
        name = f"chain {index} of segment {projection.log_id}"
        parts.append(PartOutage(name, chains.replicas_wanted, left, stop))
    return parts

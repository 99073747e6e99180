"""What is the matter with a chained loglet, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from loomlog.core.chained import upkeep
from loomlog.core.chained.projection import Projection, Replica


def condition(
    projection: Projection,
    wanted: int,
    action: upkeep.Action,
    filled: Mapping[Replica, int],
    trouble: str,
) -> str:
    """How many replicas it lacks, who is being filled (in percent), what is awaited; empty: all is
    well."""
    fewest = min((len(chain) for chain in projection.chains), default=0)
    words = [f"runs with {fewest} of {wanted} replicas"] if fewest < wanted else []
    words += [
        f"node {replica.node_id} is being filled, {percent} % copied"
        for replica, percent in filled.items()
    ]
    match action:
        case upkeep.NewEpoch(reason):
            words.append(f"begins a new epoch: {reason}")
        case upkeep.Join(chain, node):
            words.append(f"node {node} joins chain {chain}")
        case upkeep.Wait(reason) if reason:
            words.append(reason)
    if trouble:
        words.append(trouble)
    return "; ".join(words)

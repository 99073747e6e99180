"""Describe in words what is wrong with a chained loglet. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from loomlog.core.chained import upkeep
from loomlog.core.chained.projection import Projection, Replica
from loomlog.types import Glsn


def condition(
    projection: Projection,
    wanted: int,
    action: upkeep.Action,
    filled: Mapping[Replica, int],
    trouble: str,
    trimmed: Glsn,
) -> str:
    """Return a text about missing replicas, copies under way, causes of waiting, and losses that
    are not trimmed; "" if all is well."""
    fewest = min((len(chain) for chain in projection.chains), default=0)
    words = [f"runs with {fewest} of {wanted} replicas"] if fewest < wanted else []
    words += [
        f"node {replica.node_id} is being filled, {percent} % copied"
        for replica, percent in filled.items()
    ]
    words += [
        f"what chain {chain} had below position {end} is lost, but for what older copies had of it"
        for chain, end in enumerate(projection.lost)
        if end > trimmed + 1
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

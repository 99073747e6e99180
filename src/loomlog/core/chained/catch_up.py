"""Decide what a projection has become since metadata was copied. Pure; see core/catch_up.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from loomlog.core.catch_up import Unknowable
from loomlog.core.chained.projection import Chain, Projection, Replica


class Epochs(NamedTuple):
    """The epochs that a replica of a chain reports."""

    sealed: int  # the epoch that it is sealed at
    written: int  # the newest epoch in which it took a block


def newest_projection(
    projection: Projection, epochs: Mapping[Replica, Epochs]
) -> Projection | Unknowable:
    """Return the projection that goes on, given all replicas on all nodes. Leaving replicas may
    have been sealed with the others. So a replica that was in `projection` and is sealed as high as
    any of its chain was in every projection since, except perhaps the last. It is whole if it took
    a block in the last one, or if no replica did. Of others it is unknown whether they were
    filled."""
    newest = max((each.sealed for each in epochs.values()), default=0)
    if newest <= projection.epoch:
        return projection
    chains: list[Chain] = []
    for index, chain in enumerate(projection.chains):
        highest = max((each for r, each in epochs.items() if r.chain == index), default=None)
        whole = tuple(r for r in chain if r in epochs and _is_whole(epochs[r], highest))
        if not whole:
            nodes = sorted({r.node_id for r in epochs if r.chain == index})
            names = ", ".join(map(str, nodes))
            return Unknowable(
                f"all replicas of chain {index} were replaced since, on node {names}: "
                "restore a newer copy of the metadata"
            )
        chains.append(whole)
    return projection._replace(epoch=newest, chains=tuple(chains))


def _is_whole(epochs: Epochs, highest: Epochs | None) -> bool:
    if highest is None or epochs.sealed < highest.sealed:
        return False
    return epochs.written == epochs.sealed or highest.written < highest.sealed

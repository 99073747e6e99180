"""Single copy delivery: which node of a copyset sends a record to a reader. Pure.

All nodes shuffle the copyset alike, by the record's LSN. So readers are served by all nodes in
equal parts, and each record is sent once, without a word between the nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from loomlog.core.copyset.lsn import Lsn
from loomlog.core.copyset.mixing import mixed
from loomlog.types import NodeId


def shuffled(copyset: Iterable[NodeId], lsn: Lsn) -> list[NodeId]:
    """In the order in which they have to send it; the order of `copyset` does not matter."""
    return sorted(copyset, key=lambda node: (mixed(lsn, node), node))


def is_sender(
    me: NodeId, copyset: Collection[NodeId], lsn: Lsn, known_down: Collection[NodeId]
) -> bool:
    """Whether the nodes before me are all down, as the reader believes. I am not, whatever it
    believes: so it learns that I am back."""
    if me not in copyset:
        return False
    return (
        next(node for node in shuffled(copyset, lsn) if node == me or node not in known_down) == me
    )

"""Where an append that somebody repeats was placed before, in older epochs.

Every record that counts is on R nodes, and each of them has seen its batch. So if enough of them
have not, for certain, it is nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeAlias

from loomlog.batch import Header
from loomlog.core.copyset.messages import LogState
from loomlog.errors import LoomError, Unavailable
from loomlog.node.copyset.marks import Seen
from loomlog.types import LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb

ANSWER_S: Final = 3.0

FindBatch: TypeAlias = Callable[[NodeId, pb.FindCopysetBatch], Awaitable[Seen]]


async def look_back(log: LogId, header: Header, state: LogState, find: FindBatch) -> Seen:
    """The places that the batch was to have, and whether these are all. Unavailable: too few nodes
    answer."""
    nodes = sorted({node for metadata in state.history for node in metadata.nodes})
    question = pb.FindCopysetBatch(
        loglet_id=log, producer_id=header.producer_id, sequence=header.sequence
    )
    answers = await asyncio.gather(*(_ask(find, node, question) for node in nodes))
    found = {node: seen for node, seen in zip(nodes, answers, strict=True) if seen is not None}
    if not _are_enough(found, state):
        raise Unavailable(f"loglet {log}: too few nodes tell which batches they were given")
    certain = [node for node, seen in found.items() if seen.certain]
    lsns = sorted({lsn for seen in found.values() for lsn in seen.lsns})
    return Seen(lsns, _are_enough(certain, state))


def _are_enough(nodes: Collection[NodeId], state: LogState) -> bool:
    return all(metadata.is_f_majority(nodes) for metadata in state.history)


async def _ask(find: FindBatch, node: NodeId, question: pb.FindCopysetBatch) -> Seen | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await find(node, question)
    except (LoomError, TimeoutError):
        return None

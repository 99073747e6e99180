"""Finds where a repeated append was placed before, in older epochs.

Every record that counts is on R nodes, and each of them has seen its batch. If enough nodes have
certainly not seen it, the batch is nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
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
    """Return where the batch was to be stored, and whether these are all places; raises Unavailable
    if too few nodes answer."""
    nodes = sorted({node for metadata in state.history for node in metadata.nodes})
    question = pb.FindCopysetBatch(
        loglet_id=log, producer_id=header.producer_id, sequence=header.sequence
    )
    asking = {asyncio.create_task(_ask(find, node, question)): node for node in nodes}
    try:
        found = await _until_enough(asking, state)
    finally:
        for task in asking:
            task.cancel()
    if not _are_enough(found, state):
        raise Unavailable(f"loglet {log}: too few nodes tell which batches they were given")
    lsns = sorted({lsn for seen in found.values() for lsn in seen.lsns})
    return Seen(lsns, _are_enough(_certain(found), state))


async def _until_enough(
    asking: Mapping[asyncio.Task[Seen | None], NodeId], state: LogState
) -> dict[NodeId, Seen]:
    """Return the answers of nodes, without those that are slow when the others suffice."""
    found: dict[NodeId, Seen] = {}
    missing = set(asking)
    while missing and not _are_enough(_certain(found), state):
        done, missing = await asyncio.wait(missing, return_when=asyncio.FIRST_COMPLETED)
        found |= {asking[task]: seen for task in done if (seen := task.result()) is not None}
    return found


def _certain(found: Mapping[NodeId, Seen]) -> list[NodeId]:
    return [node for node, seen in found.items() if seen.certain]


def _are_enough(nodes: Collection[NodeId], state: LogState) -> bool:
    return all(metadata.is_f_majority(nodes) for metadata in state.history)


async def _ask(find: FindBatch, node: NodeId, question: pb.FindCopysetBatch) -> Seen | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await find(node, question)
    except (LoomError, TimeoutError):
        return None

"""Where a repeated append was placed before: who is asked, and who is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from copyset_rig import a_batch

from loomlog.batch import read_header
from loomlog.core.copyset.log_state import first_state
from loomlog.core.copyset.nodeset import Member
from loomlog.errors import Unavailable
from loomlog.node.copyset import procedures as module
from loomlog.node.copyset.marks import Seen
from loomlog.node.copyset.procedures import FindBatch, look_back
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb

STATE = first_state([Member(node) for node in range(1, 5)], replication=3)  # two are enough
HEADER = read_header(a_batch(producer_id=7, sequence=3))
NOTHING = Seen([], True)


def nodes(answers: Mapping[NodeId, Seen]) -> FindBatch:
    """All others are silent."""

    async def find(node: NodeId, question: pb.FindCopysetBatch) -> Seen:
        if node not in answers:
            await asyncio.Event().wait()
        return answers[node]

    return find


async def test_nobody_waits_for_a_silent_node_when_enough_know() -> None:
    async with asyncio.timeout(module.ANSWER_S / 2):
        assert await look_back(1, HEADER, STATE, nodes({2: NOTHING, 3: NOTHING})) == NOTHING
        there = {1: Seen([5], True), 4: NOTHING}
        assert await look_back(1, HEADER, STATE, nodes(there)) == Seen([5], True)


async def test_who_may_have_forgotten_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    answers = {1: NOTHING, 2: Seen([5], False), 3: Seen([], False)}
    assert await look_back(1, HEADER, STATE, nodes(answers)) == Seen([5], False)
    with pytest.raises(Unavailable, match="too few"):
        await look_back(1, HEADER, STATE, nodes({1: NOTHING}))

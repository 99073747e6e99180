"""Procedures over the network wait for as many answers as they need, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from loomlog.core.copyset.log_state import first_state
from loomlog.core.copyset.messages import FoundBatch, NodeRequest
from loomlog.core.copyset.nodeset import Member
from loomlog.core.copyset.procedures import look_back
from loomlog.node.copyset import procedures as module
from loomlog.node.copyset.peers import OnAnswer
from loomlog.node.copyset.procedures import Asker
from loomlog.types import NodeId

STATE = first_state([Member(node) for node in range(1, 5)], replication=3)  # two are enough
NOTHING = FoundBatch((), certain=True)


class PlayedNodes(Asker):
    """All nodes without an answer are silent."""

    def __init__(self, answers: Mapping[NodeId, FoundBatch]) -> None:
        self._found = answers

    def ask(self, node: NodeId, request: NodeRequest, done: OnAnswer) -> None:
        if node in self._found:
            asyncio.get_running_loop().call_soon(done, self._found[node])


async def found(answers: Mapping[NodeId, FoundBatch]) -> FoundBatch | None:
    return await PlayedNodes(answers).run(look_back(1, 7, 3, STATE))


async def test_nobody_waits_for_a_silent_node_when_enough_know() -> None:
    async with asyncio.timeout(module.ANSWER_S / 2):
        assert await found({2: NOTHING, 3: NOTHING}) == NOTHING
        there = FoundBatch((5,), certain=True)
        assert await found({1: there, 4: NOTHING}) == there


async def test_who_may_have_forgotten_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    uncertain = FoundBatch((5,), certain=False)
    answers = {1: NOTHING, 2: uncertain, 3: FoundBatch((), certain=False)}
    assert await found(answers) == uncertain
    assert await found({1: NOTHING}) is None

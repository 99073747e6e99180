"""Requests to nodes that cannot be reached; procedures wait for as many answers as they need."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import cast

import pytest

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.log_state import first_state
from loomlog.core.copyset.messages import FoundBatch, NodeAnswer, NodeRequest, Seal
from loomlog.core.copyset.nodeset import Member
from loomlog.core.copyset.procedures import look_back
from loomlog.node.copyset import asker as module
from loomlog.node.copyset.asker import Asker, OnAnswer
from loomlog.node.copyset.epoch_store import EpochStoreClient
from loomlog.node.copyset.shards import LocalShards
from loomlog.types import LogId, NodeId
from loomlog.wire.codec import Codec
from loomlog.wire.copyset import KnownNode

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


@pytest.fixture
def nobody() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    return f"{host}:{port}"


class NoShards:
    """A node without copies."""

    def stamp_of(self, log: LogId) -> int:
        return 0


def asker() -> Asker:
    shards, epochs = cast(LocalShards, NoShards()), cast(EpochStoreClient, None)
    return Asker(1, shards, epochs, Codec("vsn"), lambda node: None)


async def answer(to: Asker) -> NodeAnswer | None:
    answered: asyncio.Future[NodeAnswer | None] = asyncio.get_running_loop().create_future()
    to.ask(2, Seal(1, 1), answered.set_result)
    async with asyncio.timeout(10):
        return await answered


async def test_between_two_attempts_to_connect_nobody_waits(
    nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would seem slow, and cost a wave."""
    monkeypatch.setattr(module, "CONNECT_AGAIN", Backoff(1000.0, 1000.0))
    others = asker()
    others.learn([KnownNode(2, nobody, True, False)])
    assert await answer(others) is None
    assert await answer(others) is None
    others.close()


async def test_who_waits_is_told_of_what_nobody_expected_and_it_is_tried_again(
    nobody: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    others = asker()
    others.learn([KnownNode(2, nobody, True, False)])
    with monkeypatch.context() as broken:
        broken.setattr(module, "connect", fail)
        assert await answer(others) is None
    assert any(record.exc_info for record in caplog.records)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        reached = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(server))
        others.learn([KnownNode(2, "{}:{}".format(*server.getsockname()), True, False)])
        others.ask(2, Seal(1, 1), lambda _: None)
        accepted, _ = await asyncio.wait_for(reached, 10)
        accepted.close()
    others.close()

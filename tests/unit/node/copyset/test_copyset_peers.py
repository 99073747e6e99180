"""Requests to other nodes that cannot be reached."""

from __future__ import annotations

import asyncio
import socket

import pytest

from loomlog.core.copyset.messages import GetEnd, NodeAnswer
from loomlog.node.copyset import peers
from loomlog.node.copyset.peers import Peers
from loomlog.wire.codec import Codec
from loomlog.wire.copyset import KnownNode


@pytest.fixture
def nobody() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    return f"{host}:{port}"


async def answer(to: Peers) -> NodeAnswer | None:
    answered: asyncio.Future[NodeAnswer | None] = asyncio.get_running_loop().create_future()
    to.ask(2, GetEnd(1, 1), answered.set_result)
    async with asyncio.timeout(10):
        return await answered


async def test_between_two_attempts_to_connect_nobody_waits(
    nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would seem slow, and cost a wave."""
    monkeypatch.setattr(peers, "RETRY_FIRST_S", 1000.0)
    others = Peers(Codec("vsn"), lambda node: None)
    others.learn([KnownNode(2, nobody, True, False)])
    assert await answer(others) is None
    assert await answer(others) is None
    others.close()

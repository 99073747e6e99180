"""Requests to other nodes that cannot be reached."""

from __future__ import annotations

import asyncio
import socket

import pytest

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.messages import NodeAnswer, Seal
from loomlog.node.copyset import peers
from loomlog.node.copyset.peers import PeerNodes
from loomlog.wire.codec import Codec
from loomlog.wire.copyset import KnownNode


@pytest.fixture
def nobody() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    return f"{host}:{port}"


async def answer(to: PeerNodes) -> NodeAnswer | None:
    answered: asyncio.Future[NodeAnswer | None] = asyncio.get_running_loop().create_future()
    to.ask(2, Seal(1, 1), 0, answered.set_result)
    async with asyncio.timeout(10):
        return await answered


async def test_between_two_attempts_to_connect_nobody_waits(
    nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would seem slow, and cost a wave."""
    monkeypatch.setattr(peers, "RETRY", Backoff(1000.0, 1000.0))
    others = PeerNodes(Codec("vsn"), lambda node: None)
    others.learn([KnownNode(2, nobody, True, False)])
    assert await answer(others) is None
    assert await answer(others) is None
    others.close()


async def test_who_waits_is_told_of_what_nobody_expected_and_it_is_tried_again(
    nobody: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    others = PeerNodes(Codec("vsn"), lambda node: None)
    others.learn([KnownNode(2, nobody, True, False)])
    with monkeypatch.context() as broken:
        broken.setattr(peers, "connect", fail)
        assert await answer(others) is None
    assert any(record.exc_info for record in caplog.records)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        reached = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(server))
        others.learn([KnownNode(2, "{}:{}".format(*server.getsockname()), True, False)])
        others.ask(2, Seal(1, 1), 0, lambda _: None)
        accepted, _ = await asyncio.wait_for(reached, 10)
        accepted.close()
    others.close()

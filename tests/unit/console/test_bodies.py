"""The bodies of requests: their sizes have bounds, each alone and all together."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from starlette.requests import Request
from starlette.types import Message

from loomlog.console.failures import TooLarge
from loomlog.console.site import SMALL_BYTES, Bodies
from loomlog.errors import Busy

PART = SMALL_BYTES
MOST = 4 * PART


def request(size: int) -> Request:
    """Return a request whose body arrives in parts."""
    sizes = [min(PART, size - at) for at in range(0, size, PART)]

    async def receive() -> Message:
        part = b"x" * (sizes.pop() if sizes else 0)
        return {"type": "http.request", "body": part, "more_body": bool(sizes)}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def test_a_body_is_put_together_and_has_a_bound() -> None:
    bodies = Bodies(MOST)
    async with bodies.read(request(PART + 7), MOST) as body:
        assert body == b"x" * (PART + 7)
    async with bodies.read(request(0), MOST) as body:
        assert body == b""
    with pytest.raises(TooLarge):
        async with bodies.read(request(PART + 1), PART):
            pass


async def test_all_bodies_together_have_a_bound_until_their_requests_are_answered() -> None:
    bodies = Bodies(MOST)
    async with AsyncExitStack() as held:
        for _ in range(2):
            await held.enter_async_context(bodies.read(request(2 * PART), MOST))
        with pytest.raises(Busy):
            await held.enter_async_context(bodies.read(request(2 * PART), MOST))
        small = await held.enter_async_context(bodies.read(request(PART), MOST))
        assert len(small) == PART, "operators can always act"
    for _ in range(3):  # nothing is left of those before, also not of the refused one
        async with bodies.read(request(4 * PART), MOST) as body:
            assert len(body) == 4 * PART


async def test_a_caller_that_leaves_holds_nothing() -> None:
    bodies = Bodies(MOST)
    arrived = asyncio.Event()

    async def receive() -> Message:
        if arrived.is_set():
            await asyncio.get_running_loop().create_future()
        arrived.set()
        return {"type": "http.request", "body": b"x" * 3 * PART, "more_body": True}

    async def read() -> None:
        asked = Request({"type": "http", "method": "POST", "headers": []}, receive)
        async with bodies.read(asked, MOST):
            pass

    reading = asyncio.ensure_future(read())
    await arrived.wait()
    reading.cancel()
    await asyncio.wait([reading])
    async with bodies.read(request(4 * PART), MOST) as body:
        assert len(body) == 4 * PART

"""Subscriptions end when what they read goes away."""

from __future__ import annotations

import asyncio

import pytest

from loomlog.errors import NotFound
from loomlog.testing import LocalCluster


async def test_a_follower_of_a_deleted_log_is_told() -> None:
    async with LocalCluster(nodes=3) as cluster:
        log = await cluster.create_log("short-lived")
        await log.append(b"only")
        follower = log.subscribe()
        assert (await anext(follower)).value == b"only"
        waiting = asyncio.ensure_future(anext(follower))
        await cluster.delete_log("short-lived")
        with pytest.raises(NotFound, match="short-lived"):
            await waiting

"""Descriptions of many logs: a metadata repository has other work to do in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from loomlog import Cluster
from loomlog.metadata.status import LOGS_AT_ONCE, StatusView
from loomlog.testing import LocalCluster

NAMES = [f"log-{number:03}" for number in range(2 * LOGS_AT_ONCE + 1)]


@pytest.fixture
async def many() -> AsyncIterator[tuple[Cluster, StatusView]]:
    local = LocalCluster(nodes=1)
    async with local as cluster:
        await asyncio.gather(*(cluster.create_log(name, replicas=1) for name in NAMES))
        assert local.metadata is not None
        assert local.metadata.term is not None
        yield cluster, local.metadata.term.view


async def test_others_use_the_loop_while_logs_are_described(
    many: tuple[Cluster, StatusView],
) -> None:
    _, view = many
    describing, turns = asyncio.create_task(view.status()), 0
    while not describing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 2
    assert [log.name for log in describing.result().logs] == NAMES


async def test_a_log_that_is_deleted_meanwhile_is_left_out(
    many: tuple[Cluster, StatusView],
) -> None:
    cluster, view = many
    shown = list[str]()
    async for log in view.in_steps():
        if not shown:
            await cluster.delete_log(NAMES[-1])
        shown.append(log.name)
    assert shown == NAMES[:-1]

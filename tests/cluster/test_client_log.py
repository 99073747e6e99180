"""The log messages of a client while servers come and go."""

from __future__ import annotations

import asyncio
import logging

import pytest

from loomlog.testing import LocalCluster


async def test_a_client_says_when_it_connects_waits_and_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="loomlog.client")
    local = LocalCluster(nodes=1, failure_detection_s=0.5)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append(b"a")
        connected = [text for text in messages(caplog) if text.startswith("connected to")]
        assert len(connected) == 2, "the vmr and the node"
        assert not warnings(caplog)

        await local.stop_node(1)
        waiting = asyncio.ensure_future(log.append(b"b"))
        await seen(caplog, "appends to events take longer than 1 s: ")
        await local.start_node(1)
        await waiting
        await log.append(b"c")
        await seen(caplog, "appends to events work again, after ")
        assert any(text.startswith("disconnected from") for text in messages(caplog))
        assert [text for text in warnings(caplog) if "take longer" in text][1:] == []


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    of_client = (r for r in caplog.records if r.name.startswith("loomlog.client"))
    return [record.getMessage() for record in of_client]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = (r for r in caplog.records if r.levelno >= logging.WARNING)
    return [r.getMessage() for r in found if r.name.startswith("loomlog.client")]


async def seen(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async with asyncio.timeout(30):
        while not any(text in message for message in messages(caplog)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

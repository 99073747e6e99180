"""Rows that tests stage and publish."""

from __future__ import annotations

import pyarrow as pa
import pytest
from dying_writers import Crash, Dying
from node_services import ordered_on

from loomlog.client.log import Log
from loomlog.client.publish.writer import Writer
from loomlog.node.appends import ProducerTable
from loomlog.testing import LocalCluster
from loomlog.types import Entry

WAIT_S = 20.0


def rows(first: int, count: int) -> pa.RecordBatch:
    """Return rows with the values b"first", …"""
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "value": [b"%d" % n for n in numbers],
            "key": pa.array([b"key" if n % 3 else None for n in numbers], pa.binary()),
            "timestamp": pa.array(numbers, pa.timestamp("us", "UTC")),
        }
    )


def values(entries: list[Entry]) -> list[int]:
    return [int(entry.value) for entry in entries]


async def read(log: Log, start: int = 1, stop: int | None = None) -> list[Entry]:
    stop = await log.tail() if stop is None else stop
    return [entry async for entry in log.subscribe(start, stop)] if stop >= start else []


async def published(log: Log, count: int, *, batch: int = 100) -> Writer:
    """Publish the values 1 to `count` in publications of `batch`."""
    writer = await log.writer("w")
    for number, first in enumerate(range(1, count + 1, batch), 1):
        await writer.publish(number, await log.stage(rows(first, batch)))
    return writer


def forget_producers(local: LocalCluster) -> None:
    """Forget producers, like replicas that join after the batches were trimmed."""
    for node in local.nodes.values():
        for held in ordered_on(node).held.values():
            held.driver.producers = ProducerTable()


async def left_intent(log: Log, staged: pa.RecordBatch, step: int = 2) -> int:
    """Let a writer die after its first decision; return the stream of the publication."""
    dying = await log.writer("w")
    Dying(dying, step, after=False)
    with pytest.raises(Crash):
        await dying.publish(1, await log.stage(staged))
    intent = (await dying._load())[0].intent
    assert intent is not None
    return intent.fixed.stream

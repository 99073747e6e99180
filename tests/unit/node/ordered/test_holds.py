"""Conditional appends on a storage node: what it answers while a hold is asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from node_rig import PATIENCE_S, STREAM, Nodes

from loomlog.batch import build
from loomlog.errors import Conflict
from loomlog.wire import loomlog_pb2 as pb


def conditional(sequence: int) -> tuple[pb.Frame, tuple[bytearray]]:
    batch = build(
        b"x",
        codec=0,
        flags=0,
        count=1,
        raw_size=1,
        producer_id=7,
        sequence=sequence,
        min_timestamp_us=1,
        max_timestamp_us=1,
    )
    append = pb.Append(log_stream_id=STREAM, seal_epoch=1, expected_tail=0)
    return pb.Frame(append=append), (batch,)


async def send(nodes: Nodes, sequence: int) -> Any:
    frame, payload = conditional(sequence)
    answer, _ = await (await nodes.client(1)).request(frame, payload, timeout_s=PATIENCE_S)
    return answer.appended.first_glsn


async def test_a_repeat_that_is_refused_a_hold_finds_the_batch(tmp_path: Path) -> None:
    """The first copy of it is the reason why there is no hold."""
    async with Nodes(tmp_path, 1) as nodes:
        await nodes.add(1)
        await nodes.run_alone(1)
        holds = nodes.metadata.holds
        first, repeat, other = (asyncio.create_task(send(nodes, n)) for n in (1, 1, 2))
        await nodes.metadata.until(lambda: len(holds) == 3)
        holds[0].set_result(None)
        position = await first
        for hold in holds[1:]:
            hold.set_exception(Conflict("the tail is higher"))
        assert await repeat == position
        with pytest.raises(Conflict, match="the tail is higher"):
            await other

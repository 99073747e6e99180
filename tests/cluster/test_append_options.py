"""The options of single appends: allowed streams, timeouts, and failing fast."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from loomlog import errors
from loomlog.client.append.options import AppendOptions
from loomlog.testing import LocalCluster


async def test_entries_go_to_allowed_streams_only() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", streams=3, replicas=1)
        ones = [log.append(b"%d" % n, streams=[1, 3]) for n in range(20)]
        assert {at.stream for at in await asyncio.gather(*ones)} == {1, 3}
        await cluster.seal_stream(3)
        many = await log.append_many([b"a", b"b"], streams=(3, 1))
        assert {at.stream for at in many} == {1}
        async with log.pipeline(streams={2}) as pipeline:
            assert (await pipeline.append(b"c")).stream == 2
        with pytest.raises(errors.NotFound, match="has no stream 7 or 8"):
            await log.append(b"x", streams=[7, 8])
        with pytest.raises(errors.Sealed, match="an operator sealed stream 3"):
            await log.append(b"x", streams=[3])


@pytest.mark.parametrize("protocol", ["ordered", "copyset"])
async def test_what_fails_fast_does_not_wait_for_nodes(protocol: str) -> None:
    local = LocalCluster(nodes=2)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=2, protocol=protocol)
        assert (await log.append(b"a", fail_fast=True)).stream
        assert await log.append_many([b"b"], fail_fast=True, expected_tail=await log.tail())
        await local.stop_node(1)
        await local.stop_node(2)
        begun_s = time.monotonic()
        with pytest.raises(errors.LoomError):
            await log.append(b"c", fail_fast=True, timeout_s=60)
        assert time.monotonic() - begun_s < 30


async def test_a_short_timeout_counts_behind_longer_ones() -> None:
    local = LocalCluster(nodes=1)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await local.stop_node(1)
        patient = asyncio.ensure_future(log.append(b"a"))
        await asyncio.sleep(0)
        with pytest.raises(errors.LoomError, match=r"0\.3 s"):
            await log.append(b"b", timeout_s=0.3)
        assert not patient.done()
        patient.cancel()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"streams": []}, "streams must name at least one stream"),
        ({"streams": 3}, "streams must be numbers of streams, not 3"),
        ({"streams": "12"}, "streams must be numbers of streams"),
        ({"streams": [0]}, "a stream must be a number from 1"),
        ({"stream": "a"}, "stream must be a number from 1"),
        ({"streams": [1], "stream": 1}, "give stream or streams, not both"),
        ({"fail_fast": 1}, "fail_fast must be True or False, not 1"),
    ],
)
def test_bad_arguments_get_one_clear_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        AppendOptions.of(**options)


async def test_wrong_kinds_get_one_clear_line() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log: Any = await cluster.create_log("events", replicas=1)
        with pytest.raises(errors.InvalidArgument, match="stream must be a number from 1"):
            await log.append(b"", stream="a")
        with pytest.raises(errors.InvalidArgument, match="values must be a list of bytes, not 5"):
            await log.append_many(5)
        with pytest.raises(errors.InvalidArgument, match=r"records must be a pyarrow\.RecordBatch"):
            await log.append_arrow([b"a"])
        assert await log.tail() == 0

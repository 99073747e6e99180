"""Appends behind an expected tail: the arguments and the faces of them. Protocols and failures are
in tests/conformance and tests/sim."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import loomlog
from loomlog import codecs, errors
from loomlog.testing import LocalCluster


async def test_every_way_to_append_compares() -> None:
    pa = pytest.importorskip("pyarrow")
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        first = log.append(b"a", b"key", headers={"h": b"1"}, timestamp=7.0, expected_tail=0)
        await asyncio.sleep(0)  # it is under way before it is awaited
        assert (await first).position == 1
        entry = await log.read(1)
        assert (entry.key, dict(entry.headers), entry.timestamp_us) == (
            b"key",
            {"h": b"1"},
            7_000_000,
        )
        assert (await log.append_many([b"b", b"c"], expected_tail=1))[-1].position == 3
        batch = pa.record_batch({"value": pa.array([b"d"], pa.binary())})
        assert (await log.append_arrow(batch, expected_tail=3, timeout_s=5))[0].position == 4
        for append in (
            log.append(b"x", expected_tail=3),
            log.append_many([b"x"], expected_tail=0),
            log.append_arrow(batch, expected_tail=2),
        ):
            with pytest.raises(errors.Conflict, match="nothing was appended"):
                await append
        with pytest.raises(errors.Conflict, match="the tail is 4"):
            await log.append(b"x", expected_tail=9)
        await log.trim(4)
        assert (await log.append(b"e", expected_tail=4)).position == 5
        with pytest.raises(errors.Conflict):
            await log.append(b"x", expected_tail=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expected_tail": -1}, "expected_tail must be a position"),
        ({"expected_tail": "7"}, "expected_tail must be a position"),
        ({"expected_tail": True}, "expected_tail must be a position"),
        ({"timeout_s": 0}, "timeout_s must be seconds"),
        ({"timeout_s": "soon"}, "timeout_s must be seconds"),
    ],
)
async def test_bad_arguments_get_one_clear_line(options: dict[str, Any], message: str) -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        with pytest.raises(errors.InvalidArgument, match=message):
            await log.append(b"a", **options)
        with pytest.raises(errors.InvalidArgument, match=message):
            log.pipeline(**options)
        assert await log.tail() == 0


async def test_a_tail_holds_across_switches() -> None:
    async with LocalCluster(nodes=2) as cluster:
        log = await cluster.create_log("events", replicas=2)
        tail = await log.tail()
        for protocol in ("copyset", "chained", "copyset", "ordered"):
            tail = (await log.append(protocol.encode(), expected_tail=tail)).position
            await cluster.switch_log("events", protocol=protocol)
        found = [entry.value async for entry in log.subscribe(stop=await log.tail())]
        assert found == [b"copyset", b"chained", b"copyset", b"ordered"]
        with pytest.raises(errors.Conflict):
            await log.append(b"x", expected_tail=1)


async def test_its_own_timeout_counts_while_another_append_is_under_way() -> None:
    local = LocalCluster(nodes=1)
    async with local, await loomlog.connect(local.address, hole_timeout_s=60.0) as cluster:
        log = await cluster.create_log("events", "chained", replicas=1)
        await log.append(b"1")
        info = await log.describe()
        loglet = log._parts.loglets.of("chained")
        await loglet.reserve(info.streams[0].id, 1, 1)  # by a writer that takes its time
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        with pytest.raises(errors.Timeout, match="other appends behind position 1 are under way"):
            await log.append(b"2", expected_tail=1, timeout_s=0.3)
        assert loop.time() - begun_s < 30


async def test_an_object_is_appended_behind_an_expected_tail() -> None:
    async with LocalCluster(nodes=1) as cluster:
        await cluster.create_log("events", replicas=1)
        log = cluster.log("events", codec=codecs.JSON)
        assert (await log.append({"n": 1}, expected_tail=0)).position == 1
        assert (await log.append_many([{"n": 2}], expected_tail=1))[0].position == 2
        with pytest.raises(errors.Conflict):
            await log.append({"n": 3}, expected_tail=1)


async def test_what_a_transaction_appended_is_a_conflict() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        tail = (await log.append(b"a")).position
        async with cluster.transaction() as transaction:
            transaction.append("events", b"b")
        with pytest.raises(errors.Conflict):
            await log.append(b"x", expected_tail=tail)
        at = transaction.positions["events"][0].position
        assert (await log.append(b"c", expected_tail=at)).position == at + 1


async def test_without_an_event_loop() -> None:
    def story(address: str) -> None:
        with loomlog.connect_sync(address) as cluster:
            log = cluster.log("events")
            assert log.append(b"a", expected_tail=0).position == 1
            assert log.append_many([b"b"], expected_tail=1, timeout_s=5)[0].position == 2
            with pytest.raises(errors.Conflict):
                log.append(b"x", expected_tail=1)
            with log.pipeline(expected_tail=2) as pipeline:
                assert pipeline.append(b"c").result().position == 3
            coded = cluster.log("events", codec=codecs.JSON)
            assert coded.append({"n": 1}, expected_tail=3).position == 4
            with pytest.raises(errors.Conflict):
                coded.append_many([{"n": 2}], expected_tail=3)

    local = LocalCluster(nodes=1)
    async with local as cluster:
        await cluster.create_log("events", replicas=1)
        await asyncio.to_thread(story, local.address)

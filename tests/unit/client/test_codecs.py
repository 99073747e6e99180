"""Codecs: values of a log as objects."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from loomlog import codecs, connect_sync
from loomlog.codecs import JSON, ArrowCodec, DataclassCodec, MsgpackCodec
from loomlog.errors import Corrupt, InvalidArgument
from loomlog.testing import LocalCluster


@dataclass
class Order:
    customer: str
    items: list[str] = field(default_factory=list)


SCHEMA = pa.schema([("x", pa.int64())])


async def test_values_of_a_log_are_objects() -> None:
    local = LocalCluster(nodes=1)
    async with local as cluster:
        await cluster.create_log("orders", replicas=1)
        assert await cluster.create_log("orders", exist_ok=True) is cluster.log("orders")
        orders = cluster.log("orders", codec=DataclassCodec(Order))
        await orders.append(Order("ann", ["tea"]), key=b"ann")
        await orders.append_many([Order("bob"), Order("cy")])
        assert (await orders.read(1)).value == Order("ann", ["tea"])
        found = [entry async for entry in orders.subscribe(stop=3)]
        assert [entry.value.customer for entry in found] == ["ann", "bob", "cy"]
        assert found[0].key == b"ann"
        await orders.bytes.append(b"no order")
        with pytest.raises(Corrupt, match="position 4 of log 'orders': the value is not JSON"):
            await orders.read(4)


def test_the_same_without_an_event_loop() -> None:
    import asyncio

    def story(address: str) -> None:
        with connect_sync(address) as cluster:
            cluster.create_log("orders", replicas=1)
            orders = cluster.log("orders", codec=JSON)
            orders.append({"a": 1})
            orders.append_many([[2], None])
            assert [entry.value for entry in orders.subscribe(stop=3)] == [{"a": 1}, [2], None]
            assert orders.read(2).value == [2]

    async def main() -> None:
        local = LocalCluster(nodes=1)
        async with local:
            await asyncio.to_thread(story, local.address)

    asyncio.run(main())


def test_a_dataclass_may_grow() -> None:
    codec = DataclassCodec(Order)
    assert codec.decode(b'{"customer":"ann"}') == Order("ann")
    assert codec.decode(b'{"customer":"ann","colour":"red"}') == Order("ann")
    with pytest.raises(Corrupt, match="no Order"):
        codec.decode(b"{}")
    with pytest.raises(Corrupt, match="no Order"):
        codec.decode(b"[]")


def test_batches_of_arrow_are_entries() -> None:
    codec = ArrowCodec(SCHEMA)
    batch = pa.record_batch({"x": [1, 2]}, schema=SCHEMA)
    assert codec.decode(codec.encode(batch)) == batch
    with pytest.raises(InvalidArgument, match="another schema"):
        codec.encode(pa.record_batch({"y": [1]}))
    with pytest.raises(Corrupt, match="no batch"):
        codec.decode(b"x")


@pytest.mark.parametrize(
    ("codec", "value", "why"),
    [
        (JSON, object(), "cannot be written as JSON"),
        (DataclassCodec(Order), "ann", "the log takes Order, not 'ann'"),
    ],
)
def test_values_that_do_not_fit(codec: codecs.Codec[Any], value: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        codec.encode(value)


def test_a_codec_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="no dataclass"):
        DataclassCodec(int)
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(InvalidArgument, match="needs the package msgpack"):
        MsgpackCodec()

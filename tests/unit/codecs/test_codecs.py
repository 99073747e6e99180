"""Codecs: values of a log as objects."""

from __future__ import annotations

import sys
from dataclasses import InitVar, dataclass, field, make_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loomlog import codecs, connect_sync
from loomlog.codecs import JSON, ArrowCodec, DataclassCodec, MsgpackCodec, PydanticCodec
from loomlog.errors import Corrupt, InvalidArgument, Timeout
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
        with pytest.raises(InvalidArgument, match="timeout_s must be"):
            await orders.append(Order("dan"), timeout_s=0)
        at = await orders.append(Order("eve"), headers={"trace": b"7"}, timestamp=1.0)
        await orders.append_many([Order("fay")], headers=[{"trace": b"8"}], timestamps=[2.0])
        eve, fay = [entry async for entry in orders.subscribe(4, 5)]
        assert (at.position, eve.headers, eve.timestamp_us) == (4, {"trace": b"7"}, 1_000_000)
        assert eve.timestamp == datetime.fromtimestamp(1, UTC)
        assert (fay.headers, fay.timestamp_us) == ({"trace": b"8"}, 2_000_000)
        await orders.bytes.append(b"no order")
        with pytest.raises(Corrupt, match="position 6 of log 'orders': the value is not JSON"):
            await orders.read(6)


def test_the_same_without_an_event_loop() -> None:
    import asyncio

    def story(address: str) -> None:
        with connect_sync(address) as cluster:
            cluster.create_log("orders", replicas=1)
            orders = cluster.log("orders", codec=JSON)
            orders.append({"a": 1}, headers={"trace": b"7"})
            orders.append_many([[2], None], timestamps=[1.0, 2.0])
            assert orders.read(1).headers == {"trace": b"7"}
            assert orders.read(3).timestamp_us == 2_000_000
            assert [entry.value for entry in orders.subscribe(stop=3)] == [{"a": 1}, [2], None]
            assert orders.read(2).value == [2]
            with orders.subscribe(3, timeout_s=0.05) as values:
                assert next(values).value is None
                with pytest.raises(Timeout, match="nothing came for"):
                    next(values)
            closed = orders.subscribe()
            closed.close()
            assert list(closed) == []

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


class Colour(Enum):
    RED = "red"
    BLUE = 2


@dataclass(frozen=True)
class Item:
    name: str
    price: float | None = None
    colour: Colour = Colour.RED
    size: Literal["s", "l"] | int = "s"


@dataclass
class Basket:
    best: Item
    items: list[Item] = field(default_factory=list)
    by_name: dict[str, Item] = field(default_factory=dict)
    pair: tuple[Item, int] | None = None
    many: tuple[tuple[str, ...], ...] = ()
    unique: frozenset[Item] = frozenset()
    texts: set[str] | None = None
    inner: Basket | None = None
    either: Item | list[Item] | str | None = None
    free: Any = None
    count: int = field(default=0, init=False)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner),
    max_leaves=10,
)  # fmt: skip
ITEMS = st.builds(
    Item,
    st.text("xyz"),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(Colour),
    st.sampled_from(["s", "l"]) | st.integers(),
)
BASKETS: st.SearchStrategy[Basket] = st.deferred(
    lambda: st.builds(
        Basket,
        ITEMS,
        st.lists(ITEMS),
        st.dictionaries(st.text("ab"), ITEMS),
        st.none() | st.tuples(ITEMS, st.integers()),
        st.lists(st.lists(st.text("ab")).map(tuple)).map(tuple),
        st.frozensets(ITEMS),
        st.none() | st.sets(st.text("ab")),
        st.none() | BASKETS,
        st.none() | ITEMS | st.lists(ITEMS) | st.text("ab"),
        JSON_VALUES,
    )
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(BASKETS, st.integers())
def test_nested_dataclasses_are_read_back(basket: Basket, count: int) -> None:
    basket.count = count
    codec = DataclassCodec(Basket)
    found = codec.decode(codec.encode(basket))
    assert found == basket
    assert type(found.best) is Item


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (bytes, "Odd.x: bytes cannot be written as JSON and read back"),
        (datetime, "Odd.x: datetime cannot be"),
        (dict[int, str], r"Odd.x: dict\[int, str\] cannot be"),
        (list[bytes], "Odd.x: bytes cannot be"),
        (Item | Order, "Odd.x: JSON cannot tell Item from Order"),
        (Item | dict[str, int], "Odd.x: JSON cannot tell Item from dict"),
        (list[int] | tuple[int, ...], "JSON cannot tell"),
        (Colour | str, "JSON cannot tell Colour from str"),
        ("Missing", "the types of the fields of Odd are not known: name 'Missing' is not defined"),
        (InitVar[int], "Odd.x is an InitVar"),
        (Enum("Lists", {"A": [1]}), "Odd.x: Lists has values that are no texts or numbers"),
    ],
)
def test_a_dataclass_that_json_cannot_express_is_refused(hint: Any, why: str) -> None:
    odd = make_dataclass("Odd", [("x", hint)])
    with pytest.raises(InvalidArgument, match=why):
        DataclassCodec(odd)


@dataclass
class Special(Order):
    extra: int = 1


def test_what_would_be_read_back_otherwise_is_refused() -> None:
    wrong: Any = "1.0"
    order: Any = Order("ann")
    with pytest.raises(InvalidArgument, match=r"^the log takes Order, not Special"):
        DataclassCodec(Order).encode(Special("ann"))
    codec = DataclassCodec(Basket)
    with pytest.raises(
        InvalidArgument, match=r"no Basket: items\[0\].price: must be float \| None, not"
    ):
        codec.encode(Basket(Item("a"), [Item("b", wrong)]))
    with pytest.raises(InvalidArgument, match="no Basket: best: must be Item, not Order"):
        codec.encode(Basket(order))
    with pytest.raises(InvalidArgument, match="cannot be written as JSON"):
        codec.encode(Basket(Item("a"), free=order))
    for free, where in (((1, 2), "free: "), ([{"a": (1,)}], r"free\[0\]\['a'\]: ")):
        with pytest.raises(InvalidArgument, match=f"no Basket: {where}.* cannot be written as"):
            codec.encode(Basket(Item("a"), free=free))
    with pytest.raises(InvalidArgument, match="no Basket: free: must be str as a key, not 1"):
        codec.encode(Basket(Item("a"), free={1: "one"}))
    with pytest.raises(Corrupt, match=r"no Basket: by_name\['b'\].name: must be str, not 7"):
        codec.decode(b'{"best":{"name":"a"},"by_name":{"b":{"name":7}}}')
    with pytest.raises(Corrupt, match="no Basket: pair: must have 2 items, not 1"):
        codec.decode(b'{"best":{"name":"a"},"pair":[1]}')
    with pytest.raises(Corrupt, match=r"no Basket: best\.colour: must be one of Colour, not 'x'"):
        codec.decode(b'{"best":{"name":"a","colour":"x"}}')


def test_constants_that_are_equal_are_told_apart_by_their_types() -> None:
    kind = make_dataclass("Kind", [("x", Literal[1, True, 0, False])])
    codec: DataclassCodec[Any] = DataclassCodec(kind)
    for value in (1, True, 0, False):
        found: Any = codec.decode(codec.encode(kind(value)))
        assert found.x is value


def test_what_is_nested_too_deeply_is_refused() -> None:
    deep: Any = []
    basket = Basket(Item("a"))
    for _ in range(20_000):
        deep = [deep]
        basket = Basket(Item("a"), inner=basket)
    for codec, value in ((JSON, deep), (MsgpackCodec(), deep), (DataclassCodec(Basket), basket)):
        with pytest.raises(InvalidArgument, match="recursion"):
            codec.encode(value)
    with pytest.raises(Corrupt, match="not JSON"):
        JSON.decode(b"[" * 200_000)
    with pytest.raises(Corrupt, match="not MessagePack"):
        MsgpackCodec().decode(b"\x91" * 200_000)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JSON_VALUES)
def test_values_of_json_are_read_back(value: Any) -> None:
    assert JSON.decode(JSON.encode(value)) == value


SMALL = st.integers(-(2**63), 2**64 - 1)
KEYS = st.none() | st.booleans() | SMALL | st.floats(allow_nan=False) | st.binary() | st.text("ab")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(KEYS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)))
def test_values_of_messagepack_are_read_back(value: Any) -> None:
    codec = MsgpackCodec()
    assert codec.decode(codec.encode(value)) == value


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-5, 5)), st.lists(st.none() | st.text("ab")), st.integers(0, 3))
def test_batches_of_arrow_are_read_back(
    numbers: list[int], texts: list[str | None], first: int
) -> None:
    schema = pa.schema([("x", pa.int64()), ("y", pa.list_(pa.string()))])
    batch = pa.record_batch({"x": numbers, "y": [texts] * len(numbers)}, schema=schema)
    codec = ArrowCodec(schema)
    part = batch.slice(first)
    assert codec.decode(codec.encode(part)).equals(part)


def test_batches_of_arrow_that_do_not_fit() -> None:
    coded = pa.dictionary(pa.int8(), pa.string())
    for kind in (coded, pa.list_(coded), pa.struct({"x": coded})):
        with pytest.raises(InvalidArgument, match="column 'd' has a dictionary"):
            ArrowCodec(pa.schema([("d", kind)]))
    table: Any = pa.table({"x": [1]})
    with pytest.raises(InvalidArgument, match=r"must be a pyarrow\.RecordBatch"):
        ArrowCodec(SCHEMA).encode(table)
    texts = ArrowCodec(pa.schema([("x", pa.string())]))
    numbers = ArrowCodec(pa.schema([("x", pa.binary())]))
    other = numbers.encode(pa.record_batch({"x": [b"\xff"]}))
    with pytest.raises(Corrupt, match="no batch of this schema"):
        texts.decode(other)


def test_batches_of_arrow_are_entries() -> None:
    codec = ArrowCodec(SCHEMA)
    batch = pa.record_batch({"x": [1, 2]}, schema=SCHEMA)
    assert codec.decode(codec.encode(batch)) == batch
    with pytest.raises(InvalidArgument, match="another schema"):
        codec.encode(pa.record_batch({"y": [1]}))
    for data in (b"x", b""):
        with pytest.raises(Corrupt, match="no batch"):
            codec.decode(data)


@pytest.mark.parametrize(
    ("codec", "value", "why"),
    [
        (JSON, object(), "cannot be written as JSON"),
        (JSON, {"x": float("nan")}, "cannot be written as JSON"),
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
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(InvalidArgument, match="needs the package pydantic"):
        PydanticCodec(Order)


def test_models_of_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model("Model", name=(str, ...), count=(int, 1))
    codec = PydanticCodec(model)
    assert codec.encode(model(name="ann")) == b'{"name":"ann","count":1}'
    assert codec.decode(b'{"name":"ann"}') == model(name="ann")
    with pytest.raises(Corrupt, match="no Model"):
        codec.decode(b'{"name":"ann","count":"many"}')
    with pytest.raises(InvalidArgument, match="takes Model"):
        codec.encode(7)
    with pytest.raises(InvalidArgument, match="no pydantic model"):
        PydanticCodec(Order)


def test_models_of_pydantic_are_read_back_whatever_their_names() -> None:
    pydantic: Any = pytest.importorskip("pydantic")
    no_number: Any = "x"

    def doubled(model: Any) -> int:
        return 2 * int(model.count)

    class Inner(pydantic.BaseModel):  # type: ignore[misc]
        name: str = pydantic.Field(alias="n")
        other: int = pydantic.Field(1, validation_alias="in", serialization_alias="out")

    class Outer(pydantic.BaseModel):  # type: ignore[misc]
        model_config = pydantic.ConfigDict(extra="forbid", serialize_by_alias=True)
        count: int
        inner: list[Inner]
        double = pydantic.computed_field(return_type=int)(property(doubled))

    codec = PydanticCodec(Outer)
    outer = Outer(count=1, inner=[Inner(**{"n": "a", "in": 5})])
    assert codec.decode(codec.encode(outer)) == outer
    outer.count = no_number
    with pytest.raises(InvalidArgument, match="cannot be written as JSON: Pydantic"):
        codec.encode(outer)

    class More(Outer):
        extra: int = 1

    with pytest.raises(InvalidArgument, match="the log takes Outer, not More"):
        codec.encode(More(count=1, inner=[]))


@pytest.mark.parametrize("version", ["1.10.22", "2.10.6"])
def test_an_old_pydantic_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    pydantic: Any = pytest.importorskip("pydantic")
    model: Any = pydantic.create_model("Model", name=(str, ...))
    PydanticCodec(model)
    monkeypatch.setattr(pydantic, "VERSION", version)
    with pytest.raises(InvalidArgument, match=f"needs pydantic 2.11 or later, not {version}"):
        PydanticCodec(model)

"""Classes become wire messages and are read back, as their tables say."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from loomlog.core.chained.chain import Extent
from loomlog.errors import InvalidArgument
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.shapes import Family, Field, Parts, Shape, negated, repeated


@dataclass(frozen=True)
class _Flag:
    certain: bool


@dataclass(frozen=True)
class _Empty:
    pass


def test_a_field_has_the_name_that_the_table_gives_it() -> None:
    shape = Shape(Extent, pb.BlockExtent, "first", "size")
    message = shape.to_wire(Extent(5, 2))
    assert message == pb.BlockExtent(first=5, size=2)
    assert shape.from_wire(message) == Extent(5, 2)


def test_a_field_of_the_message_alone_is_given_by_the_caller() -> None:
    shape = Shape(Extent, pb.BlockExtent, "first", "count", more=("size",))
    assert shape.to_wire(Extent(5, 2), 64) == pb.BlockExtent(first=5, count=2, size=64)


def test_a_converted_field_sees_what_came_with_the_message() -> None:
    shape = Shape(
        Extent, pb.BlockExtent, "first", Field("count", lambda m, c: m.count + c, lambda v: v + 1)
    )
    message = shape.to_wire(Extent(5, 2))
    assert message.count == 3
    assert shape.from_wire(message, 10) == Extent(5, 13)


def test_parts_become_fields_of_the_message() -> None:
    @dataclass(frozen=True)
    class Holder:
        extent: Extent

    read = Parts({"first": "first", "size": "count"}, lambda m, _: Extent(m.first, m.size))
    shape = Shape(Holder, pb.BlockExtent, read)
    message = shape.to_wire(Holder(Extent(5, 2)))
    assert message == pb.BlockExtent(first=5, size=2)
    assert shape.from_wire(message) == Holder(Extent(5, 2))


def test_flags_and_lists() -> None:
    flag = Shape(_Flag, pb.CopysetEnd, negated("uncertain"))
    assert flag.to_wire(_Flag(certain=False)) == pb.CopysetEnd(uncertain=True)
    assert flag.from_wire(pb.CopysetEnd()) == _Flag(certain=True)

    @dataclass(frozen=True)
    class Flags:
        each: tuple[_Flag, ...]

    flags = Shape(Flags, pb.CopysetState, repeated("ends", flag, tuple))
    value = Flags((_Flag(True), _Flag(False)))
    assert flags.from_wire(flags.to_wire(value)) == value


def test_a_table_that_misses_a_field_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        Shape(Extent, pb.BlockExtent, "first")


def test_the_kind_tells_classes_apart() -> None:
    kinds = pb.CopysetAnswer
    family = Family[object, pb.CopysetAnswer](
        kinds, {kinds.DONE: (_Empty,), kinds.DIGESTED: (_Flag, "more")}
    )
    done = family.to_wire[_Empty](_Empty())
    assert done == kinds(kind=kinds.DONE)
    assert family.from_wire[done.kind](done) == _Empty()
    assert family.to_wire[_Flag](_Flag(True)) == kinds(kind=kinds.DIGESTED, more=True)
    assert kinds.STORED not in family.from_wire
    with pytest.raises(InvalidArgument, match="a CopysetAnswer cannot carry Extent"):
        family.to_wire[Extent]

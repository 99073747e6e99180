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
    done, flagged = kinds(), kinds()
    family.fill[_Empty](done, _Empty())
    assert done == kinds(kind=kinds.DONE)
    assert family.from_wire[done.kind](done) == _Empty()
    family.fill[_Flag](flagged, _Flag(True))
    assert flagged == kinds(kind=kinds.DIGESTED, more=True)
    assert kinds.STORED not in family.from_wire
    with pytest.raises(InvalidArgument, match="a CopysetAnswer cannot carry Extent"):
        family.fill[Extent]


def test_a_message_in_a_frame_is_filled_in_its_place() -> None:
    shape = Shape(Extent, pb.BlockExtent, "first", "count")
    frame = pb.Frame()
    shape.fill(frame.chain_answer.extents.add(), Extent(5, 2))
    assert frame.chain_answer.extents == [shape.to_wire(Extent(5, 2))]
    nothing = Shape(_Flag, pb.ChainAnswer, "more", kind=0)
    nothing.fill(frame.chain_answer, _Flag(False))
    empty = pb.Frame()
    nothing.fill(empty.chain_answer, _Flag(False))
    assert empty.WhichOneof("body") == "chain_answer", "although all of its fields are 0"


@pytest.mark.parametrize("tail", [None, 0, 7])
def test_an_optional_field_that_is_none_is_left_out(tail: int | None) -> None:
    @dataclass(frozen=True)
    class Next:
        expected: int | None

    shape = Shape(Next, pb.SequencerRequest, "expected_tail")
    message = pb.SequencerRequest()
    shape.fill(message, Next(tail))
    assert message == shape.to_wire(Next(tail))
    assert message.HasField("expected_tail") is (tail is not None)


def test_lists_are_filled_in_as_well() -> None:
    flag = Shape(_Flag, pb.CopysetEnd, negated("uncertain"))

    @dataclass(frozen=True)
    class Flags:
        each: tuple[_Flag, ...]

    flags = Shape(Flags, pb.CopysetState, repeated("ends", flag, tuple))
    value, message = Flags((_Flag(True), _Flag(False))), pb.CopysetState()
    flags.fill(message, value)
    assert message == flags.to_wire(value)

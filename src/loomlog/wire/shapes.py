"""Maps classes of core/ to wire messages, field by field. Pure.

A table names the wire field of each field of a class, in the order of their definition. Most values
are the same on both sides; a `Field` converts the others. As in `dataclasses`, functions are
compiled once for each class, because every append calls several of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableSequence
from operator import not_
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import Message

from loomlog.errors import InvalidArgument

CoreT = TypeVar("CoreT")
MessageT = TypeVar("MessageT", bound=Message)

# Reads a field from its message and the context: the payload, or the node that sent it.
FromWire: TypeAlias = Callable[[Any, Any], Any]


class Field(NamedTuple):
    """A field whose value differs on the wire."""

    name: str
    from_wire: FromWire
    to_wire: Callable[[Any], Any] | None = None  # None: it differs in reading only


class Parts(NamedTuple):
    """A field whose attributes are fields of the message: `names` gives the attribute of each."""

    names: Mapping[str, str]
    from_wire: FromWire


# None: when reading, the field keeps its default; when writing, the caller sets it.
WireField: TypeAlias = str | Field | Parts | None


class Shape(Generic[CoreT, MessageT]):
    """A class and the fields of its message.

    `to_wire` returns a message. `fill` fills an empty one, such as that of a new frame, because
    assigning a message to a frame would copy it, which takes longer than everything else here. Both
    also take the values of the fields in `more`, which the class does not have.
    """

    def __init__(
        self,
        cls: type[CoreT],
        message: type[MessageT],
        *fields: WireField,
        more: tuple[str, ...] = (),
        kind: int | None = None,
    ) -> None:
        known: dict[str, Any] = {"new_message": message, "new_value": cls}
        written = {} if kind is None else {"kind": str(kind)}  # the expression for each wire field
        written |= {name: name for name in more}
        read = []
        for name, field in zip(_field_names(cls), fields, strict=True):
            if field is None:
                continue
            if isinstance(field, str):
                written[field] = f"value.{name}"
                read.append(f"message.{field}")
                continue
            known[f"read_{name}"] = field.from_wire
            read.append(f"read_{name}(message, context)")
            if isinstance(field, Parts):
                written |= {wire: f"value.{name}.{part}" for wire, part in field.names.items()}
            elif field.to_wire is None:
                written[field.name] = f"value.{name}"
            else:
                known[f"convert_{name}"] = field.to_wire
                written[field.name] = f"convert_{name}(value.{name})"
        new_message = f"new_message({', '.join(f'{to}={what}' for to, what in written.items())})"
        new_value = f"new_value({', '.join(read)})"
        if not read:
            known["only_value"], new_value = cls(), "only_value"
        parameters = ", ".join(["value", *more])
        self.to_wire: Callable[..., MessageT] = eval(f"lambda {parameters}: {new_message}", known)
        self.from_wire: Callable[..., CoreT] = eval(
            f"lambda message, context=None: {new_value}", known
        )
        body = _assignments(message, written) or [f"message.MergeFrom({new_message})"]
        exec("\n    ".join([f"def fill(message, {parameters}):", *body]), known)
        self.fill: Callable[..., None] = known["fill"]


def _assignments(message: type[Message], written: Mapping[str, str]) -> list[str]:
    """Return statements that fill a message; empty if some field is a nested message."""
    statements, empty = [], message()
    for name, what in written.items():
        value = getattr(empty, name)
        if isinstance(value, MutableSequence):
            statements.append(f"if given := {what}: message.{name}.extend(given)")
        elif not isinstance(value, int | bytes | str):
            return []
        elif message.DESCRIPTOR.fields_by_name[name].has_presence:
            statements.append(f"if (given := {what}) is not None: message.{name} = given")
        else:
            statements.append(f"message.{name} = {what}")
    return statements


def _field_names(cls: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    return cls._fields  # type: ignore[attr-defined, no-any-return]  # a NamedTuple


Row: TypeAlias = tuple[type, *tuple[WireField, ...]]


class Family(Generic[CoreT, MessageT]):
    """The classes that share a wire message: functions by class, and by the message's `kind`."""

    def __init__(
        self, message: type[MessageT], rows: Mapping[int, Row], more: tuple[str, ...] = ()
    ) -> None:
        self.fill = _ByClass(message.DESCRIPTOR.name)
        self.from_wire: dict[int, Callable[..., CoreT]] = {}
        for kind, (cls, *fields) in rows.items():
            shape: Shape[CoreT, MessageT] = Shape(cls, message, *fields, more=more, kind=kind)
            self.fill[cls], self.from_wire[kind] = shape.fill, shape.from_wire


class _ByClass(dict[type, Callable[..., None]]):
    def __init__(self, message_name: str) -> None:
        self._message_name = message_name

    def __missing__(self, cls: type) -> Callable[..., None]:
        raise InvalidArgument(f"a {self._message_name} cannot carry {cls.__name__}")


# ---- fields that several messages have


def negated(name: str) -> Field:
    """Return a flag that is inverted on the wire."""
    return Field(name, lambda message, _: not getattr(message, name), not_)


def nested(name: str, shape: Shape[Any, Any]) -> Field:
    """Return a field with a nested message."""
    return Field(name, lambda message, _: shape.from_wire(getattr(message, name)), shape.to_wire)


def repeated(name: str, shape: Shape[Any, Any], collect: Callable[[Any], Any] = list) -> Field:
    """Return a field with a message for each of its values."""
    to_wire, from_wire = shape.to_wire, shape.from_wire
    return Field(
        name,
        lambda message, _: collect(map(from_wire, getattr(message, name))),
        lambda values: map(to_wire, values),
    )

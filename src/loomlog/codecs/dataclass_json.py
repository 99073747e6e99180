"""Objects of dataclasses as JSON values and back, by the types of their fields.

Whatever is written can be read back as an equal object: values of other types than the declared
ones are refused, and so are types that JSON cannot tell apart.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from loomlog.errors import shown

D = TypeVar("D")

_Convert = Callable[[Any], Any]
_ALL_KINDS: Final = frozenset({"null", "boolean", "number", "string", "array", "object"})
_PLAIN: Final[dict[Any, tuple[tuple[type, ...], frozenset[str]]]] = {
    type(None): ((type(None),), frozenset({"null"})),
    bool: ((bool,), frozenset({"boolean"})),
    int: ((int,), frozenset({"number", "boolean"})),
    float: ((float, int), frozenset({"number", "boolean"})),
    str: ((str,), frozenset({"string"})),
}
_ANY: Final = (Any, object)
_ARRAYS: Final[dict[Any, type]] = {
    list: list,
    Sequence: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
}
_OBJECTS: Final = (dict, Mapping)


class Misfit(Exception):  # noqa: N818 - a value, and no mistake of this program
    """A value is not of the declared type; `path` leads to it."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path.lstrip('.')}: {problem}" if path else problem)
        self.problem = problem
        self.path = path

    def below(self, part: str) -> Misfit:
        return Misfit(self.problem, part + self.path)


class Unsupported(Exception):  # noqa: N818 - reported as the caller's mistake
    """JSON has no values for a type."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """Converts values of one type to JSON values and back; both directions raise Misfit."""

    name: str
    classes: tuple[type, ...]  # of its values
    kinds: frozenset[str]  # of JSON values
    is_plain: bool  # JSON has the same values
    encode: _Convert
    decode: _Convert


class DataclassShape(Generic[D]):
    """Objects of one dataclass as JSON objects."""

    def __init__(self, kind: type[D]) -> None:
        """Raise Unsupported unless JSON can express all its fields."""
        shape = _Shapes().dataclass(kind)
        self.encode: Callable[[D], dict[str, Any]] = shape.encode
        self.decode: Callable[[Any], D] = shape.decode


class _Shapes:
    """Shapes by type; those of dataclasses are made once, since they may refer to themselves."""

    def __init__(self) -> None:
        self._dataclasses: dict[type, Shape] = {}

    def of(self, hint: Any) -> Shape:
        hint = getattr(hint, "__supertype__", hint)  # of a NewType
        if hint is None:
            hint = type(None)
        origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return _union([self.of(argument) for argument in arguments])
        if origin is typing.Literal:
            return _constants(_name(hint), [(value, value) for value in arguments])
        if isinstance(hint, type) and issubclass(hint, Enum):
            return _constants(hint.__name__, [(member, member.value) for member in hint])
        if hint in _PLAIN:
            return _plain(_name(hint), *_PLAIN[hint])
        if hint in _ANY:
            return Shape(_name(hint), (object,), _ALL_KINDS, True, _value_of_json, _same)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self.dataclass(hint)
        if origin is tuple and arguments and arguments[-1] is not Ellipsis:
            return _fixed(_name(hint), [self.of(argument) for argument in arguments])
        if origin in _ARRAYS:
            return _array(_name(hint), _ARRAYS[origin], self.of(arguments[0] if arguments else Any))
        if origin in _OBJECTS and arguments[:1] in ((), (str,)):
            return _object(_name(hint), self.of(arguments[1] if arguments else Any))
        raise Unsupported(f"{_name(hint)} cannot be written as JSON and read back")

    def dataclass(self, kind: type) -> Shape:
        if (known := self._dataclasses.get(kind)) is not None:
            return known
        fields: dict[str, Shape] = {}
        given = {field.name: field.init for field in dataclasses.fields(kind)}

        def encode(value: Any) -> dict[str, Any]:
            if type(value) is not kind:
                raise Misfit(f"must be {kind.__name__}, not {shown(value)}")
            return {name: _within(f".{name}", shape.encode, getattr(value, name))
                    for name, shape in fields.items()}  # fmt: skip

        def decode(value: Any) -> Any:
            if not isinstance(value, dict):
                raise Misfit(f"must be an object with the fields of {kind.__name__}")
            found = {name: _within(f".{name}", fields[name].decode, part)
                     for name, part in value.items() if name in fields}  # fmt: skip
            try:
                made = kind(**{name: part for name, part in found.items() if given[name]})
            except (TypeError, ValueError) as error:
                raise Misfit(str(error)) from None
            for name, part in found.items():
                if not given[name]:
                    object.__setattr__(made, name, part)
            return made

        shape = Shape(kind.__name__, (kind,), frozenset({"object"}), False, encode, decode)
        self._dataclasses[kind] = shape
        hints = _hints(kind)
        for name in given:
            try:
                fields[name] = self.of(hints[name])
            except Unsupported as error:
                raise Unsupported(f"{kind.__name__}.{name}: {error}") from None
        return shape


def _hints(kind: type) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError) as error:
        raise Unsupported(
            f"the types of the fields of {kind.__name__} are not known: {error}; define them at "
            "the top of a module"
        ) from None
    for name, hint in hints.items():
        if isinstance(hint, dataclasses.InitVar):
            raise Unsupported(f"{kind.__name__}.{name} is an InitVar, which objects do not keep")
    return hints


def _name(hint: Any) -> str:
    if hint is type(None):
        return "None"
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def _within(path: str, convert: _Convert, value: Any) -> Any:
    try:
        return convert(value)
    except Misfit as error:
        raise error.below(path) from None


def _check(value: Any, classes: tuple[type, ...], name: str) -> None:
    if not isinstance(value, classes):
        raise Misfit(f"must be {name}, not {shown(value)}")


def _plain(name: str, classes: tuple[type, ...], kinds: frozenset[str]) -> Shape:
    def same(value: Any) -> Any:
        _check(value, classes, name)
        return value

    return Shape(name, classes, kinds, True, same, same)


def _same(value: Any) -> Any:
    return value


def _value_of_json(value: Any) -> Any:
    """Return the value; raise Misfit if JSON cannot express it, or would change it."""
    if isinstance(value, list):
        for i, part in enumerate(value):
            _within(f"[{i}]", _value_of_json, part)
    elif isinstance(value, dict):
        for key, part in value.items():
            _check(key, (str,), "str as a key")
            _within(f"[{key!r}]", _value_of_json, part)
    elif value is not None and not isinstance(value, int | float | str):
        raise Misfit(f"{shown(value)} cannot be written as JSON and read back")
    return value


def _constants(name: str, values: list[tuple[Any, Any]]) -> Shape:
    """Return the shape of some constants, each of which stands for one plain value."""
    if not all(type(value) in _PLAIN for _, value in values):
        raise Unsupported(f"{name} has values that are no texts or numbers")
    by_value = {(type(value), value): constant for constant, value in values}

    def encode(value: Any) -> Any:
        for constant, plain in values:
            if value is constant or (type(value) is type(constant) and value == constant):
                return plain
        raise Misfit(f"must be one of {name}, not {shown(value)}")

    def decode(value: Any) -> Any:
        try:
            return by_value[type(value), value]
        except (KeyError, TypeError):
            raise Misfit(f"must be one of {name}, not {shown(value)}") from None

    kinds = frozenset().union(*(_PLAIN[type(value)][1] for _, value in values))
    classes = tuple({type(constant) for constant, _ in values})
    return Shape(name, classes, kinds, all(k is v for k, v in values), encode, decode)


def _array(name: str, kind: type, item: Shape) -> Shape:
    def encode(value: Any) -> list[Any]:
        _check(value, (kind,), name)
        return [_within(f"[{i}]", item.encode, part) for i, part in enumerate(value)]

    def decode(value: Any) -> Any:
        _check(value, (list,), "an array")
        items = [_within(f"[{i}]", item.decode, part) for i, part in enumerate(value)]
        try:
            return kind(items)
        except TypeError as error:  # a set of lists
            raise Misfit(str(error)) from None

    return Shape(name, (kind,), frozenset({"array"}), False, encode, decode)


def _fixed(name: str, items: list[Shape]) -> Shape:
    def each(value: Any, converts: list[_Convert]) -> list[Any]:
        if len(value) != len(converts):
            raise Misfit(f"must have {len(converts)} items, not {len(value)}")
        return [
            _within(f"[{i}]", convert, part)
            for i, (convert, part) in enumerate(zip(converts, value, strict=True))
        ]

    def encode(value: Any) -> list[Any]:
        _check(value, (tuple,), name)
        return each(value, [item.encode for item in items])

    def decode(value: Any) -> tuple[Any, ...]:
        _check(value, (list,), "an array")
        return tuple(each(value, [item.decode for item in items]))

    return Shape(name, (tuple,), frozenset({"array"}), False, encode, decode)


def _object(name: str, item: Shape) -> Shape:
    def each(value: Any, convert: _Convert) -> dict[str, Any]:
        _check(value, (dict,), name)
        for key in value:
            _check(key, (str,), "str as a key")
        return {key: _within(f"[{key!r}]", convert, part) for key, part in value.items()}

    def encode(value: Any) -> dict[str, Any]:
        return each(value, item.encode)

    def decode(value: Any) -> dict[str, Any]:
        return each(value, item.decode)

    return Shape(name, (dict,), frozenset({"object"}), False, encode, decode)


def _union(shapes: list[Shape]) -> Shape:
    """Return the shape of values of several types, which JSON must be able to tell apart."""
    for i, one in enumerate(shapes):
        for other in shapes[:i]:
            if one.kinds & other.kinds and not (one.is_plain and other.is_plain):
                raise Unsupported(f"JSON cannot tell {other.name} from {one.name}")
    name = " | ".join(shape.name for shape in shapes)

    def encode(value: Any) -> Any:
        return _first(value, [shape.encode for shape in shapes if isinstance(value, shape.classes)])

    def decode(value: Any) -> Any:
        kind = _kind_of(value)
        return _first(value, [shape.decode for shape in shapes if kind in shape.kinds])

    def _first(value: Any, converts: list[_Convert]) -> Any:
        for i, convert in enumerate(converts):
            try:
                return convert(value)
            except Misfit:
                if i == len(converts) - 1:
                    raise
        raise Misfit(f"must be {name}, not {shown(value)}")

    classes = tuple(kind for shape in shapes for kind in shape.classes)
    kinds = frozenset().union(*(shape.kinds for shape in shapes))
    return Shape(name, classes, kinds, all(s.is_plain for s in shapes), encode, decode)


def _kind_of(value: Any) -> str:
    """Return the kind of a JSON value."""
    if value is None:
        return "null"
    for classes, kind in (
        (bool, "boolean"),
        ((int, float), "number"),
        (str, "string"),
        (list, "array"),
    ):
        if isinstance(value, classes):
            return kind
    return "object"

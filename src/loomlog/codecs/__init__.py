"""Codecs: how the values of a log become bytes, for `cluster.log("orders", codec=JSON)`.

A codec is any object with `encode` and `decode`; those here cover the usual cases.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from loomlog.codecs.dataclass_json import DataclassShape, Misfit, Unsupported
from loomlog.errors import Corrupt, InvalidArgument, shown

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
D = TypeVar("D")


class Codec(Protocol[T]):
    """Turns values into bytes and back."""

    def encode(self, value: T) -> bytes:
        """Return the bytes of a value; raise InvalidArgument if it has none."""

    def decode(self, data: bytes) -> T:
        """Return the value; raise Corrupt if the bytes are not those of one."""


class JsonCodec:
    """Values that JSON can express, as compact UTF-8 text. Tuples become lists, and the keys of
    dicts become texts."""

    def encode(self, value: Any) -> bytes:
        try:
            return json.dumps(
                value, separators=(",", ":"), ensure_ascii=False, allow_nan=False
            ).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"the value cannot be written as JSON: {error}") from None

    def decode(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Corrupt(f"the value is not JSON: {error}") from None


JSON: Final = JsonCodec()


class MsgpackCodec:
    """Values that MessagePack can express; tuples become lists. Needs the package msgpack."""

    def __init__(self) -> None:
        try:
            self._msgpack: Any = importlib.import_module("msgpack")
        except ImportError:
            raise InvalidArgument("MessagePack needs the package msgpack: install it") from None

    def encode(self, value: Any) -> bytes:
        try:
            return bytes(self._msgpack.packb(value))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgument(f"the value cannot be written as MessagePack: {error}") from None

    def decode(self, data: bytes) -> Any:
        try:
            return self._msgpack.unpackb(data, strict_map_key=False)
        except Exception as error:  # msgpack has many kinds
            raise Corrupt(f"the value is not MessagePack: {error}") from None


class DataclassCodec(Generic[D]):
    """Objects of one dataclass, as a JSON object. Fields that are missing get their defaults, and
    unknown ones are passed over, so that the class may grow.

    A field is None, bool, int, float, str, an Enum, a Literal, a dataclass, a list, tuple, set or
    frozenset of those, a dict of them with texts as keys, a union that JSON can tell apart, or Any:
    whatever JSON can express. Other types are refused here, and other values by `encode`."""

    def __init__(self, kind: type[D]) -> None:
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            raise InvalidArgument(f"{kind!r} is no dataclass")
        self._kind = kind
        try:
            self._shape = DataclassShape(kind)
        except Unsupported as error:
            raise InvalidArgument(f"{error}; PydanticCodec knows more types") from None

    def encode(self, value: D) -> bytes:
        if type(value) is not self._kind:
            raise InvalidArgument(f"the log takes {self._kind.__name__}, not {shown(value)}")
        try:
            return JSON.encode(self._shape.encode(value))
        except (Misfit, RecursionError) as error:
            raise InvalidArgument(f"the value is no {self._kind.__name__}: {error}") from None

    def decode(self, data: bytes) -> D:
        found = JSON.decode(data)
        try:
            return self._shape.decode(found)
        except (Misfit, RecursionError) as error:
            raise Corrupt(f"the value is no {self._kind.__name__}: {error}") from None


_PYDANTIC_MIN: Final = (2, 11)  # before that, names could not be read instead of aliases


class PydanticCodec(Generic[D]):
    """Objects of one pydantic model, as JSON; checked when they are read. Needs pydantic 2.11.
    Names are those of fields, not their aliases. What pydantic does not write is not read back:
    excluded and private fields, and those that a subclass adds; NaN and infinity become null."""

    def __init__(self, kind: type[D]) -> None:
        try:
            self._pydantic: Any = importlib.import_module("pydantic")
        except ImportError:
            raise InvalidArgument("this codec needs the package pydantic: install it") from None
        version = str(self._pydantic.VERSION)
        if tuple(map(int, version.split(".")[:2])) < _PYDANTIC_MIN:
            raise InvalidArgument(f"this codec needs pydantic 2.11 or later, not {version}")
        if not (isinstance(kind, type) and issubclass(kind, self._pydantic.BaseModel)):
            raise InvalidArgument(f"{kind!r} is no pydantic model")
        self._kind: Any = kind

    def encode(self, value: D) -> bytes:
        kind = self._kind
        if type(value) is not kind:
            raise InvalidArgument(f"the log takes {kind.__name__}, not {shown(value)}")
        try:
            text = self._kind.model_dump_json(
                value, by_alias=False, round_trip=True, warnings="error"
            )
        except (ValueError, TypeError, RecursionError) as error:
            why = " ".join(str(error).split())
            raise InvalidArgument(f"the value cannot be written as JSON: {why}") from None
        return str(text).encode()

    def decode(self, data: bytes) -> D:
        try:
            return self._kind.model_validate_json(  # type: ignore[no-any-return]
                data, by_alias=True, by_name=True
            )
        except (ValueError, RecursionError) as error:
            text = " ".join(str(error).split())
            raise Corrupt(f"the value is no {self._kind.__name__}: {text}") from None


class ArrowCodec:
    """Record batches of one Arrow schema, each as one entry in Arrow's IPC format. The schema is
    not stored, so all programs must use the same."""

    def __init__(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        if not isinstance(schema, pa.Schema):
            raise InvalidArgument(f"schema must be a pyarrow.Schema, not {shown(schema)}")
        for field in schema:
            if _has_dictionary(field.type):
                raise InvalidArgument(
                    f"column {field.name!r} has a dictionary, which entries do not hold: cast it"
                )
        self._schema = schema

    def encode(self, value: pa.RecordBatch) -> bytes:
        import pyarrow as pa

        if not isinstance(value, pa.RecordBatch):
            raise InvalidArgument(f"the value must be a pyarrow.RecordBatch, not {shown(value)}")
        if not value.schema.equals(self._schema):
            raise InvalidArgument(f"the batch has another schema: {value.schema.names}")
        return value.serialize().to_pybytes()  # type: ignore[no-any-return]

    def decode(self, data: bytes) -> pa.RecordBatch:
        import pyarrow as pa

        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), self._schema)
            batch.validate(full=True)  # another schema would read beyond the ends of buffers
            return batch
        except (pa.ArrowException, OSError, EOFError) as error:
            text = " ".join(str(error).split())
            raise Corrupt(f"the value is no batch of this schema: {text}") from None


def _has_dictionary(kind: pa.DataType) -> bool:
    import pyarrow as pa

    inner = (kind.field(i).type for i in range(kind.num_fields))
    return pa.types.is_dictionary(kind) or any(map(_has_dictionary, inner))

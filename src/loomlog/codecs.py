"""Codecs: how the values of a log become bytes, for `cluster.log("orders", codec=JSON)`.

A codec is any object with `encode` and `decode`; those here cover the usual cases.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from loomlog.errors import Corrupt, InvalidArgument

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
    """Values that JSON can express, as compact UTF-8 text."""

    def encode(self, value: Any) -> bytes:
        try:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"the value cannot be written as JSON: {error}") from None

    def decode(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except ValueError as error:
            raise Corrupt(f"the value is not JSON: {error}") from None


JSON: Final = JsonCodec()


class MsgpackCodec:
    """Values that MessagePack can express. Needs the package msgpack."""

    def __init__(self) -> None:
        try:
            self._msgpack: Any = importlib.import_module("msgpack")
        except ImportError:
            raise InvalidArgument("MessagePack needs the package msgpack: install it") from None

    def encode(self, value: Any) -> bytes:
        try:
            return bytes(self._msgpack.packb(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(f"the value cannot be written as MessagePack: {error}") from None

    def decode(self, data: bytes) -> Any:
        try:
            return self._msgpack.unpackb(data)
        except Exception as error:  # msgpack has many kinds
            raise Corrupt(f"the value is not MessagePack: {error}") from None


class DataclassCodec(Generic[D]):
    """Objects of one dataclass whose fields JSON can express, as a JSON object. Fields that are
    missing get their defaults, and unknown ones are passed over, so that the class may grow."""

    def __init__(self, kind: type[D]) -> None:
        if not dataclasses.is_dataclass(kind):
            raise InvalidArgument(f"{kind!r} is no dataclass")
        self._kind = kind
        self._names = {field.name for field in dataclasses.fields(kind) if field.init}

    def encode(self, value: D) -> bytes:
        if not isinstance(value, self._kind):
            raise InvalidArgument(f"the log takes {self._kind.__name__}, not {value!r}")
        return JSON.encode(dataclasses.asdict(value))  # type: ignore[call-overload]

    def decode(self, data: bytes) -> D:
        fields = JSON.decode(data)
        try:
            known = {name: value for name, value in fields.items() if name in self._names}
            return self._kind(**known)
        except (AttributeError, TypeError, ValueError) as error:
            raise Corrupt(f"the value is no {self._kind.__name__}: {error}") from None


class ArrowCodec:
    """Record batches of one Arrow schema, each as one entry in Arrow's IPC format."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def encode(self, value: pa.RecordBatch) -> bytes:
        if not value.schema.equals(self._schema):
            raise InvalidArgument(f"the batch has another schema: {value.schema.names}")
        return value.serialize().to_pybytes()  # type: ignore[no-any-return]

    def decode(self, data: bytes) -> pa.RecordBatch:
        import pyarrow as pa

        try:
            return pa.ipc.read_record_batch(pa.py_buffer(data), self._schema)
        except (pa.ArrowException, OSError) as error:
            text = " ".join(str(error).split())
            raise Corrupt(f"the value is no batch of this schema: {text}") from None

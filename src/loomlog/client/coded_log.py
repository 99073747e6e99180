"""Logs whose values are objects: a codec converts them to bytes and back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar, Unpack

from loomlog.client.append.options import AppendArguments, AppendManyArguments
from loomlog.client.arguments import check_kind
from loomlog.client.log import Log
from loomlog.codecs import Codec
from loomlog.errors import Corrupt, InvalidArgument, shown
from loomlog.types import NO_HEADERS, Buffer, Entry, Glsn, Position, StreamId, moment_of

T = TypeVar("T")


class CodedEntry(NamedTuple, Generic[T]):
    """An entry whose value was decoded."""

    position: Glsn
    stream: StreamId
    llsn: int
    timestamp_us: int
    key: bytes | None
    value: T
    headers: Mapping[str, bytes] = NO_HEADERS

    @property
    def timestamp(self) -> datetime:
        """When the writer appended the entry, in UTC."""
        return moment_of(self.timestamp_us)


class CodedLog(Generic[T]):
    """A log with a codec, as returned by `Cluster.log(name, codec=…)`. The attribute `bytes` is the
    log itself, for all other methods."""

    def __init__(self, log: Log, codec: Codec[T]) -> None:
        self.name = log.name
        self.bytes = log
        self._codec = check_codec(codec)

    def __repr__(self) -> str:
        return f"<CodedLog {self.name!r}>"

    def append(
        self,
        value: T,
        key: Buffer | None = None,
        **arguments: Unpack[AppendArguments],
    ) -> Awaitable[Position]:
        """Encode and append one value, and return an awaitable of its position. The other arguments
        and the errors are those of `Log.append`."""
        return self.bytes.append(self._codec.encode(value), key, **arguments)

    async def append_many(
        self,
        values: Iterable[T],
        keys: Iterable[Buffer | None] | None = None,
        **arguments: Unpack[AppendManyArguments],
    ) -> list[Position]:
        """Encode several values, append them atomically and return their consecutive positions. The
        other arguments and the errors are those of `Log.append_many`."""
        encoded = encode_all(self._codec, values)
        return await self.bytes.append_many(encoded, keys, **arguments)

    async def read(self, position: Glsn) -> CodedEntry[T]:
        """Return the entry at `position`, decoded; see `Log.read`. Raise Corrupt if its value
        cannot be decoded."""
        return self.decode(await self.bytes.read(position))

    async def subscribe(
        self, start: Glsn | str = 1, stop: Glsn | None = None
    ) -> AsyncGenerator[CodedEntry[T], None]:
        """Yield every entry from `start` to `stop` inclusive, in order and decoded; see
        `Log.subscribe`. Raise Corrupt if a value cannot be decoded."""
        async for entry in self.bytes.subscribe(start, stop):
            yield self.decode(entry)

    def decode(self, entry: Entry) -> CodedEntry[T]:
        """Return an entry of this log, e.g. one that a group delivered, with its value decoded."""
        return decoded(self.name, self._codec, entry)


def check_codec(codec: Codec[T]) -> Codec[T]:
    """Return the codec; raise InvalidArgument if it has no methods `encode` and `decode`."""
    has_methods = all(callable(getattr(codec, name, None)) for name in ("encode", "decode"))
    if not has_methods or isinstance(codec, type):
        raise InvalidArgument(
            f"a codec encodes and decodes, as loomlog.codecs.JSON does, not {shown(codec)}"
        )
    return codec


def encode_all(codec: Codec[T], values: Iterable[T]) -> list[bytes]:
    if not isinstance(values, Iterable):
        raise InvalidArgument(f"values must be a list, not {shown(values)}")
    return [codec.encode(value) for value in values]


def decoded(log: str, codec: Codec[T], entry: Entry) -> CodedEntry[T]:
    check_kind("entry", entry, Entry)
    try:
        value = codec.decode(entry.value)
    except Corrupt as error:
        raise Corrupt(f"position {entry.position} of log {log!r}: {error}") from None
    return CodedEntry(*entry[:5], value, entry.headers)

"""A log whose values are objects, which a codec turns into bytes and back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from loomlog.client.log import Log
from loomlog.codecs import Codec
from loomlog.errors import Corrupt
from loomlog.types import NO_HEADERS, Buffer, Entry, Glsn, Position, StreamId

T = TypeVar("T")


class CodedEntry(NamedTuple, Generic[T]):
    """An entry with a decoded value."""

    position: Glsn
    stream: StreamId
    llsn: int
    timestamp_us: int
    key: bytes | None
    value: T
    headers: Mapping[str, bytes] = NO_HEADERS


class CodedLog(Generic[T]):
    """A log with a codec, as returned by `Cluster.log(name, codec=…)`. `bytes` is the log itself,
    for everything that is not here."""

    def __init__(self, log: Log, codec: Codec[T]) -> None:
        self.name = log.name
        self.bytes = log
        self._codec = codec

    def __repr__(self) -> str:
        return f"<CodedLog {self.name!r}>"

    def append(
        self, value: T, key: Buffer | None = None, *, stream: StreamId | None = None
    ) -> Awaitable[Position]:
        """Append one value and return an awaitable of its position; see `Log.append`."""
        return self.bytes.append(self._codec.encode(value), key, stream=stream)

    async def append_many(
        self,
        values: Iterable[T],
        keys: Iterable[Buffer | None] | None = None,
        *,
        stream: StreamId | None = None,
    ) -> list[Position]:
        """Append several values atomically, at consecutive positions."""
        encoded = [self._codec.encode(value) for value in values]
        return await self.bytes.append_many(encoded, keys, stream=stream)

    async def read(self, position: Glsn) -> CodedEntry[T]:
        """Return the entry at `position`; see `Log.read`."""
        return self.decode(await self.bytes.read(position))

    async def subscribe(
        self, start: Glsn | str = 1, stop: Glsn | None = None
    ) -> AsyncGenerator[CodedEntry[T], None]:
        """Yield every entry from `start` to `stop` inclusive, in order; see `Log.subscribe`."""
        async for entry in self.bytes.subscribe(start, stop):
            yield self.decode(entry)

    def decode(self, entry: Entry) -> CodedEntry[T]:
        """Return an entry of this log, from a group for example, with its value decoded."""
        return decoded(self.name, self._codec, entry)


def decoded(log: str, codec: Codec[T], entry: Entry) -> CodedEntry[T]:
    try:
        value = codec.decode(entry.value)
    except Corrupt as error:
        raise Corrupt(f"position {entry.position} of log {log!r}: {error}") from None
    return CodedEntry(*entry[:5], value, entry.headers)

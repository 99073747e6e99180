"""Logs whose values are objects, for programs without an event loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic, TypeVar, Unpack

from loomlog.client.append.options import AppendArguments, AppendManyArguments
from loomlog.client.blocking.subscriptions import BlockingSubscription
from loomlog.client.coded_log import CodedEntry, check_codec, decoded, encode_all
from loomlog.codecs import Codec
from loomlog.types import Buffer, Entry, Glsn, Position

if TYPE_CHECKING:
    from loomlog.client.blocking import BlockingLog

T = TypeVar("T")


class BlockingCodedLog(Generic[T]):
    """A log with a codec; the blocking form of `CodedLog`."""

    def __init__(self, log: BlockingLog, codec: Codec[T]) -> None:
        self.name = log.name
        self.bytes = log
        self._codec = check_codec(codec)

    def __repr__(self) -> str:
        return f"<BlockingCodedLog {self.name!r}>"

    def append(
        self, value: T, key: Buffer | None = None, **arguments: Unpack[AppendArguments]
    ) -> Position:
        """Encode and append one value, and return its position. The other arguments and the errors
        are those of `Log.append`."""
        return self.bytes.append(self._codec.encode(value), key, **arguments)

    def append_many(
        self,
        values: Iterable[T],
        keys: Iterable[Buffer | None] | None = None,
        **arguments: Unpack[AppendManyArguments],
    ) -> list[Position]:
        """Encode several values, append them atomically and return their consecutive positions. The
        other arguments and the errors are those of `Log.append_many`."""
        return self.bytes.append_many(encode_all(self._codec, values), keys, **arguments)

    def read(self, position: Glsn) -> CodedEntry[T]:
        """Return the entry at `position`, decoded; see `CodedLog.read`."""
        return self.decode(self.bytes.read(position))

    def subscribe(
        self, start: Glsn | str = 1, stop: Glsn | None = None, *, timeout_s: float | None = None
    ) -> BlockingSubscription[CodedEntry[T]]:
        """Like `BlockingLog.subscribe`, but iterate over decoded entries. After a value that cannot
        be decoded, which raises Corrupt, the iteration can be continued."""
        return self.bytes.subscribe(start, stop, timeout_s=timeout_s).map(self.decode)

    def decode(self, entry: Entry) -> CodedEntry[T]:
        """Return an entry of this log, e.g. one that a group delivered, with its value decoded."""
        return decoded(self.name, self._codec, entry)

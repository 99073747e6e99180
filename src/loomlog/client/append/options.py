"""The arguments of one append: its record, where it may go, how long it is tried, and behind which
position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple, TypeAlias, TypedDict

from loomlog import limits
from loomlog.client.append import errors
from loomlog.client.arguments import as_bytes, check_number, check_seconds, check_tail
from loomlog.errors import InvalidArgument
from loomlog.types import Buffer, Glsn, StreamId

Wanted: TypeAlias = StreamId | tuple[StreamId, ...] | None
"""The streams that may take a batch: one, any of several, or any."""


def allows(wanted: Wanted, stream: StreamId) -> bool:
    """Return whether a stream may take batches for `wanted`."""
    return wanted is None or stream in named(wanted)


def named(wanted: StreamId | tuple[StreamId, ...]) -> tuple[StreamId, ...]:
    return wanted if isinstance(wanted, tuple) else (wanted,)


def as_record(log: str, value: Buffer, key: Buffer | None) -> tuple[bytes, bytes | None]:
    """Return the record of an append to a log; raise InvalidArgument if it cannot be one."""
    record = as_bytes("value", value), None if key is None else as_bytes("key", key)
    for name, part in zip(("value", "key"), record, strict=True):
        if part is not None and len(part) > limits.RECORD_BYTES_MAX:
            raise errors.too_large(log, name, len(part))
    return record


class AppendOptions(NamedTuple):
    """The options of one append."""

    wanted: Wanted = None
    timeout_s: float | None = None  # None: that of the settings
    expected_tail: Glsn | None = None  # None: any
    fail_fast: bool = False  # a refusal is raised; otherwise the append is tried again

    @classmethod
    def of(
        cls,
        stream: StreamId | None = None,
        streams: Iterable[StreamId] | None = None,
        timeout_s: float | None = None,
        expected_tail: Glsn | None = None,
        *,
        fail_fast: bool = False,
    ) -> AppendOptions:
        """Check the arguments of a call."""
        wanted: Wanted = stream
        if stream is not None:
            check_number("stream", stream)
        if streams is not None:
            if stream is not None:
                raise InvalidArgument("give stream or streams, not both")
            wanted = _checked(streams)
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s, 0.001)
        if expected_tail is not None:
            check_tail(expected_tail)
        if not isinstance(fail_fast, bool):
            raise InvalidArgument(f"fail_fast must be True or False, not {fail_fast!r:.100}")
        return cls(wanted, timeout_s, expected_tail, fail_fast)


def _checked(streams: Iterable[StreamId]) -> tuple[StreamId, ...]:
    if isinstance(streams, str | bytes) or not isinstance(streams, Iterable):
        raise InvalidArgument(f"streams must be numbers of streams, not {streams!r:.100}")
    found = tuple(streams)
    for stream in found:
        check_number("a stream", stream)
    if not found:
        raise InvalidArgument("streams must name at least one stream")
    return tuple(sorted(set(found)))


class _Options(TypedDict, total=False):
    """The options of an append."""

    stream: StreamId | None
    streams: Iterable[StreamId] | None
    timeout_s: float | None
    expected_tail: Glsn | None
    fail_fast: bool


class AppendArguments(_Options, total=False):
    """The arguments of `Log.append` by name."""

    headers: Mapping[str, bytes] | None
    timestamp: datetime | float | None


class AppendManyArguments(_Options, total=False):
    """The arguments of `Log.append_many` by name."""

    headers: Iterable[Mapping[str, bytes] | None] | None
    timestamps: Iterable[datetime | float] | None

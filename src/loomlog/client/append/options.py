"""The arguments of one append, checked: its record, and the options of `Log.append`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple, TypeAlias, TypedDict

from loomlog import limits
from loomlog.client.append import errors
from loomlog.client.arguments import (
    as_bytes,
    check_flag,
    check_number,
    check_seconds,
    check_tail,
)
from loomlog.errors import InvalidArgument, shown
from loomlog.types import Buffer, Glsn, StreamId

Wanted: TypeAlias = StreamId | tuple[StreamId, ...] | None
"""The streams that may take a batch: one, any of several, or (None) any of the log."""


def allows(wanted: Wanted, stream: StreamId) -> bool:
    """Return whether a stream may take batches for `wanted`."""
    return wanted is None or stream in named(wanted)


def named(wanted: StreamId | tuple[StreamId, ...]) -> tuple[StreamId, ...]:
    return wanted if isinstance(wanted, tuple) else (wanted,)


def as_record(log: str, value: Buffer, key: Buffer | None) -> tuple[bytes, bytes | None]:
    """Return value and key as bytes; raise InvalidArgument if they cannot be a record."""
    record = as_bytes("value", value), None if key is None else as_bytes("key", key)
    for name, part in zip(("value", "key"), record, strict=True):
        if part is not None and len(part) > limits.RECORD_BYTES_MAX:
            raise errors.too_large(log, name, len(part))
    return record


class AppendOptions(NamedTuple):
    """The options of one append."""

    wanted: Wanted = None
    timeout_s: float | None = None  # None: that of the settings
    expected_tail: Glsn | None = None  # None: unconditional
    fail_fast: bool = False  # raise the first refusal instead of retrying

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
        """Return the options; raise InvalidArgument for an invalid one."""
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
        check_flag("fail_fast", fail_fast)
        return cls(wanted, timeout_s, expected_tail, fail_fast)


def _checked(streams: Iterable[StreamId]) -> tuple[StreamId, ...]:
    if isinstance(streams, str | bytes) or not isinstance(streams, Iterable):
        raise InvalidArgument(f"streams must be numbers of streams, not {shown(streams)}")
    streams = tuple(streams)
    for stream in streams:
        check_number("a stream", stream)
    if not streams:
        raise InvalidArgument("streams must name at least one stream")
    return tuple(sorted(set(streams)))


class _Options(TypedDict, total=False):
    """The arguments that `Log.append` and `Log.append_many` have in common."""

    stream: StreamId | None
    streams: Iterable[StreamId] | None
    timeout_s: float | None
    expected_tail: Glsn | None
    fail_fast: bool


class AppendArguments(_Options, total=False):
    """The keyword arguments of `Log.append`."""

    headers: Mapping[str, bytes] | None
    timestamp: datetime | float | None


class AppendManyArguments(_Options, total=False):
    """The keyword arguments of `Log.append_many`, except `keys`."""

    headers: Iterable[Mapping[str, bytes] | None] | None
    timestamps: Iterable[datetime | float] | None

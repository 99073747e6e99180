"""Validation and conversion of arguments: names, numbers, times, durations and sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeGuard, TypeVar

from loomlog import limits
from loomlog.config import parse_size
from loomlog.errors import InvalidArgument, shown
from loomlog.types import Buffer

T = TypeVar("T")

STARTS: Final = ("earliest", "latest")
MEMBER_CHARS_MAX: Final = 100  # every change of a group stores the names of its members
DURATION_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MAX: Final = 1e12  # far beyond any calendar, and within 64 bits as microseconds


def check_name(what: str, name: object) -> str:
    """Return `name`; raise InvalidArgument unless it is a non-empty string that can be encoded as
    UTF-8, unlike command-line arguments with surrogate escapes."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"{what} must be a non-empty text, not {shown(name)}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} must be valid UTF-8, not {shown(name)}") from None
    return name


def check_text(what: str, text: object) -> str:
    """Return `text`, which may be empty; raise InvalidArgument unless it is a printable string."""
    if not isinstance(text, str) or not text.isprintable():  # surrogates are not printable
        raise InvalidArgument(f"{what} must be a printable text, not {shown(text)}")
    return text


def check_each(what: str, items: Iterable[T], kind: type) -> list[T]:
    """Return the items as a list; raise InvalidArgument unless each is of type `kind`."""
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise InvalidArgument(f"{what} must be a list, not {shown(items)}")
    items = list(items)
    for item in items:
        check_kind(f"each of {what}", item, kind)
    return items


def check_kind(what: str, value: object, kind: type) -> None:
    """Raise InvalidArgument unless `value` is of type `kind`; a bool does not count as a number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InvalidArgument(f"{what} must be of type {kind.__name__}, not {shown(value)}")


def is_name(name: object, chars_max: int) -> TypeGuard[str]:
    """Return whether `name` is a string of 1 to `chars_max` printable characters."""
    return isinstance(name, str) and 1 <= len(name) <= chars_max and name.isprintable()


def check_member(name: object) -> None:
    """Raise InvalidArgument unless `name` is None or can be the name of a member."""
    if name is not None and not is_name(name, MEMBER_CHARS_MAX):
        raise InvalidArgument(
            f"member must be a text of 1 to {MEMBER_CHARS_MAX} printable characters, "
            f"not {shown(name)}"
        )


def check_number(name: str, number: object, *words: str) -> None:
    """Raise InvalidArgument unless `number` is an int from 1 to POSITION_MAX. `words` are other
    valid values, for the message."""
    if not is_int(number) or not 1 <= number <= limits.POSITION_MAX:
        others = "".join(f" or {word!r}" for word in words)
        raise InvalidArgument(
            f"{name} must be a number from 1 to {limits.POSITION_MAX}{others}, not {shown(number)}"
        )


def check_count(name: str, count: object, most: int) -> int:
    """Return `count`; raise InvalidArgument unless it is an int from 1 to `most`."""
    if not is_int(count) or not 1 <= count <= most:
        raise InvalidArgument(f"{name} must be a number from 1 to {most}, not {shown(count)}")
    return count


def check_flag(name: str, flag: object) -> None:
    """Raise InvalidArgument unless `flag` is a bool, since any non-empty string would be true."""
    if not isinstance(flag, bool):
        raise InvalidArgument(f"{name} must be True or False, not {shown(flag)}")


def check_tail(tail: object, name: str = "expected_tail") -> None:
    """Raise InvalidArgument unless `tail` is a position, or 0 as in an empty log."""
    if not is_int(tail) or not 0 <= tail <= limits.POSITION_MAX:
        raise InvalidArgument(
            f"{name} must be a position, or 0 for an empty log, not {shown(tail)}"
        )


def check_seconds(name: str, seconds: object, least: float, most: float = 3600.0) -> None:
    """Raise InvalidArgument unless `seconds` is a number from `least` to `most`."""
    if not is_number(seconds) or not least <= seconds <= most:  # type: ignore[operator]
        raise InvalidArgument(
            f"{name} must be seconds from {least:.10g} to {most:.10g}, not {shown(seconds)}"
        )


def is_int(value: object) -> TypeGuard[int]:
    """Return whether `value` is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether `value` is an int or a float, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def timestamp_us(moment: datetime | float) -> int:
    """Return a datetime with a time zone, or seconds since 1970, as microseconds since 1970."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidArgument(f"{moment} has no time zone: give one, e.g. tzinfo=datetime.UTC")
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if not is_number(moment) or not abs(moment) <= _SECONDS_MAX:
        raise InvalidArgument(f"a time is a datetime or seconds since 1970, not {shown(moment)}")
    return round(moment * 1_000_000)


def retention_s(retention: str | float | None) -> int:
    """Return whole seconds, given a duration such as "7d" or a number of seconds; 0 for None."""
    if retention is None:
        return 0
    seconds = duration_s(retention) if isinstance(retention, str) else retention
    if not is_number(seconds) or not 1 <= seconds <= limits.RETENTION_S_MAX:
        raise InvalidArgument(
            'entries are retained for a second to a hundred years, as in "7d", '
            f"not {shown(retention)}"
        )
    return math.ceil(seconds)


def retention_bytes(retention: str | int | None) -> int:
    """Return bytes, given a size such as "10G" or a number of bytes; 0 for None."""
    if retention is None:
        return 0
    size = parse_size(retention) if isinstance(retention, str) else retention
    most = limits.RETENTION_BYTES_MAX
    if not is_int(size) or not limits.RETENTION_BYTES_MIN <= size <= most:
        raise InvalidArgument(
            f'1 MiB to 1 EiB are retained, as in "10G" or a number of bytes, not {shown(retention)}'
        )
    return size


def duration_s(text: str) -> float:
    """Return the seconds of a duration such as "7d"; the units are s, m, h, d and w."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if parts is None:
        raise InvalidArgument(
            f"{shown(text)} is not a duration: write a number with s, m, h, d or w"
        )
    return float(parts[1]) * DURATION_UNITS[parts[2]]


def ago(text: str) -> datetime:
    """Return the time that is a duration such as "7d" ago."""
    try:
        return datetime.now(UTC) - timedelta(seconds=duration_s(text))
    except OverflowError:
        raise InvalidArgument(f"{text!r} ago is before the first year of the calendar") from None


def as_bytes(name: str, value: Buffer) -> bytes:
    """Return immutable bytes, so that the caller cannot change them before they are sent."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidArgument(f"{name} must be bytes, not {type(value).__name__}; encode it first")

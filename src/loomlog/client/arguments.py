"""Validates and converts names, numbers, times and durations given by callers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeGuard, TypeVar

from loomlog import limits
from loomlog.config import parse_size
from loomlog.errors import InvalidArgument
from loomlog.types import Buffer

T = TypeVar("T")

STARTS: Final = ("earliest", "latest")


def check_name(what: str, name: object) -> str:
    """Return the name; raise InvalidArgument unless it is text that can be encoded as UTF-8, which
    command-line arguments with surrogate escapes cannot."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"{what} must be a non-empty text, not {name!r:.100}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} must be valid UTF-8, not {name!r:.100}") from None
    return name


def check_text(what: str, text: object) -> str:
    """Return the text, which may be empty; raise InvalidArgument unless it is printable."""
    if not isinstance(text, str) or not text.isprintable():  # surrogates are not
        raise InvalidArgument(f"{what} must be a printable text, not {text!r:.100}")
    return text


def check_each(what: str, items: Iterable[T], kind: type) -> list[T]:
    """Return the items of a list; raise InvalidArgument unless each is of this kind."""
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise InvalidArgument(f"{what} must be a list, not {items!r:.100}")
    found = list(items)
    for item in found:
        check_kind(f"each of {what}", item, kind)
    return found


def check_kind(what: str, value: object, kind: type) -> None:
    """Raise InvalidArgument unless the value is of this kind; a bool counts as no number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InvalidArgument(f"{what} must be of type {kind.__name__}, not {value!r:.100}")


def is_name(name: object, chars_max: int) -> TypeGuard[str]:
    """Return whether it is a text of 1 to `chars_max` printable characters."""
    return isinstance(name, str) and 1 <= len(name) <= chars_max and name.isprintable()


def check_member(name: object) -> None:
    """Raise InvalidArgument unless it can be the name of a member, or None."""
    if name is not None and not is_name(name, MEMBER_CHARS_MAX):
        raise InvalidArgument(
            f"member must be a text of 1 to {MEMBER_CHARS_MAX} printable characters, "
            f"not {name!r:.100}"
        )


def check_number(name: str, number: object, *words: str) -> None:
    """Raise InvalidArgument unless `number` is a position; `words` are other values allowed."""
    if not is_int(number) or not 1 <= number <= limits.POSITION_MAX:
        others = "".join(f" or {word!r}" for word in words)
        raise InvalidArgument(
            f"{name} must be a number from 1 to {limits.POSITION_MAX}{others}, not {number!r:.100}"
        )


def check_flag(name: str, flag: object) -> None:
    """Raise InvalidArgument unless it is a bool: any text would count as True."""
    if not isinstance(flag, bool):
        raise InvalidArgument(f"{name} must be True or False, not {flag!r:.100}")


def check_tail(tail: object, name: str = "expected_tail") -> None:
    """Raise InvalidArgument unless it can be the tail of a log; 0 is that of an empty one."""
    if not is_int(tail) or not 0 <= tail <= limits.POSITION_MAX:
        raise InvalidArgument(
            f"{name} must be a position, or 0 for an empty log, not {tail!r:.100}"
        )


def check_seconds(name: str, seconds: object, least: float, most: float = 3600.0) -> None:
    """Raise InvalidArgument unless `seconds` is a number from `least` to `most`."""
    if not is_number(seconds) or not least <= seconds <= most:  # type: ignore[operator]
        raise InvalidArgument(
            f"{name} must be seconds from {least:g} to {most:g}, not {seconds!r:.100}"
        )


def is_int(value: object) -> TypeGuard[int]:
    """Return whether it is an int; a bool counts as none."""
    return isinstance(value, int) and not isinstance(value, bool)


MEMBER_CHARS_MAX: Final = 100  # every change of a group stores the names of its members
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MAX: Final = 1e12  # far beyond any calendar, and within 64 bits as microseconds
DURATION_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def timestamp_us(moment: datetime | float) -> int:
    """Return microseconds since 1970 for a datetime with a time zone or seconds since 1970."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidArgument(f"{moment} has no time zone: give one, e.g. tzinfo=datetime.UTC")
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if not is_number(moment) or not abs(moment) <= _SECONDS_MAX:
        raise InvalidArgument(f"a time is a datetime or seconds since 1970, not {moment!r:.100}")
    return round(moment * 1_000_000)


def retention_s(retention: str | float | None) -> int:
    """Return whole seconds for "7d" (s, m, h, d, w) or a number of seconds; 0 for None."""
    if retention is None:
        return 0
    seconds = duration_s(retention) if isinstance(retention, str) else retention
    if not is_number(seconds) or not 1 <= seconds <= limits.RETENTION_S_MAX:
        raise InvalidArgument(
            'entries are retained for a second to a hundred years, as in "7d", '
            f"not {retention!r:.100}"
        )
    return math.ceil(seconds)


def retention_bytes(retention: str | int | None) -> int:
    """Return the bytes of "10G" (K, M, G, T: powers of 1024) or a number; 0 for None."""
    if retention is None:
        return 0
    size = parse_size(retention) if isinstance(retention, str) else retention
    most = limits.RETENTION_BYTES_MAX
    if not is_int(size) or not limits.RETENTION_BYTES_MIN <= size <= most:
        raise InvalidArgument(
            f'1 MiB to 1 EiB are retained, as in "10G" or a number of bytes, not {retention!r:.100}'
        )
    return size


def duration_s(text: str) -> float:
    """Return the seconds of a duration such as "7d"."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if parts is None:
        raise InvalidArgument(
            f"{text!r:.100} is not a duration: write a number with s, m, h, d or w"
        )
    return float(parts[1]) * DURATION_UNITS[parts[2]]


def ago(text: str) -> datetime:
    """Return the moment that is a duration such as "7d" before now."""
    try:
        return datetime.now(UTC) - timedelta(seconds=duration_s(text))
    except OverflowError:
        raise InvalidArgument(f"{text!r} ago is before the first year of the calendar") from None


def is_number(value: object) -> bool:
    """Return whether it is an int or a float; a bool counts as none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_bytes(name: str, given: Buffer) -> bytes:
    """Return bytes that the caller cannot change before they are sent."""
    if isinstance(given, bytes):
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise InvalidArgument(f"{name} must be bytes, not {type(given).__name__}; encode it first")

"""Validates and converts names, numbers, times and durations given by callers."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final, TypeGuard

from loomlog import limits
from loomlog.errors import InvalidArgument

STARTS: Final = ("earliest", "latest")
POSITION_MAX: Final = (1 << 63) - 1


def check_name(what: str, name: object) -> str:
    """Return the name; raise InvalidArgument unless it is text that can be encoded as UTF-8, which
    command-line arguments with surrogate escapes cannot."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"{what} must be a non-empty text, not {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} must be valid UTF-8, not {name!r}") from None
    return name


def check_number(name: str, number: object, *words: str) -> None:
    """Raise InvalidArgument unless `number` is a position; `words` are other values allowed."""
    if not is_int(number) or not 1 <= number <= POSITION_MAX:
        others = "".join(f" or {word!r}" for word in words)
        raise InvalidArgument(
            f"{name} must be a number from 1 to {POSITION_MAX}{others}, not {number!r}"
        )


def check_seconds(name: str, seconds: object, least: float, most: float = 3600.0) -> None:
    """Raise InvalidArgument unless `seconds` is a number from `least` to `most`."""
    if not _is_number(seconds) or not least <= seconds <= most:  # type: ignore[operator]
        raise InvalidArgument(f"{name} must be seconds from {least:g} to {most:g}, not {seconds!r}")


def is_int(value: object) -> TypeGuard[int]:
    """Return whether it is an int; a bool counts as none."""
    return isinstance(value, int) and not isinstance(value, bool)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MAX: Final = 1e12  # far beyond any calendar, and within 64 bits as microseconds
DURATION_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def timestamp_us(moment: datetime | float) -> int:
    """Return microseconds since 1970 for a datetime with a time zone or seconds since 1970."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidArgument(f"{moment} has no time zone: give one, e.g. tzinfo=datetime.UTC")
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if not _is_number(moment) or not abs(moment) <= _SECONDS_MAX:
        raise InvalidArgument(f"a time is a datetime or seconds since 1970, not {moment!r}")
    return round(moment * 1_000_000)


def retention_s(retention: str | float | None) -> int:
    """Return whole seconds for "7d" (s, m, h, d, w) or a number of seconds; 0 for None."""
    if retention is None:
        return 0
    seconds = duration_s(retention) if isinstance(retention, str) else retention
    if not _is_number(seconds) or not 1 <= seconds <= limits.RETENTION_S_MAX:
        raise InvalidArgument(
            f'entries are retained for a second to a hundred years, as in "7d", not {retention!r}'
        )
    return math.ceil(seconds)


def duration_s(text: str) -> float:
    """Return the seconds of a duration such as "7d"."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if parts is None:
        raise InvalidArgument(f"{text!r} is not a duration: write a number with s, m, h, d or w")
    return float(parts[1]) * DURATION_UNITS[parts[2]]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

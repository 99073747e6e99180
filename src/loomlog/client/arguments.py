"""Validation of names and numbers given by callers."""

from __future__ import annotations

from typing import Final

from loomlog.errors import InvalidArgument

STARTS: Final = ("earliest", "latest")
_NUMBER_MAX: Final = (1 << 63) - 1


def check_name(what: str, name: object) -> str:
    """Return the name; raise InvalidArgument unless it is text that can be encoded as UTF-8, which
    command-line arguments with surrogate escapes cannot."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"{what} is a text that is not empty, not {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} must be valid UTF-8, not {name!r}") from None
    return name


def check_number(name: str, number: object, *words: str) -> None:
    """Raise InvalidArgument unless `number` is a position; `words` are other values allowed."""
    if not isinstance(number, int) or not 1 <= number <= _NUMBER_MAX:
        others = "".join(f" or {word!r}" for word in words)
        raise InvalidArgument(f"{name} must be a number from 1 on{others}, not {number!r}")

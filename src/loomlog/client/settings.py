"""Validation of client settings, before the client connects."""

from __future__ import annotations

import math
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypedDict

from loomlog import limits
from loomlog.batch import COMPRESSIONS, Compression
from loomlog.config import ClientSettings
from loomlog.errors import InvalidArgument, shown


class ClientOptions(TypedDict, total=False):
    """The settings of `connect` as keyword arguments: the fields of ClientSettings, and
    `token_file`."""

    tls: str | None
    compression: Compression | Literal["log"]
    append_batch_bytes: int
    appends_in_flight_max: int
    append_buffer_bytes_max: int
    append_timeout_s: float
    retry: Literal["exactly-once", "at-once"]
    request_timeout_s: float
    connect_timeout_s: float
    read_ahead_bytes: int
    spin_s: float
    hole_timeout_s: float
    token: str
    token_file: str


class _Bounds(NamedTuple):
    least: float
    most: float = math.inf
    whole: bool = True

    def __contains__(self, value: object) -> bool:
        kinds = int if self.whole else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool):
            return False
        return self.least <= value <= self.most  # False for NaN

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number of seconds"
        return f"{kind} from {self.least:g}" + (
            f" to {self.most:.0f}" if self.most < math.inf else ""
        )


_SECONDS: Final = _Bounds(0.001, limits.CLIENT_TIMEOUT_S_MAX, whole=False)
_SECONDS_OR_0: Final = _SECONDS._replace(least=0)
_BYTES: Final = _Bounds(1)
_NUMBERS: Final = {
    "append_batch_bytes": _Bounds(1, limits.BATCH_BYTES_MAX),
    # A stream remembers only this many batches of a producer to detect duplicates.
    "appends_in_flight_max": _Bounds(1, limits.APPENDS_IN_FLIGHT_MAX),
    "append_buffer_bytes_max": _BYTES,
    "append_timeout_s": _SECONDS,
    "request_timeout_s": _SECONDS,
    "connect_timeout_s": _SECONDS,
    "read_ahead_bytes": _BYTES,
    "spin_s": _SECONDS_OR_0,
    "hole_timeout_s": _SECONDS_OR_0,
}
_CHOICES: Final = {
    "compression": ("log", *COMPRESSIONS),
    "retry": ("exactly-once", "at-once"),
}
_NAMES: Final = frozenset({*(field.name for field in fields(ClientSettings)), "token_file"})


def checked_settings(given: ClientOptions) -> ClientSettings:
    """Return the settings; raise InvalidArgument for the first invalid one."""
    options: dict[str, Any] = dict(given)
    unknown = sorted(set(options) - _NAMES)
    if unknown:
        raise InvalidArgument(
            f"no setting {', '.join(unknown)}; there are {', '.join(sorted(_NAMES))}"
        )
    path = options.pop("token_file", "")
    token = options.pop("token", "") or (read_token(path) if path else _environment_token())
    if not isinstance(token, str) or not token.isascii():
        raise InvalidArgument("token must be the text that `loom token create` printed")
    for name, value in options.items():
        _check(name, value)
    return ClientSettings(**options, token=token.strip())


def _environment_token() -> str:
    """Return the token in LOOM_TOKEN, or in the file that LOOM_TOKEN_FILE names."""
    if token := os.environ.get("LOOM_TOKEN"):
        return token
    path = os.environ.get("LOOM_TOKEN_FILE")
    return read_token(path) if path else ""


def read_token(path: str | Path) -> str:
    """Return the token in a file; raise InvalidArgument if other users may read the file."""
    try:
        with open(path) as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            token = file.read().strip()
    except (OSError, UnicodeError):
        raise InvalidArgument(f"the token file {path} cannot be read") from None
    if mode & 0o077:
        raise InvalidArgument(
            f"the token file {path} may be read by others (mode {mode:03o}): chmod 600 {path}"
        )
    if not token:
        raise InvalidArgument(f"the token file {path} is empty")
    return token


def _check(name: str, value: object) -> None:
    if name == "tls":
        if value is not None and not isinstance(value, str):
            raise InvalidArgument(f"tls must be a directory or a file, not {shown(value)}")
        return
    choices = _CHOICES.get(name)
    if choices is None:
        if value not in _NUMBERS[name]:
            raise InvalidArgument(f"{name} must be {_NUMBERS[name]}, not {shown(value)}")
    elif value not in choices:
        raise InvalidArgument(f"no {name} {value!r}; use one of {', '.join(choices)}")

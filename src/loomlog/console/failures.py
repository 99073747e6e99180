"""Errors as HTTP answers: a status and one form of JSON for all."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from loomlog import errors
from loomlog.errors import LoomError

logger = logging.getLogger(__name__)


class TooLarge(errors.InvalidArgument):
    """The body of a request is larger than its route takes."""


class WrongType(errors.InvalidArgument):
    """The body of a request is of a type that its route does not take."""


class ForeignOrigin(errors.PermissionDenied):
    """A page of another site made the request."""


STATUSES: Final[Mapping[type[LoomError], int]] = MappingProxyType(
    {
        LoomError: 500,
        errors.Retryable: 503,
        errors.NotLeader: 503,
        errors.Busy: 503,
        errors.Unavailable: 503,
        errors.Timeout: 504,
        errors.NotFound: 404,
        errors.AlreadyExists: 409,
        errors.Sealed: 409,
        errors.Trimmed: 410,
        errors.NotYetWritten: 404,
        errors.DataLoss: 500,
        errors.InvalidArgument: 400,
        errors.Unauthorized: 401,
        errors.VersionMismatch: 502,
        errors.Corrupt: 500,
        errors.AppendUnknown: 504,
        errors.Conflict: 409,
        errors.Fenced: 409,
        errors.SwapUnknown: 504,
        errors.RolledBack: 503,
        errors.DiskFailed: 507,
        errors.PermissionDenied: 403,
        TooLarge: 413,
        WrongType: 415,
        ForeignOrigin: 403,
    }
)
_UNKNOWN: Final = (errors.AppendUnknown, errors.SwapUnknown)
RETRY_AFTER_S: Final = 1
MESSAGE_CHARS_MAX: Final = 600


def status_of(error: LoomError) -> int:
    """Return the HTTP status of an error, also of a class that only part of us knows."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def fields_of(error: LoomError) -> dict[str, Any]:
    kind = next(kind for kind in type(error).__mro__ if kind in STATUSES)
    return {
        "error": {
            "kind": kind.__name__,
            "message": _shortened(str(error)) or kind.__name__,
            "retryable": isinstance(error, errors.Retryable),
            "outcome": "unknown" if isinstance(error, _UNKNOWN) else "nothing happened",
        }
    }


def _shortened(message: str) -> str:
    """Leave out the middle of a message that repeats a long input; its end says what to do."""
    if len(message) <= MESSAGE_CHARS_MAX:
        return message
    half = MESSAGE_CHARS_MAX // 2
    return f"{message[:half]} … {message[-half:]}"


def answer_to(error: Exception, *, named: bool) -> Response:
    """Return the answer to a request that failed. `named`: the caller has presented a token."""
    if not isinstance(error, LoomError):
        logger.error("a request failed", exc_info=error)
        error = LoomError("unexpected failure, a bug: see the log of `loom console`")
    status, headers = status_of(error), {}
    if status == 403 and not named and not isinstance(error, ForeignOrigin):
        status = 401
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return JSONResponse(fields_of(error), status, headers)

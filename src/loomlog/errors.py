"""All errors that loomlog raises, and their codes on the wire.

    LoomError
    ├── Retryable: NotLeader, Busy, Unavailable, Timeout
    ├── the request: InvalidArgument, NotFound, AlreadyExists, Unauthorized, PermissionDenied,
    │   VersionMismatch
    ├── reading: NotYetWritten, Trimmed, DataLoss, Corrupt
    ├── appending: Sealed, AppendUnknown
    └── shared state: Conflict, Fenced, SwapUnknown, RolledBack, DiskFailed

A message is one line that says what happened and what to do. `code` is the ErrorCode in
loomlog.proto; codes never change their meaning.
"""

from __future__ import annotations

from reprlib import Repr
from typing import ClassVar, Final

_REPR: Final = Repr()
_REPR.maxlevel = 4
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 100


class LoomError(Exception):
    """Base class of all errors of loomlog."""

    code: ClassVar[int] = 1


class Retryable(LoomError):  # noqa: N818 - the public names are fixed
    """The call had no effect; it may succeed later or on another server."""

    code: ClassVar[int] = 2


class NotLeader(Retryable):
    """The metadata repository that was asked does not lead. `leader` is the address of the one
    that does, or empty if it is not known."""

    code: ClassVar[int] = 3

    def __init__(self, message: str = "", leader: str = "") -> None:
        super().__init__(message)
        self.leader = leader


class Busy(Retryable):
    """The server has reached one of its limits: back off and retry."""

    code: ClassVar[int] = 4


class Unavailable(Retryable):
    """No server that could answer was reached.

    If `lasting` is set, the client does not retry, because an operator has to start servers
    first."""

    code: ClassVar[int] = 5

    def __init__(self, message: str = "", *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


class Timeout(Retryable):
    """A request without side effects was not answered in time."""

    code: ClassVar[int] = 6


class NotFound(LoomError):
    """There is no such log, stream, node, register or lease."""

    code: ClassVar[int] = 7


class AlreadyExists(LoomError):
    """The name or number is taken."""

    code: ClassVar[int] = 8


class Sealed(LoomError):
    """The stream does not accept appends; nothing was appended."""

    code: ClassVar[int] = 9


class Trimmed(LoomError):
    """The position was trimmed."""

    code: ClassVar[int] = 10


class NotYetWritten(LoomError):
    """The position has no entry yet."""

    code: ClassVar[int] = 11


class DataLoss(LoomError):
    """An acknowledged entry is lost: none of its copies can be read any more."""

    code: ClassVar[int] = 12


class InvalidArgument(LoomError):
    """The request is invalid and would fail again: the caller has to change it."""

    code: ClassVar[int] = 13


class Unauthorized(LoomError):
    """The peer belongs to another cluster or presented a wrong secret."""

    code: ClassVar[int] = 14


class VersionMismatch(LoomError):
    """The two sides use different versions of a protocol or format."""

    code: ClassVar[int] = 15


class Corrupt(LoomError):
    """Data does not match its checksum or its format.

    `first` and `last` are the range of a subscription that a replica cannot read, or 0 if it is
    not known."""

    code: ClassVar[int] = 16

    def __init__(self, message: str = "", first: int = 0, last: int = 0) -> None:
        super().__init__(message)
        self.first = first
        self.last = last


class AppendUnknown(LoomError):
    """The outcome of the append is unknown: it may or may not have happened. Read the log before
    you repeat it, unless a duplicate is harmless."""

    code: ClassVar[int] = 17


class Conflict(LoomError):
    """Another client made a change first, and nothing was changed: read the current state, then
    decide."""

    code: ClassVar[int] = 18


class Fenced(LoomError):
    """Another holder has taken over the lease or the place in a group or queue: stop working."""

    code: ClassVar[int] = 19


class SwapUnknown(LoomError):
    """The outcome of a change to metadata is unknown: it may or may not have happened."""

    code: ClassVar[int] = 20


class RolledBack(LoomError):
    """The metadata is older than what storage nodes know, as after a restore; the call had no
    effect."""

    code: ClassVar[int] = 21


class DiskFailed(LoomError):
    """A metadata repository cannot write to its disk: free space on it or repair it."""

    code: ClassVar[int] = 22


class PermissionDenied(LoomError):
    """The caller lacks the permission that the message names; the call had no effect."""

    code: ClassVar[int] = 23


def _tree(root: type[LoomError]) -> list[type[LoomError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _tree(child))]


_BY_CODE = {kind.code: kind for kind in _tree(LoomError)}


def from_code(
    code: int,
    message: str,
    leader: str = "",
    numbers: tuple[int, int] = (0, 0),
    *,
    lasting: bool = False,
) -> LoomError:
    """Return the error that a peer sent. An unknown code, of a newer peer, becomes a LoomError."""
    if code == NotLeader.code:
        return NotLeader(message, leader)
    if code == Corrupt.code:
        return Corrupt(message, *numbers)
    if code == Unavailable.code:
        return Unavailable(message, lasting=lasting)
    return _BY_CODE.get(code, LoomError)(message)


def seconds(duration_s: float) -> str:
    """Return a duration as text for a message, rounded."""
    return f"{duration_s:.0f} s" if duration_s >= 10 else f"{duration_s:.2g} s"


def shown(value: object) -> str:
    """Return the `repr` of a caller's value for a message: short, one line, and whatever it is."""
    try:
        return " ".join(_REPR.repr(value).split())[:100]
    except Exception:  # a `__repr__` that fails, or an int with too many digits
        return f"a value of type {type(value).__name__}"

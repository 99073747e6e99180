"""Every error that users of loomlog can meet, and the number of each on the wire.

    LoomError
    ├── Retryable: NotLeader, Busy, Unavailable, Timeout
    ├── the request: InvalidArgument, NotFound, AlreadyExists, Unauthorized, PermissionDenied,
    │   VersionMismatch
    ├── reading: NotYetWritten, Trimmed, DataLoss, Corrupt
    ├── appending: Sealed, AppendUnknown
    └── shared state: Conflict, Fenced, SwapUnknown, RolledBack, DiskFailed

A message is one line: what happened and what to do. `code` is the number in loomlog.proto
(ErrorCode); numbers never change their meaning.
"""

from __future__ import annotations

from typing import ClassVar


class LoomError(Exception):
    """Base class of all errors of loomlog."""

    code: ClassVar[int] = 1


class Retryable(LoomError):  # noqa: N818 - the public names are fixed
    """Nothing happened; the same call may succeed later or elsewhere."""

    code: ClassVar[int] = 2


class NotLeader(Retryable):
    """Another metadata repository leads; `leader` is its address, if known."""

    code: ClassVar[int] = 3

    def __init__(self, message: str = "", leader: str = "") -> None:
        super().__init__(message)
        self.leader = leader


class Busy(Retryable):
    """The server has reached a limit: back off and retry."""

    code: ClassVar[int] = 4


class Unavailable(Retryable):
    """No server that could answer was reached. `lasting`: an operator has to start servers first,
    so the client does not repeat the request."""

    code: ClassVar[int] = 5

    def __init__(self, message: str = "", *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


class Timeout(Retryable):
    """No answer arrived in time, to a request without side effects."""

    code: ClassVar[int] = 6


class NotFound(LoomError):
    """There is no such log, stream, node, register or lease."""

    code: ClassVar[int] = 7


class AlreadyExists(LoomError):
    """The name or number is taken."""

    code: ClassVar[int] = 8


class Sealed(LoomError):
    """The stream takes no appends; nothing was appended."""

    code: ClassVar[int] = 9


class Trimmed(LoomError):
    """The position was removed by a trim."""

    code: ClassVar[int] = 10


class NotYetWritten(LoomError):
    """The position has no entry yet."""

    code: ClassVar[int] = 11


class DataLoss(LoomError):
    """An acknowledged entry cannot be read any more: all its copies are gone."""

    code: ClassVar[int] = 12


class InvalidArgument(LoomError):
    """The request is wrong: the caller must change it."""

    code: ClassVar[int] = 13


class Unauthorized(LoomError):
    """The peer belongs to another cluster or presents the wrong secret."""

    code: ClassVar[int] = 14


class VersionMismatch(LoomError):
    """The two sides use different versions of a protocol or format."""

    code: ClassVar[int] = 15


class Corrupt(LoomError):
    """Bytes do not match their checksum or their format. `first` and `last` are the numbers of a
    subscription that a replica cannot read; 0 if they are not known."""

    code: ClassVar[int] = 16

    def __init__(self, message: str = "", first: int = 0, last: int = 0) -> None:
        super().__init__(message)
        self.first = first
        self.last = last


class AppendUnknown(LoomError):
    """The append may or may not have happened."""

    code: ClassVar[int] = 17


class Conflict(LoomError):
    """Someone else changed it first: read it again, then decide."""

    code: ClassVar[int] = 18


class Fenced(LoomError):
    """Another holder has taken the lease: stop."""

    code: ClassVar[int] = 19


class SwapUnknown(LoomError):
    """A change of metadata may or may not have happened."""

    code: ClassVar[int] = 20


class RolledBack(LoomError):
    """The metadata is older than what storage nodes know; nothing happened."""

    code: ClassVar[int] = 21


class DiskFailed(LoomError):
    """A metadata repository cannot write to its disk: free space or repair it."""

    code: ClassVar[int] = 22


class PermissionDenied(LoomError):
    """The peer lacks the permission that the message names; nothing happened."""

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
    """Return the error that a peer sent. A code of a newer peer becomes a plain LoomError."""
    if code == NotLeader.code:
        return NotLeader(message, leader)
    if code == Corrupt.code:
        return Corrupt(message, *numbers)
    if code == Unavailable.code:
        return Unavailable(message, lasting=lasting)
    return _BY_CODE.get(code, LoomError)(message)


def seconds(duration_s: float) -> str:
    """Return a duration for a message, rounded to what people can use."""
    return f"{duration_s:.0f} s" if duration_s >= 10 else f"{duration_s:.2g} s"

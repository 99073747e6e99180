"""Every error a user of loomlog can meet.

    LoomError
    ├── Retryable            try again, here or elsewhere: nothing happened
    │   ├── NotLeader        ask the metadata repository that leads: `leader`, if known
    │   ├── Busy             the server is at a bound; back off
    │   ├── Unavailable      nobody who could answer was reached
    │   └── Timeout          no answer in time (of something without side effects)
    ├── NotFound             no such log, stream or node
    ├── AlreadyExists
    ├── Sealed               the stream takes no appends; nothing was appended
    ├── Trimmed              the position was dropped by a trim
    ├── NotYetWritten        the position has no entry yet
    ├── DataLoss             an entry that was acknowledged cannot be read any more
    ├── InvalidArgument      the caller must change the request
    ├── Unauthorized
    ├── VersionMismatch      the two sides speak different versions
    ├── Corrupt              bytes do not match their checksum or their format
    ├── AppendUnknown        an append may or may not have happened
    ├── Conflict             somebody else changed it first: read it again, then decide
    ├── Fenced               another holder has the lease by now: stop
    └── SwapUnknown          a change of metadata may or may not have happened

Messages are one line: what happened and what to do. `code` is the number on the wire
(loomlog.proto, ErrorCode); numbers never change their meaning.
"""

from __future__ import annotations

from typing import ClassVar


class LoomError(Exception):
    """The root of all errors of loomlog."""

    code: ClassVar[int] = 1


class Retryable(LoomError):  # noqa: N818 - the public names are fixed
    """Nothing happened; the same call may succeed later or elsewhere."""

    code: ClassVar[int] = 2


class NotLeader(Retryable):
    code: ClassVar[int] = 3

    def __init__(self, message: str = "", leader: str = "") -> None:
        super().__init__(message)
        self.leader = leader  # its address, if known


class Busy(Retryable):
    code: ClassVar[int] = 4


class Unavailable(Retryable):
    code: ClassVar[int] = 5


class Timeout(Retryable):
    code: ClassVar[int] = 6


class NotFound(LoomError):
    code: ClassVar[int] = 7


class AlreadyExists(LoomError):
    code: ClassVar[int] = 8


class Sealed(LoomError):
    code: ClassVar[int] = 9


class Trimmed(LoomError):
    code: ClassVar[int] = 10


class NotYetWritten(LoomError):
    code: ClassVar[int] = 11


class DataLoss(LoomError):
    code: ClassVar[int] = 12


class InvalidArgument(LoomError):
    code: ClassVar[int] = 13


class Unauthorized(LoomError):
    code: ClassVar[int] = 14


class VersionMismatch(LoomError):
    code: ClassVar[int] = 15


class Corrupt(LoomError):
    code: ClassVar[int] = 16


class AppendUnknown(LoomError):
    code: ClassVar[int] = 17


class Conflict(LoomError):
    code: ClassVar[int] = 18


class Fenced(LoomError):
    code: ClassVar[int] = 19


class SwapUnknown(LoomError):
    code: ClassVar[int] = 20


def _tree(root: type[LoomError]) -> list[type[LoomError]]:
    return [root, *(found for child in root.__subclasses__() for found in _tree(child))]


_BY_CODE = {kind.code: kind for kind in _tree(LoomError)}


def from_code(code: int, message: str, leader: str = "") -> LoomError:
    """The error that a peer sent; an unknown code (a newer peer) becomes a LoomError."""
    if code == NotLeader.code:
        return NotLeader(message, leader)
    return _BY_CODE.get(code, LoomError)(message)

"""The interface of frames and their codec (wire.codec), as a connection uses it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from loomlog.errors import LoomError
from loomlog.types import Buffer

if TYPE_CHECKING:
    from loomlog.net.credentials import Credentials


# The names of fields, for `Codec.which` and `Codec.has`.
BODY: Final = "body"
ERROR: Final = "error"


class Message(Protocol):
    """The fields that a connection uses of its frames."""

    id: int
    reply: bool
    trace: str  # the span that it is part of; empty: none


F = TypeVar("F", bound=Message)
F_co = TypeVar("F_co", covariant=True)
F_contra = TypeVar("F_contra", contravariant=True)
OnReply = Callable[[F | LoomError, memoryview], None]


class FrameReader(Protocol[F_co]):
    """Decodes the received bytes of one connection (wire.codec.FrameReader)."""

    def writable(self, sizehint: int) -> memoryview: ...

    def received(self, count: int) -> Iterator[tuple[F_co, memoryview]]: ...

    def accept_all(self) -> None: ...

    @property
    def held_bytes(self) -> int: ...

    def shrink(self) -> None: ...

    def drop(self) -> None: ...


class FrameWriter(Protocol[F_contra]):
    """Encodes the frames that one connection sends (wire.codec.FrameWriter)."""

    def encode(self, frame: F_contra, payload: Sequence[Buffer]) -> Sequence[Buffer]: ...


class Codec(Protocol[F]):
    """Converts frames to bytes and back, and knows what they mean for a connection."""

    @property
    def credentials(self) -> Credentials | None: ...

    @property
    def which(self) -> Callable[[F, str], str | None]:
        """Return the name of the message inside (`BODY`); None for one of a newer version."""

    @property
    def has(self) -> Callable[[F, str], bool]:
        """Return whether the message inside has this name (`ERROR`)."""

    @property
    def content(self) -> Collection[str]:
        """The kinds of messages that may ask for content."""

    def reader(self) -> FrameReader[F]: ...

    def writer(self) -> FrameWriter[F]: ...

    def kind(self, frame: F) -> str: ...

    def greeting(self) -> F: ...

    def check_greeting(self, frame: F) -> str: ...

    def token_in(self, greeting: F) -> str: ...

    def ping(self) -> F: ...

    def pong_to(self, frame: F) -> F: ...

    def asks_for_content(self, kind: str, message: Any) -> bool: ...

    def failure(self, frame: F) -> LoomError: ...

    def failure_frame(self, error: LoomError) -> F: ...

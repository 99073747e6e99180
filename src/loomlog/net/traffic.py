"""The seam at which a server measures what its peers ask for (wire.traffic.Traffic)."""

from __future__ import annotations

from typing import Any, Protocol

from loomlog.errors import LoomError
from loomlog.net.frames import F_contra


class Traffic(Protocol[F_contra]):
    """Measures requests of accepted connections. Called for each of them: must be quick."""

    def begin(self, kind: str, frame: F_contra, payload: memoryview) -> Any:
        """Return what to remember until the request is answered; None: nothing."""

    def answer(self, request: Any, size: int) -> bool:
        """Note an answer with a payload of `size` bytes; return whether more may follow."""

    def refuse(self, request: Any, error: LoomError) -> None:
        """Note that a request was refused; it may be None."""

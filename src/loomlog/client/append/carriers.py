"""The contract between delivery.py and the protocols' carriers, which append batches to streams.

An attempt to append a batch to one stream owns what its protocol needs for that (connection,
encoded bytes, numbers, tasks) and reports to `Outcomes`. Reports are ignored after another attempt
was started or the batch was settled.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from loomlog import batch
from loomlog.client.append.appender import Attempt, Batch
from loomlog.client.append.stream import Stream
from loomlog.errors import Corrupt, LoomError, Unavailable
from loomlog.types import Buffer, Glsn, Llsn
from loomlog.wire import loomlog_pb2 as pb


class Outcomes(Protocol):
    """Callbacks by which attempts report."""

    def sent(self, attempt: Attempt) -> None:
        """Called before the batch is sent: from now on it may be appended."""

    def declined(self, attempt: Attempt, error: LoomError) -> None:
        """Called when everything sent so far was refused, and the attempt continues."""

    def appended(self, attempt: Attempt, first: Glsn, first_llsn: Llsn) -> None:
        """Called when the batch was appended."""

    def refused(self, attempt: Attempt, error: LoomError) -> bool:
        """Called when the batch was not appended. Return whether the attempt has to find out
        whether what it sent before was appended; otherwise it is over."""

    def lost(self, attempt: Attempt, why: str) -> bool:
        """Called when no answer will arrive. Return whether the attempt has to find out whether
        the batch was appended; otherwise it is over."""

    def absent(self, attempt: Attempt) -> None:
        """Called when the attempt found out that the batch was not appended."""

    def unknown(self, attempt: Attempt, error: LoomError) -> None:
        """Called when it can no longer be found out whether the batch was appended."""

    def refresh_soon(self) -> None:
        """Fetch the log's streams and their epochs from the metadata repository."""


class Carrier(ABC):
    """Appends batches to the streams of one log that are kept by one protocol."""

    @abstractmethod
    def attempt(self, batch: Batch, target: Stream) -> Attempt:
        """Return a new attempt, to be started with `start`."""

    def width(self, stream: pb.LogStream) -> int:
        """Return how many batches can be in progress on different replicas at once."""
        return 1

    def silent(self, target: Stream) -> None:  # noqa: B027 - requests may have their own timeouts
        """Called every tick while the oldest attempt on a stream has had no answer for long."""

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks to end when the client is closed."""
        return []


CarriersByProtocol: TypeAlias = Mapping[str, Callable[[Outcomes], Carrier]]


def retryable_if_sound(error: LoomError, sent: Buffer) -> LoomError:
    """Return the error of an append. If a server reports a sound batch as corrupt, it was damaged
    on the way and not appended, so the error is made retryable."""
    if not isinstance(error, Corrupt):
        return error
    try:
        batch.check(sent)
    except LoomError:
        return error
    return Unavailable(f"a batch was damaged on its way: {error}")

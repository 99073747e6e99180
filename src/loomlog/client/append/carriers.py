"""The interface between delivery.py and the carriers of the protocols, which append batches.

A carrier makes attempts, each to append a batch to one stream. An attempt owns what its protocol
needs for that (connection, encoded bytes, numbers, tasks) and reports to `Outcomes`. Its reports
are ignored once another attempt was started or the batch was settled.
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
        """Called when everything that was sent so far was refused, but the attempt continues."""

    def appended(self, attempt: Attempt, first: Glsn, first_llsn: Llsn) -> None:
        """Called when the batch was appended."""

    def refused(self, attempt: Attempt, error: LoomError) -> bool:
        """Called when the batch was refused. Return True if the attempt has to determine whether
        what it sent before was appended, or False if the attempt is over."""

    def lost(self, attempt: Attempt, why: str) -> bool:
        """Called when no answer will arrive. Return True if the attempt has to determine whether
        the batch was appended, or False if the attempt is over."""

    def absent(self, attempt: Attempt) -> None:
        """Called when the attempt has determined that the batch was not appended."""

    def unknown(self, attempt: Attempt, error: LoomError) -> None:
        """Called when it cannot be determined whether the batch was appended."""

    def refresh_soon(self) -> None:
        """Fetch the log's streams and their epochs from the metadata repository."""


class Carrier(ABC):
    """Appends batches to the streams of one log that use one protocol."""

    @abstractmethod
    def attempt(self, batch: Batch, target: Stream) -> Attempt:
        """Return a new attempt, which the caller starts."""

    def width(self, stream: pb.LogStream) -> int:
        """Return how many batches can be in progress at once, on different replicas."""
        return 1

    def silent(self, target: Stream) -> None:  # noqa: B027 - requests may have their own timeouts
        """Called every tick while the oldest attempt on a stream is overdue for an answer."""

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks to cancel when the client is closed."""
        return []


CarriersByProtocol: TypeAlias = Mapping[str, Callable[[Outcomes], Carrier]]


def retryable_if_sound(error: LoomError, sent: Buffer) -> LoomError:
    """Return the error of an append. If a server reported a sound batch as corrupt, the batch was
    damaged in transit and not appended, so the error is made retryable."""
    if not isinstance(error, Corrupt):
        return error
    try:
        batch.check(sent)
    except LoomError:
        return error
    return Unavailable(f"a batch was damaged in transit: {error}")

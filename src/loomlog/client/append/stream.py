"""A log stream as a target of appends: its address, its attempts in flight, and its health."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

if TYPE_CHECKING:
    from loomlog.client.append.appender import Attempt

logger = logging.getLogger(__name__)

SLOW_S: Final = 0.2  # far longer than a commit: a stream that is silent for this long may be dead
SILENT_S: Final = 1.0  # silence after which a stream is investigated


class Stream:
    """A stream of a log that may take batches."""

    __slots__ = (
        "address",
        "avoid_until_s",
        "compression",
        "connection",
        "doubtful",
        "epoch",
        "id",
        "in_flight",
        "protocol",
        "replicas",
        "running",
        "width",
    )

    def __init__(self, stream_id: StreamId) -> None:
        self.id = stream_id
        self.address = ""
        self.replicas: list[str] = []
        self.connection: Connection | None = None  # to the address, if the carrier keeps it here
        self.protocol = ""
        self.width = 1  # how many batches can be in progress on different replicas at once
        self.epoch = -1
        self.compression = "none"
        self.running = False
        self.in_flight: dict[Attempt, float] = {}  # attempts with start times, oldest first
        self.doubtful = 0  # the number of attempts whose answers were lost
        self.avoid_until_s = float("-inf")

    def update(self, metadata: pb.LogStream, width: int) -> None:
        self.replicas = [replica.address for replica in metadata.replicas]
        address = self.replicas[0] if self.replicas else ""
        if (address, metadata.seal_epoch) != (self.address, self.epoch):
            self.avoid_until_s = float("-inf")
            if self.address:
                epoch = metadata.seal_epoch
                logger.info("stream %d is at %s in epoch %d now", self.id, address, epoch)
        if address != self.address:
            self.connection = None
        self.address, self.epoch = address, metadata.seal_epoch
        self.protocol = metadata.protocol
        self.width = width
        self.running = metadata.state == pb.RUNNING and bool(address)

    def doubt(self, attempt: Attempt) -> None:
        """Take no new attempts until the outcome of this one is determined."""
        if not attempt.doubtful:
            attempt.doubtful = True
            self.doubtful += 1

    def waited_s(self, now_s: float) -> float:
        """Return how long the oldest attempt has been in flight."""
        for since_s in self.in_flight.values():
            return now_s - since_s
        return 0.0

    def silent(self, now_s: float) -> bool:
        """Return whether the oldest attempt is overdue for an answer."""
        return self.waited_s(now_s) >= SILENT_S

    def good(self, now_s: float) -> bool:
        """Return whether the stream is neither slow, nor doubtful, nor has failed recently."""
        return self.avoid_until_s <= now_s and not self.doubtful and self.waited_s(now_s) <= SLOW_S

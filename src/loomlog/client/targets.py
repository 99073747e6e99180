"""The streams of a log as targets for appends, and which one the next batch goes to."""

from __future__ import annotations

import random
from typing import Any, Final

from loomlog.client.orders import protocol_of
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb

AVOID_S: Final = 1.0  # a stream that failed is left alone so long, or until its metadata changes
SLOW_S: Final = 0.2  # far above a commit: who is silent so long may be dead


class Stream:
    """A log stream as a target for appends."""

    __slots__ = (
        "address",
        "avoid_until_s",
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
        self.protocol = ""
        self.width = 1  # of so many batches each is worked on by somebody else
        self.epoch = -1
        self.running = False
        self.in_flight: dict[Any, float] = {}  # batches that hold a place, since when; oldest first
        self.doubtful = 0  # so many of them may or may not have been appended
        self.avoid_until_s = float("-inf")

    def update(self, metadata: pb.LogStream) -> None:
        self.replicas = [replica.address for replica in metadata.replicas]
        address = self.replicas[0] if self.replicas else ""
        if (address, metadata.seal_epoch) != (self.address, self.epoch):
            self.avoid_until_s = float("-inf")
        self.address, self.epoch = address, metadata.seal_epoch
        self.protocol = protocol_of(metadata)
        self.width = sum(len(chain.replicas) for chain in metadata.projection.chains) or 1
        self.running = metadata.state == pb.RUNNING and bool(address)

    def waited_s(self, now_s: float) -> float:
        """How long its oldest batch has been under way."""
        for since_s in self.in_flight.values():
            return now_s - since_s
        return 0.0

    def good(self, now_s: float) -> bool:
        """Nothing speaks against it."""
        return self.avoid_until_s <= now_s and not self.doubtful and self.waited_s(now_s) <= SLOW_S


class Targets:
    """All streams that are known, and those of them that run."""

    def __init__(self, rng: random.Random, in_flight_max: int) -> None:
        self._rng = rng
        self._in_flight_max = in_flight_max
        self._streams: dict[StreamId, Stream] = {}
        self._running: list[Stream] = []
        self._conditions: dict[StreamId, str] = {}  # of those that should run

    @property
    def known(self) -> bool:
        """The metadata repository has named some."""
        return bool(self._streams)

    def running(self, wanted: StreamId | None) -> int:
        """How many streams can take what is for `wanted` (None: any)."""
        if wanted is None:
            return len(self._running)
        named = self._streams.get(wanted)
        return int(named is not None and named.running)

    def hindrance(self, wanted: StreamId | None) -> str:
        """What the metadata repository says is the matter with those that should take it."""
        found = (said for stream, said in self._conditions.items() if wanted in (None, stream))
        return "; ".join(dict.fromkeys(filter(None, found)))

    def width(self, wanted: StreamId | None) -> int:
        """How many batches for `wanted` can be worked on at once."""
        if wanted is None:
            return sum(stream.width for stream in self._running) or 1
        named = self._streams.get(wanted)
        return 1 if named is None else named.width

    def missing(self, wanted: StreamId | None) -> bool:
        """A stream was named that is not known."""
        return wanted is not None and wanted not in self._streams

    def streams(self) -> list[Stream]:
        return list(self._streams.values())

    def any_good(self, now_s: float) -> bool:
        return any(stream.good(now_s) for stream in self._running)

    def pick(self, wanted: StreamId | None, now_s: float) -> Stream | None:
        """A RUNNING stream with room: at random, slow ones and failed ones only if need be."""
        if wanted is not None:
            named = self._streams.get(wanted)
            return named if named is not None and named.running and self._room(named) else None
        running = self._running
        if not running:
            return None
        chosen = running[0] if len(running) == 1 else self._rng.choice(running)
        if chosen.good(now_s) and self._room(chosen):
            return chosen
        good = [stream for stream in running if stream.good(now_s)]
        with_room = [stream for stream in good or running if self._room(stream)]
        return self._rng.choice(with_room) if with_room else None

    def adopt(self, log: pb.Log) -> None:
        """Take over what the metadata repository says; what is in flight stays counted."""
        known, self._streams = self._streams, {}
        for metadata in log.streams:
            stream = known.get(metadata.log_stream_id) or Stream(metadata.log_stream_id)
            stream.update(metadata)
            self._streams[stream.id] = stream
        self._running = [stream for stream in self._streams.values() if stream.running]
        active = log.segments[-1].loglet_id if log.segments else 0
        self._conditions = {
            s.log_stream_id: s.condition for s in log.streams if s.loglet_id == active
        }

    def clear(self) -> None:
        self._streams, self._running, self._conditions = {}, [], {}

    def _room(self, stream: Stream) -> bool:
        """A stream remembers only so many batches of a producer as may be under way: nothing new
        goes there while the outcome of one is unknown."""
        return not stream.doubtful and len(stream.in_flight) < self._in_flight_max

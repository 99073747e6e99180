"""The places of a log that can be asked for, for programs without an event loop; see
landmarks.py."""

from __future__ import annotations

from datetime import datetime

from loomlog.client.checkpoints import Checkpoint, CheckpointInfo
from loomlog.client.log import Log
from loomlog.client.loop_thread import LoopThread
from loomlog.types import Glsn, Llsn, StreamId


class BlockingCheckpoint:
    """One reader's position in one log; it exists once it was set."""

    def __init__(self, thread: LoopThread, checkpoint: Checkpoint) -> None:
        self.name = checkpoint.name
        self._thread = thread
        self._checkpoint = checkpoint

    def __repr__(self) -> str:
        return f"<BlockingCheckpoint {self.name!r}>"

    def get(self) -> Glsn | None:
        """The last position that the reader is done with; None if it was never set."""
        return self._thread.run(self._checkpoint.get())

    def set(self, position: Glsn, *, back: bool = False) -> Glsn:
        """Move it on to `position`, or with `back` also back; where it is then."""
        return self._thread.run(self._checkpoint.set(position, back=back))

    def delete(self) -> None:
        """Fine if there is none."""
        self._thread.run(self._checkpoint.delete())


class BlockingLandmarks:
    """The part of a BlockingLog that knows them."""

    _thread: LoopThread
    _log: Log

    def tail(self) -> Glsn:
        """The last committed position; 0 if there is none."""
        return self._thread.run(self._log.tail())

    def head(self) -> Glsn:
        """The first position that is not trimmed."""
        return self._thread.run(self._log.head())

    def is_empty(self) -> bool:
        """Whether there is nothing between head and tail; an archive does not count."""
        return self._thread.run(self._log.is_empty())

    def earliest(self) -> Glsn:
        """The first position that can be read: the archive's first if there is one, else the
        head."""
        return self._thread.run(self._log.earliest())

    def locate(self, position: Glsn) -> dict[StreamId, Llsn]:
        """Where `position` falls in each stream: its first LLSN at or after it."""
        return self._thread.run(self._log.locate(position))

    def find_time(self, moment: datetime | float) -> Glsn:
        """The first position whose entry has this timestamp or a later one, one past the tail if
        none has; see `Log.find_time`."""
        return self._thread.run(self._log.find_time(moment))

    def checkpoint(self, name: str) -> BlockingCheckpoint:
        """The checkpoint of this name; it exists once it was set."""
        return BlockingCheckpoint(self._thread, self._log.checkpoint(name))

    def checkpoints(self) -> dict[str, CheckpointInfo]:
        """All checkpoints of this log, by name."""
        return self._thread.run(self._log.checkpoints())

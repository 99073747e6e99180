"""The known state of a log's segments, for protocols whose state comes with the log's metadata."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from loomlog.client.cached_log import CachedLog
from loomlog.errors import Trimmed, Unavailable
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb


class SegmentGoneError(Trimmed):
    """The segment was trimmed, or the log never had it."""


class SegmentView(Protocol):
    """The known state of a segment."""

    @property
    def age(self) -> Any:
        """A key by which newer views compare greater."""


V = TypeVar("V", bound=SegmentView)


class SegmentViews(ABC, Generic[V]):
    """The newest known views of one log's segments."""

    def __init__(self, log: CachedLog) -> None:
        self.log = log
        self._views: dict[StreamId, V] = {}
        self._adopted: pb.Log | None = None  # the metadata that the views were made of

    def view(self, stream: StreamId) -> V:
        """Return the newest known view; raise SegmentGoneError if there is no such stream. While
        the log is not known, because the metadata repository refused to describe it, the views
        stay as they were: that is no proof of a trim."""
        log = self.log.last_known
        if log is not None and log is not self._adopted:
            self._adopt(log)
        view = self._views.get(stream)
        if view is None:
            name = self.log.name
            if log is None:
                raise Unavailable(f"the segments of log {name!r} are not known now: try again")
            raise SegmentGoneError(
                f"the segment of stream {stream} of log {name!r} was trimmed, or the log was made "
                "again since"
            )
        return view

    async def learn(self, stream: StreamId) -> V:
        """Return the view of a stream, fetching the log's metadata if it is not known."""
        await self.log.cached()
        try:
            return self.view(stream)
        except SegmentGoneError:
            await self.log.fetch()  # a new request, not one already under way
            return self.view(stream)

    def _adopt(self, log: pb.Log) -> None:
        self._adopted = log
        before, self._views = self._views, {}
        for stream in log.streams:
            if (view := self._view_of(stream)) is not None:
                old = before.get(stream.log_stream_id)
                if old is not None and old.age > view.age:
                    view = self._kept(old, view)
                self._views[stream.log_stream_id] = view

    @abstractmethod
    def _view_of(self, stream: pb.LogStream) -> V | None:
        """Return the view that a stream's metadata describes; None if another protocol keeps it."""

    def _kept(self, newer: V, described: V) -> V:
        """Return the view to keep if metadata describes an older one."""
        return newer

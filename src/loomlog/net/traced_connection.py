"""A connection that creates spans for requests and propagates their context. It is used only if a
tracer is configured, so that tracing costs nothing otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loomlog.errors import LoomError
from loomlog.meters import REQUESTS_MAX
from loomlog.net.connection import Connection
from loomlog.net.frames import ERROR, F, OnReply
from loomlog.tracing import Tracer
from loomlog.types import Buffer

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class TracedConnection(Connection[F]):
    """A connection whose frames name the current span. A received request that names one becomes a
    span, which is current while the request is handled, and ends with the first answer."""

    def __init__(self, tracer: Tracer, *arguments: Any, **options: Any) -> None:
        self._tracer = tracer
        self._spans: dict[int, Span] = {}  # of requests that are not answered, by id
        super().__init__(*arguments, **options)

    def send(self, frame: F, payload: Sequence[Buffer] = ()) -> None:
        if not frame.reply:
            frame.trace = self._tracer.current()
        elif (span := self._spans.pop(frame.id, None)) is not None:
            failure = self.codec.failure(frame) if self.codec.has(frame, ERROR) else None
            self._tracer.end(span, failure)
        super().send(frame, payload)

    def call(
        self,
        frame: F,
        payload: Sequence[Buffer],
        on_reply: OnReply[F],
        many: bool = False,
        timeout_s: float | None = None,
    ) -> int:
        return super().call(frame, payload, self._tracer.carried(on_reply), many, timeout_s)

    def end_request(self, request_id: int) -> None:
        if (span := self._spans.pop(request_id, None)) is not None:
            self._tracer.end(span)
        super().end_request(request_id)

    def _asked(self, frame: F, payload: memoryview) -> None:
        if not frame.trace:
            super()._asked(frame, payload)
        elif not frame.id or len(self._spans) >= REQUESTS_MAX:
            with self._tracer.continued(frame.trace):
                super()._asked(frame, payload)
        else:
            span = self._tracer.begin(self.codec.kind(frame) or "unknown", {}, frame.trace)
            self._spans[frame.id] = span
            with self._tracer.use(span):
                super()._asked(frame, payload)

    def _fail(self, error: LoomError) -> None:
        spans, self._spans = self._spans, {}
        for span in spans.values():
            self._tracer.end(span, error)
        super()._fail(error)

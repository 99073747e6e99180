"""Spans of OpenTelemetry, for programs that call `enable` before they connect, and for servers that
are started with `--tracing`. Needs `pip install 'loomlog[tracing]'`.

    append            client: a batch, from when it is closed until it is settled
      append            the primary, or chain_request, copyset_append, … : a request at a server
        store             a write of a replica, on every node, until it is durable
        sync              the job that forces it to disk, with all that waited meanwhile
    read              client: one call, with the requests that it makes
    commit round      the metadata repository: until the round is durable; a trace of its own

Without `enable` there is no tracer, and nothing here is called: objects ask `active` once, when
they are made. The context travels in `Frame.trace`, as a traceparent of W3C Trace Context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from loomlog.errors import InvalidArgument

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

_HEADER: Final = "traceparent"
_tracer: Tracer | None = None

Attributes = Mapping[str, str | int]
Finished = Callable[[BaseException | None], None]


def active() -> Tracer | None:
    """Return the tracer; None: there is none."""
    return _tracer


def enable(provider: TracerProvider | None = None) -> None:
    """Make spans from now on, with this provider or the program's global one. Connections and
    clients that exist already make none."""
    global _tracer
    try:
        _tracer = Tracer(provider)
    except ImportError:
        raise _missing() from None


def disable() -> None:
    """Make no more spans in clients and connections that are created from now on."""
    global _tracer
    _tracer = None


def export(service: str) -> None:
    """Make spans of a server and send them as the OTEL_… variables say, by default to a collector
    at localhost:4318."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise _missing() from None
    provider = TracerProvider(resource=Resource.create({"service.name": f"loomlog-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    enable(provider)


def _missing() -> InvalidArgument:
    return InvalidArgument("tracing needs OpenTelemetry: pip install 'loomlog[tracing]'")


class Tracer:
    """Begins and ends spans."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._context = context
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("loomlog", tracer_provider=provider)

    def begin(self, name: str, attributes: Attributes, parent: str | None = None) -> Span:
        """Begin a span, as a child of the current one or of that in a peer's frame."""
        inside = None if parent is None else self._remote(parent)
        return self._tracer.start_span(name, inside, attributes=attributes)

    def end(self, span: Span, error: BaseException | None = None) -> None:
        if error is not None:
            status = self._trace.Status(self._trace.StatusCode.ERROR, str(error))
            span.set_status(status)
            span.set_attribute("error.type", type(error).__name__)
        span.end()

    def ending(
        self, name: str, attributes: Attributes, done: Finished, parent: str | None = None
    ) -> Finished:
        """Begin a span; return a callback that ends it and calls `done`."""
        span = self.begin(name, attributes, parent)

        def ended(error: BaseException | None) -> None:
            self.end(span, error)
            done(error)

        return ended

    def carried(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Return a callback that runs with the span that is the current one now."""
        context = self._context.get_current()

        def run(*arguments: Any) -> None:
            with self._attached(context):
                callback(*arguments)

        return run

    @contextmanager
    def use(self, span: Span) -> Iterator[None]:
        """Make a span the current one."""
        with self._attached(self._trace.set_span_in_context(span)):
            yield

    @contextmanager
    def continued(self, trace: str) -> Iterator[None]:
        """Make the span in a peer's frame the current one."""
        with self._attached(self._remote(trace)):
            yield

    @contextmanager
    def span(self, name: str, attributes: Attributes) -> Iterator[None]:
        """Make a span of a block."""
        span = self.begin(name, attributes)
        try:
            with self.use(span):
                yield
        except BaseException as error:
            self.end(span, error)
            raise
        else:
            self.end(span)

    def current(self) -> str:
        """Return the current span for a frame; empty: there is none."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier.get(_HEADER, "")

    def _remote(self, trace: str) -> Context:
        """Return the context in a frame. What is no traceparent is ignored."""
        return self._propagator.extract({_HEADER: trace}, self._context.Context())

    @contextmanager
    def _attached(self, context: Any) -> Iterator[None]:
        token = self._context.attach(context)
        try:
            yield
        finally:
            self._context.detach(token)

"""Spans of OpenTelemetry across client, nodes and metadata repository, and none without it."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loomlog import tracing
from loomlog.errors import InvalidArgument, NotYetWritten
from loomlog.net.connection import Connection
from loomlog.net.endpoints import connect
from loomlog.testing import LocalCluster
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Service


class Spans:
    """Keeps the spans that were exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def below(self, parent: ReadableSpan) -> set[str]:
        """Return the names of all spans that descend from one."""
        found: set[str] = set()
        ids = {parent.context.span_id}
        spans = [s for s in self._exporter.get_finished_spans() if s.parent is not None]
        while ids:
            children = [s for s in spans if s.parent is not None and s.parent.span_id in ids]
            found |= {span.name for span in children}
            ids = {span.context.span_id for span in children}
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    spans = Spans()
    tracing.enable(spans.provider)
    yield spans
    tracing.disable()


@pytest.mark.parametrize(
    ("protocol", "at_servers"),
    [
        ("ordered", {"append", "store", "sync"}),
        ("chained", {"sequencer_request", "chain_request", "store", "sync"}),
        ("copyset", {"copyset_append", "copyset_request", "store", "sync"}),
    ],
)
async def test_an_append_is_one_trace_through_all_servers(
    spans: Spans, protocol: str, at_servers: set[str]
) -> None:
    async with LocalCluster(nodes=3, sync="always") as cluster:
        log = await cluster.create_log("events", protocol, replicas=3)
        at = await log.append(b"first")  # opens the log
        with spans.provider.get_tracer("a program").start_as_current_span("checkout"):
            await log.append_many([b"a", b"b"])
        await log.read(at.position)
    (program,) = spans.named("checkout")
    assert at_servers | {"append"} <= spans.below(program)
    (mine,) = [s for s in spans.named("append") if s.parent == program.context]
    assert mine.attributes is not None
    assert (mine.attributes["log"], mine.attributes["records"]) == ("events", 2)
    (read,) = spans.named("read")[-1:]
    assert read.parent is None or read.parent.span_id != program.context.span_id
    assert bool(spans.named("commit round")) == (protocol == "ordered")
    stored = [s for s in spans.named("store") if s.context.trace_id == program.context.trace_id]
    assert len(stored) >= 3, "every replica is part of it"


async def test_failures_are_marked(spans: Spans) -> None:
    async with LocalCluster(nodes=1, sync="none") as cluster:
        log = await cluster.create_log("events", replicas=1)
        with pytest.raises(NotYetWritten):
            await log.read(99)
    (read,) = [span for span in spans.named("read") if "log" in (span.attributes or ())]
    assert not read.status.is_ok
    assert read.attributes is not None
    assert read.attributes["error.type"] == "NotYetWritten"


async def test_a_context_that_makes_no_sense_is_ignored(spans: Spans) -> None:
    local = LocalCluster(nodes=1, sync="none")
    async with local:
        connection = await connect(local.address, Codec("client"), Service(Codec("client"), {}))
        frame = pb.Frame(list_logs=pb.ListLogs(), trace="nonsense" * 20)
        frame.id = 7
        Connection.send(connection, frame)  # as an attacker would
        answer, _ = await connection.request(pb.Frame(list_logs=pb.ListLogs()))
        assert answer.HasField("log_list")
        connection.close()
    assert all(span.parent is None for span in spans.named("list_logs"))


async def test_without_it_nothing_is_made_and_nothing_is_sent() -> None:
    assert tracing.active() is None
    local = LocalCluster(nodes=1, sync="none")
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append(b"x")
        connection = await connect(local.address, Codec("client"), Service(Codec("client"), {}))
        assert type(connection) is Connection
        frame = pb.Frame(list_logs=pb.ListLogs())
        await connection.request(frame)
        assert frame.trace == ""
        connection.close()


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InvalidArgument, match=r"pip install 'loomlog\[tracing\]'"):
        tracing.enable()
    with pytest.raises(InvalidArgument, match=r"pip install 'loomlog\[tracing\]'"):
        tracing.export("vsn-1")
    assert tracing.active() is None

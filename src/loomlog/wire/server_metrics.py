"""The metrics of both kinds of servers: requests, connections, disks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from loomlog import limits
from loomlog.meters import Histogram, LogTraffic, Traffic
from loomlog.metrics import Metric, Sample, gauge, histogram
from loomlog.wire.link import Server


def server_metrics(traffic: Traffic, server: Server, syncs: Histogram) -> list[Metric]:
    connections = server.connections
    roles = Counter(connection.greeted.result() for connection in connections)
    return [
        Metric(
            "request_seconds",
            "histogram",
            "Time from a request to its answer, but for those that wait for entries.",
            [Sample(times, {"operation": name}) for name, times in sorted(traffic.times.items())],
        ),
        Metric(
            "request_errors",
            "counter",
            "Requests that were refused, by the kind of error.",
            [Sample(count, {"error": name}) for name, count in sorted(traffic.errors.items())],
        ),
        gauge(
            "requests_open",
            "Requests that are not answered, subscriptions included.",
            sum(connection.unanswered for connection in connections),
        ),
        gauge(
            "unsent_bytes",
            "Answers that peers have not read.",
            sum(connection.unsent_bytes for connection in connections),
        ),
        Metric(
            "connections",
            "gauge",
            "Connections of clients (client), storage nodes (vsn) and metadata repositories (vmr).",
            [Sample(roles[role], {"role": role}) for role in ("client", "vsn", "vmr")],
        ),
        histogram("sync_seconds", "Time that forced writes to disk take.", syncs),
    ]


def disk_metrics(spaces: Mapping[str, tuple[int, int]]) -> list[Metric]:
    """Return the space of this server's file systems: free and total bytes by directory."""

    def of(name: str, help: str, number: int) -> Metric:
        samples = [Sample(space[number], {"volume": path}) for path, space in spaces.items()]
        return Metric(f"disk_{name}", "gauge", help, samples)

    return [
        of("free_bytes", "Bytes that are free in the file system of a directory.", 0),
        of("size_bytes", "Size of the file system of a directory.", 1),
    ]


def log_metrics(logs: Iterable[tuple[str, LogTraffic]]) -> list[Metric]:
    """Return the traffic of each log on this server, for at most as many as a page may show."""
    shown = sorted(logs, key=lambda named: named[0])[: limits.METRICS_LOGS_MAX]

    def of(name: str, help: str, field: str) -> Metric:
        samples = [Sample(getattr(counts, field), {"log": log}) for log, counts in shown]
        return Metric(name, "counter", help, samples)

    note = "where clients write to each replica, each one counts"
    return [
        of("append_requests", f"Batches that this node acknowledged; {note}.", "appends"),
        of("append_records", f"Records in them; {note}.", "append_records"),
        of("append_bytes", f"Bytes in them; {note}.", "append_bytes"),
        of("read_requests", "Answers with entries that this node gave.", "reads"),
        of("read_bytes", "Bytes in them.", "read_bytes"),
    ]

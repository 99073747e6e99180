"""Metrics in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from loomlog.core.conditions import Kind, severity_of
from loomlog.wire import loomlog_pb2 as pb


class Sample(NamedTuple):
    """One value of a metric, identified by its labels."""

    value: float
    labels: Mapping[str, object] = MappingProxyType({})


class Metric(NamedTuple):
    """One metric with all its samples."""

    name: str  # without the prefix `loomlog_`
    kind: str  # gauge or counter
    samples: list[Sample]


def render(metrics: Iterable[Metric]) -> str:
    lines = []
    for name, kind, samples in metrics:
        lines.append(f"# TYPE loomlog_{name} {kind}")
        lines += [f"loomlog_{name}{_labels(labels)} {value}" for value, labels in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, object]) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(text: object) -> str:
    return str(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def follower_metrics(leader_epoch: int) -> str:
    """Return the metrics of a metadata repository that does not lead."""
    return render(_leader_metrics(0, leader_epoch))


def _leader_metrics(leads: int, epoch: int) -> list[Metric]:
    return [gauge("metadata_leads", leads), gauge("metadata_leader_epoch", epoch)]


def gauge(name: str, value: float) -> Metric:
    return Metric(name, "gauge", [Sample(value)])


def cluster_metrics(status: pb.Status) -> list[Metric]:
    """Return the metrics that do not depend on protocols."""
    return [
        gauge("uptime_seconds", round(status.uptime_s, 3)),
        *_leader_metrics(1, status.leader_epoch),
        _of_members("metadata_member_reachable", status, "reachable"),
        _of_members("metadata_member_lag", status, "lag"),
        _condition_metric(status),
        *_node_metrics(status),
        *_log_metrics(status),
        *_group_metrics(status),
    ]


def _of_members(name: str, status: pb.Status, field: str) -> Metric:
    members = status.members
    samples = [Sample(int(getattr(m, field)), {"member": m.member_id}) for m in members]
    return Metric(name, "gauge", samples)


def _condition_metric(status: pb.Status) -> Metric:
    """Return how many conditions there are of each kind, 0 for those that there are none of."""
    counts = Counter(condition.kind for condition in status.conditions)
    samples = [Sample(counts[kind], {"kind": kind, "severity": severity_of(kind)}) for kind in Kind]
    return Metric("conditions", "gauge", samples)


def _node_metrics(status: pb.Status) -> list[Metric]:
    def of_nodes(name: str, values: Iterable[int]) -> Metric:
        pairs = zip(values, status.nodes, strict=True)
        samples = [Sample(value, {"node": node.storage_node_id}) for value, node in pairs]
        return Metric(name, "gauge", samples)

    def of_scrubs(field: str, kind: str) -> Metric:
        samples = [
            Sample(getattr(node.scrub, field), {"node": node.storage_node_id})
            for node in status.nodes
            if node.HasField("scrub")
        ]
        return Metric(f"scrub_{field}", kind, samples)

    def of_volumes(name: str, field: str) -> Metric:
        samples = [
            Sample(
                int(getattr(volume, field)),
                {"node": node.storage_node_id, "volume": volume.path},
            )
            for node in status.nodes
            for volume in node.volumes
        ]
        return Metric(f"volume_{name}", "gauge", samples)

    nodes = status.nodes
    about = Counter(condition.storage_node_id for condition in status.conditions)
    return [
        of_scrubs("passes", "counter"),
        of_scrubs("bytes", "counter"),
        of_scrubs("damaged", "counter"),
        of_scrubs("repaired", "counter"),
        of_scrubs("unrepaired", "gauge"),
        of_volumes("used_bytes", "used"),
        of_volumes("limit_bytes", "limit"),
        of_volumes("free_bytes", "free"),
        of_volumes("full", "full"),
        of_volumes("failed", "failed"),
        of_nodes("node_alive", (int(n.alive) for n in nodes)),
        of_nodes("node_stored_bytes", (n.stored_bytes for n in nodes)),
        of_nodes("node_draining", (int(n.draining) for n in nodes)),
        of_nodes("node_unknown_streams", (len(n.unknown_streams) for n in nodes)),
        of_nodes("node_conditions", (about[n.storage_node_id] for n in nodes)),
        gauge("nodes_silent", sum(not n.alive for n in nodes)),
        Metric(
            "denials",
            "counter",
            [
                Sample(status.denials, {"server": "vmr"}),
                *(Sample(n.denials, {"server": f"vsn-{n.storage_node_id}"}) for n in nodes),
            ],
        ),
        Metric("limit_refusals", "counter", _refusals(status)),
    ]


def _refusals(status: pb.Status) -> list[Sample]:
    servers = {"vmr": status.refusals}
    servers |= {f"vsn-{node.storage_node_id}": node.refusals for node in status.nodes}
    return [
        Sample(getattr(refusals, limit), {"server": server, "limit": limit})
        for server, refusals in servers.items()
        for limit in pb.LimitRefusals.DESCRIPTOR.fields_by_name
    ]


def _log_metrics(status: pb.Status) -> list[Metric]:
    tails = [Sample(log.tail, {"log": log.name}) for log in status.logs if not log.tail_unknown]
    streams = streams_of(status)
    return [
        Metric("log_tail", "counter", tails),
        Metric("log_underreplicated_records", "gauge", _short(status, "records")),
        Metric("log_underreplicated_bytes", "gauge", _short(status, "bytes")),
        gauge("streams_sealed", sum(_is_missed(log, stream) for log, stream in streams)),
        Metric(
            "stream_running",
            "gauge",
            [stream_sample(int(s.state == pb.RUNNING), log, s) for log, s in streams],
        ),
        Metric(
            "stream_entries",
            "counter",
            [stream_sample(s.entries, log, s) for log, s in streams if s.HasField("entries")],
        ),
        Metric(
            "stream_copied_entries",
            "gauge",
            [stream_sample(s.copied_entries, log, s) for log, s in streams if s.joining_node],
        ),
    ]


def _group_metrics(status: pb.Status) -> list[Metric]:
    """Return how far consumer groups are behind, in positions; nothing where the tail is not
    known."""
    groups = [(log, group) for log in status.logs for group in log.groups]
    lags = [
        Sample(max(0, log.tail - position), {"log": log.name, "group": group.name, "shard": number})
        for log, group in groups
        if not log.tail_unknown
        for number, position in enumerate(group.positions)
    ]
    members = [
        Sample(group.members, {"log": log.name, "group": group.name}) for log, group in groups
    ]
    return [Metric("group_lag", "gauge", lags), Metric("group_members", "gauge", members)]


def _short(status: pb.Status, field: str) -> list[Sample]:
    """Return how much of each log has fewer copies than wanted; logs for which that is not known
    have no sample."""
    short = [c for c in status.conditions if c.kind == Kind.UNDER_REPLICATED]
    unknown = {condition.log for condition in short if not condition.HasField(field)}
    sums: Counter[str] = Counter()
    for condition in short:
        sums[condition.log] += getattr(condition, field)
    names = (log.name for log in status.logs)
    return [Sample(sums[name], {"log": name}) for name in names if name not in unknown]


def streams_of(status: pb.Status) -> list[tuple[pb.Log, pb.LogStream]]:
    return [(log, stream) for log in status.logs for stream in log.streams]


def stream_sample(value: int, log: pb.Log, stream: pb.LogStream) -> Sample:
    return Sample(value, {"log": log.name, "stream": stream.log_stream_id})


def _is_missed(log: pb.Log, stream: pb.LogStream) -> bool:
    """Return whether it should take appends and does not; those of ended segments never do."""
    is_active = stream.loglet_id == log.segments[-1].loglet_id
    return is_active and stream.state != pb.RUNNING

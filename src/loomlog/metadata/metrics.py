"""The metrics of a metadata repository: its own, and those of the cluster if it leads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

from loomlog import limits
from loomlog.core.conditions import LOG_KINDS, Kind, severity_of
from loomlog.metadata.registers import ClusterRegisters
from loomlog.metrics import Metric, Sample, gauge
from loomlog.wire import loomlog_pb2 as pb

_CHECKPOINTS = "checkpoint/"  # prefix of the registers with readers' positions


def leader_metrics(*, leads: bool, epoch: int) -> list[Metric]:
    """Return the metrics that every metadata repository has."""
    return [
        gauge("metadata_leads", "1 if this metadata repository leads.", int(leads)),
        gauge("metadata_leader_epoch", "Epoch of the newest leader that it knows.", epoch),
    ]


def cluster_metrics(status: pb.Status) -> list[Metric]:
    """Return the metrics that do not depend on protocols."""
    return [
        gauge("uptime_seconds", "Time since it began to lead.", round(status.uptime_s, 3)),
        *leader_metrics(leads=True, epoch=status.leader_epoch),
        _of_members("reachable", "1 if the leader reaches it.", status),
        _of_members("lag", "Records of the round log that it lacks.", status),
        _condition_metric(status),
        *_node_metrics(status),
        *_log_metrics(status),
        *_group_metrics(status),
    ]


def shown_logs(status: pb.Status) -> list[pb.Log]:
    """Return the logs that have individual metrics: the oldest."""
    return sorted(status.logs, key=lambda log: log.log_id)[: limits.METRICS_LOGS_MAX]


def streams_of(status: pb.Status) -> list[tuple[pb.Log, pb.LogStream]]:
    """Return the streams that have individual metrics."""
    streams = [(log, stream) for log in shown_logs(status) for stream in log.streams]
    return streams[: limits.METRICS_STREAMS_MAX]


def stream_sample(value: int, log: pb.Log, stream: pb.LogStream) -> Sample:
    return Sample(value, {"log": log.name, "stream": stream.log_stream_id})


def _of_members(field: str, help: str, status: pb.Status) -> Metric:
    members = status.members
    samples = [Sample(int(getattr(m, field)), {"member": m.member_id}) for m in members]
    return Metric(f"metadata_member_{field}", "gauge", help, samples)


def _condition_metric(status: pb.Status) -> Metric:
    counts = Counter(condition.kind for condition in status.conditions)
    kinds = [kind for kind in Kind if _are_logs_known(status) or kind not in LOG_KINDS]
    samples = [
        Sample(counts[kind], {"kind": kind, "severity": severity_of(kind)}) for kind in kinds
    ]
    return Metric("conditions", "gauge", "Conditions of the cluster, by kind.", samples)


def _node_metrics(status: pb.Status) -> list[Metric]:
    nodes = status.nodes
    about = Counter(condition.storage_node_id for condition in status.conditions)
    return [
        *_scrub_metrics(status),
        *_volume_metrics(status),
        _of_nodes("alive", "1 if a node reports.", status, lambda n: int(n.alive)),
        _of_nodes(
            "stored_bytes",
            "About how much a node stores.",
            status,
            lambda n: n.stored_bytes if n.HasField("stored_bytes") else None,
        ),
        _of_nodes("draining", "1 if a node is being emptied.", status, lambda n: int(n.draining)),
        _of_nodes(
            "unknown_streams",
            "Streams on a node that are not, or no longer, its own.",
            status,
            lambda n: len(n.unknown_streams) if n.HasField("last_report_s") else None,
        ),
        _of_nodes(
            "conditions", "Conditions of a node.", status, lambda n: about[n.storage_node_id]
        ),
        gauge("nodes_silent", "Nodes that do not report.", sum(not n.alive for n in nodes)),
        *_refusal_metrics(status),
    ]


def _of_nodes(
    name: str, help: str, status: pb.Status, value: Callable[[pb.NodeStatus], int | None]
) -> Metric:
    """Return a metric of each node, except those without a value."""
    values = ((value(node), node) for node in status.nodes)
    samples = [Sample(v, {"node": node.storage_node_id}) for v, node in values if v is not None]
    return Metric(f"node_{name}", "gauge", help, samples)


def _scrub_metrics(status: pb.Status) -> list[Metric]:
    def of_scrubs(field: str, kind: str, help: str) -> Metric:
        samples = [
            Sample(getattr(node.scrub, field), {"node": node.storage_node_id})
            for node in status.nodes
            if node.HasField("scrub")
        ]
        return Metric(f"scrub_{field}", kind, help, samples)

    return [
        of_scrubs("passes", "counter", "Times that a node has read all that it stores."),
        of_scrubs("bytes", "counter", "Bytes that were read to find damage."),
        of_scrubs("damaged", "counter", "Damaged or missing batches and copies found."),
        of_scrubs("repaired", "counter", "Of these, those that were repaired."),
        of_scrubs("unrepaired", "gauge", "Of these, those that could not be repaired."),
    ]


def _volume_metrics(status: pb.Status) -> list[Metric]:
    def of_volumes(name: str, field: str, help: str) -> Metric:
        samples = [
            Sample(
                int(getattr(volume, field)),
                {"node": node.storage_node_id, "volume": volume.path},
            )
            for node in status.nodes
            for volume in node.volumes
            if field != "limit" or volume.limit
        ]
        return Metric(f"volume_{name}", "gauge", help, samples)

    return [
        of_volumes("used_bytes", "used", "Bytes that a node uses on a volume."),
        of_volumes("limit_bytes", "limit", "Most that a node may use of a volume, if limited."),
        of_volumes("free_bytes", "free", "Bytes that are free in the file system of a volume."),
        of_volumes("full", "full", "1 if a volume takes no appends for lack of space."),
        of_volumes("failed", "failed", "1 if a volume does not work."),
    ]


def _refusal_metrics(status: pb.Status) -> list[Metric]:
    return [
        _of_servers(status, "denials", "Requests that were denied for lack of a permission."),
        _of_servers(
            status,
            "audit_dropped",
            "Entries that the audit log lacks because there were too many at once.",
        ),
        Metric(
            "limit_refusals",
            "counter",
            "Requests and connections that were refused because one identity used too much.",
            _refusals(status),
        ),
    ]


def _of_servers(status: pb.Status, field: str, text: str) -> Metric:
    """Return a counter of the leading vmr, and of each node that has reported it."""
    counts = {"vmr": getattr(status, field)}
    counts |= {
        f"vsn-{node.storage_node_id}": getattr(node, field)
        for node in status.nodes
        if node.HasField(field)
    }
    samples = [Sample(count, {"server": server}) for server, count in counts.items()]
    return Metric(field, "counter", text, samples)


def _refusals(status: pb.Status) -> list[Sample]:
    servers = {"vmr": status.refusals}
    servers |= {
        f"vsn-{node.storage_node_id}": node.refusals
        for node in status.nodes
        if node.HasField("refusals")
    }
    return [
        Sample(getattr(refusals, limit), {"server": server, "limit": limit})
        for server, refusals in servers.items()
        for limit in pb.LimitRefusals.DESCRIPTOR.fields_by_name
    ]


def _log_metrics(status: pb.Status) -> list[Metric]:
    logs, streams = shown_logs(status), streams_of(status)
    tails = [Sample(log.tail, {"log": log.name}) for log in logs if not log.tail_unknown]
    all_streams = [(log, stream) for log in status.logs for stream in log.streams]
    return [
        gauge("logs", "Logs of the cluster.", len(status.logs)),
        gauge(
            "metrics_logs_omitted",
            "Logs that are too many to have metrics of their own.",
            len(status.logs) - len(logs),
        ),
        Metric("log_tail", "gauge", "Last position of a log, if it is known.", tails),
        Metric(
            "log_underreplicated_records",
            "gauge",
            "Entries of a log with fewer copies than wanted, at most.",
            _short(status, logs, "records"),
        ),
        Metric(
            "log_underreplicated_bytes",
            "gauge",
            "About how much of a log has fewer copies than wanted.",
            _short(status, logs, "bytes"),
        ),
        gauge(
            "streams_sealed",
            "Streams that should take appends and do not.",
            sum(_is_missed(log, stream) for log, stream in all_streams),
        ),
        Metric(
            "stream_running",
            "gauge",
            "1 if a stream takes appends.",
            [stream_sample(int(s.state == pb.RUNNING), log, s) for log, s in streams],
        ),
        Metric(
            "stream_entries",
            "counter",
            "Entries of a stream, those included that are trimmed.",
            [stream_sample(s.entries, log, s) for log, s in streams if s.HasField("entries")],
        ),
        Metric(
            "stream_copied_entries",
            "gauge",
            "Entries copied so far to a new replica.",
            [stream_sample(s.copied_entries, log, s) for log, s in streams if s.joining_node],
        ),
    ]


def _group_metrics(status: pb.Status) -> list[Metric]:
    """Return the lag of consumer groups in positions; nothing where the tail is unknown, or while
    the metadata may be old."""
    logs = shown_logs(status) if _are_logs_known(status) else []
    groups = [(log, group) for log in logs for group in log.groups]
    lags = [
        Sample(max(0, log.tail - position), {"log": log.name, "group": group.name, "shard": number})
        for log, group in groups
        if not log.tail_unknown
        for number, position in enumerate(group.positions)
    ]
    members = [
        Sample(group.members, {"log": log.name, "group": group.name}) for log, group in groups
    ]
    shown = limits.METRICS_READERS_MAX
    return [
        Metric("group_lag", "gauge", "Positions between a group and the tail.", lags[:shown]),
        Metric("group_members", "gauge", "Members of a group.", members[:shown]),
        *_queue_metrics(logs),
    ]


def _queue_metrics(logs: Sequence[pb.Log]) -> list[Metric]:
    """Return the lag of work queues, and their jobs."""
    queues = [(log, queue) for log in logs for queue in log.queues]
    shown = limits.METRICS_READERS_MAX
    lags = [
        Sample(max(0, log.tail - queue.position), {"log": log.name, "queue": queue.name})
        for log, queue in queues[:shown]
        if not log.tail_unknown
    ]
    jobs = [
        Sample(count, {"log": log.name, "queue": queue.name, "state": state})
        for log, queue in queues[:shown]
        for state, count in (("taken", queue.taken), ("free", queue.free))
    ]
    members = [
        Sample(queue.members, {"log": log.name, "queue": queue.name})
        for log, queue in queues[:shown]
    ]
    return [
        Metric("queue_lag", "gauge", "Positions that no member of a queue has taken.", lags),
        Metric(
            "queue_jobs",
            "gauge",
            "Jobs of a queue that a member has, or that wait to be taken again.",
            jobs,
        ),
        Metric("queue_members", "gauge", "Members of a queue.", members),
    ]


def _short(status: pb.Status, logs: Sequence[pb.Log], field: str) -> list[Sample]:
    """Return how much of each log has fewer copies than wanted; logs for which that is unknown have
    no sample."""
    if not _are_logs_known(status):
        return []
    short = [c for c in status.conditions if c.kind == Kind.UNDER_REPLICATED]
    unknown = {condition.log for condition in short if not condition.HasField(field)}
    sums: Counter[str] = Counter()
    for condition in short:
        sums[condition.log] += getattr(condition, field)
    names = (log.name for log in logs)
    return [Sample(sums[name], {"log": name}) for name in names if name not in unknown]


def _are_logs_known(status: pb.Status) -> bool:
    """Return whether the metadata of logs and readers is current."""
    return not any(
        c.kind in (Kind.METADATA_WAITS, Kind.METADATA_ROLLED_BACK) for c in status.conditions
    )


def _is_missed(log: pb.Log, stream: pb.LogStream) -> bool:
    """Return whether a stream should take appends and does not; streams of ended segments should
    not."""
    is_active = stream.loglet_id == log.segments[-1].loglet_id
    return is_active and stream.state != pb.RUNNING


async def reader_metrics(registers: ClusterRegisters, status: pb.Status) -> list[Metric]:
    """Return the checkpoints of readers and their lag, unless the metadata may be old."""
    found = await registers.list(pb.ListRegisters(prefix=_CHECKPOINTS))
    logs = {log.name: log for log in status.logs if _are_logs_known(status)}
    positions, lags = [], []
    for register in found.registers[: limits.METRICS_READERS_MAX]:
        name, _, reader = register.name.removeprefix(_CHECKPOINTS).rpartition("/")
        position = _position(register.value, logs.get(name))
        if position is None:
            continue
        labels = {"log": name, "reader": reader}
        positions.append(Sample(position, labels))
        if not logs[name].tail_unknown:
            lags.append(Sample(max(0, logs[name].tail - position), labels))
    return [
        Metric("reader_position", "gauge", "Last position that a reader is done with.", positions),
        Metric("reader_lag", "gauge", "Positions between a reader and the tail.", lags),
    ]


def _position(value: bytes, log: pb.Log | None) -> int | None:
    """Return the position in a checkpoint; None if its log was deleted, or if it is not a
    checkpoint."""
    try:
        fields = json.loads(value)
        return int(fields["position"]) if log and fields["log"] == log.log_id else None
    except (ValueError, KeyError, TypeError):
        return None

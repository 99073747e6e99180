"""Find the committed entries of a stream that have fewer copies than wanted. Pure."""

from __future__ import annotations

from collections.abc import Callable

from loomlog.core.conditions import Shortage
from loomlog.core.ordered.rounds import StreamRounds
from loomlog.types import Llsn, NodeId


def shortage(
    stream: StreamRounds,
    end: Llsn,
    reachable: Callable[[NodeId], bool],
    stored_bytes: int | None,
) -> Shortage | None:
    """Return the shortage of the entries before `end`; those at and after it are lost.

    Each replica takes about `stored_bytes` (None: unknown). A replica does not count if its node is
    down or has not reported it. Trimmed entries are counted, unless all are trimmed: how many there
    are is not known here."""
    entries = end - 1
    if stream.is_trimmed:
        return None
    if not stream.heard:
        reason = f"no replica of stream {stream.stream_id} has reported yet"
        return Shortage(None, None, [reason])
    if not entries:
        return None
    lacking = {node: missing_on(stream, end, node, reachable) for node in stream.replicas}
    reasons = [reason for count, reason in lacking.values() if count]
    records = max((count for count, _ in lacking.values()), default=entries)
    has, wanted = len(stream.replicas), stream.wanted_replicas
    helps = ""
    if has < wanted:
        records = entries
        reasons.append(f"stream {stream.stream_id} has {has} of {wanted} replicas")
        helps = f"have {wanted} nodes running that have no old data of it: `loom node list`"
    if not records:
        return None
    size = None if stored_bytes is None else stored_bytes * records // entries
    return Shortage(records, size, reasons, helps)


def missing_on(
    stream: StreamRounds, end: Llsn, node: NodeId, reachable: Callable[[NodeId], bool]
) -> tuple[int, str]:
    """Return how many of the entries before `end` a replica lacks, and why."""
    entries, report = end - 1, stream.reports.get(node)
    if not reachable(node):
        return entries, f"node {node} is away"
    if report is None:
        return entries, f"node {node} has no replica of stream {stream.stream_id}"
    if report.damaged:
        return entries, f"the replica of stream {stream.stream_id} on node {node} is damaged"
    behind = max(end - report.written_end, 0)
    return behind, f"node {node} lacks the end of stream {stream.stream_id}"


def is_readable(stream: StreamRounds, reachable: Callable[[NodeId], bool]) -> bool:
    """Return whether a reachable replica has all committed entries."""
    end = stream.committed_llsn_end
    return stream.heard and any(
        not missing_on(stream, end, node, reachable)[0] for node in stream.replicas
    )

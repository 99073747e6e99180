"""The screen of `loom status`: problems first, then nodes and logs, in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from loomlog.cli.console.output import (
    condition,
    duration,
    epoch_and_tail,
    group_table,
    log_table,
    member_table,
    node_table,
    plain,
    segment_table,
    size,
    stream_table,
)
from loomlog.core.permissions import AUDIT_LOG
from loomlog.wire.condition_groups import group_conditions

if TYPE_CHECKING:
    from rich.console import RenderableType

    from loomlog.wire.conditions import ConditionInfo
    from loomlog.wire.info import ClusterStatus, LogInfo, StreamInfo

CONDITIONS_SHOWN: Final = 30  # at once
STREAMS_SHOWN: Final = 15
_COLORS: Final = {"problem": "red", "warning": "yellow", "work": "cyan"}
_DEAD_LETTERS: Final = ".dead-letters"


def is_internal(log: LogInfo) -> bool:
    """Return whether a log is an implementation detail of something else."""
    return bool(log.staging_for) or log.name.endswith(_DEAD_LETTERS) or log.name == AUDIT_LOG


def shown_logs(logs: Sequence[LogInfo], *, all_logs: bool) -> tuple[list[LogInfo], str]:
    """Return the logs to show, and a line about the omitted ones."""
    shown = [log for log in logs if all_logs or not is_internal(log)]
    hidden = len(logs) - len(shown)
    words = "log: see it" if hidden == 1 else "logs: see them"
    return shown, f"{hidden:,} internal {words} with --all" if hidden else ""


def status_view(
    status: ClusterStatus, *, all_logs: bool = False, rates: Mapping[str, float] | None = None
) -> RenderableType:
    """Show the cluster, with unhealthy or all streams. `rates`: entries per second, by log."""
    from rich.console import Group

    logs, hidden = shown_logs(status.logs, all_logs=all_logs)
    parts: list[RenderableType] = [_head(status), *health(status.conditions)]
    if len(status.members) > 1:
        parts.append(member_table(status))
    parts.append(node_table(status.nodes))
    if not status.logs:
        parts.append("no logs yet: create one with `loom log create NAME`")
    elif logs:
        parts.append(log_table(logs, rates))
    if any(log.groups for log in logs):
        parts.append(group_table(logs))
    if all_logs and any(log.streams for log in logs):
        return Group(*parts, stream_table(logs))
    parts += _ill_streams(logs)
    return Group(*parts, *([hidden] if hidden else []))


def log_view(
    status: ClusterStatus, name: str, rates: Mapping[str, float] | None = None
) -> RenderableType:
    """Show one log with all its segments and streams."""
    from rich.console import Group

    [info] = (log for log in status.logs if log.name == name)
    conditions = [each for each in status.conditions if each.log == name]
    tables = log_table([info], rates), segment_table(info), stream_table([info])
    return Group(*health(conditions), *tables)


def _head(status: ClusterStatus) -> str:
    alive = sum(node.alive for node in status.nodes)
    waiting = sum(node.held_back is not None for node in status.nodes)
    held_back = f" and {waiting} held back" if waiting else ""
    return (
        f"cluster [bold]{plain(status.cluster_id)}[/] at {status.metadata_address}: "
        f"{alive} of {len(status.nodes)} nodes alive{held_back}, "
        f"rounds: {status.rounds:,}, up {duration(status.uptime_s)}"
    )


def _ill_streams(logs: Sequence[LogInfo]) -> list[RenderableType]:
    """Show unhealthy streams, the first of them if there are many."""
    ill = [(log, stream) for log in logs for stream in log.streams if _needs_a_look(log, stream)]
    if not ill:
        return []
    shown = {(log.name, stream.id) for log, stream in ill[:STREAMS_SHOWN]}
    table = stream_table(logs, lambda log, stream: (log.name, stream.id) in shown)
    more = len(ill) - len(shown)
    return [table, f"and {more:,} more streams: see `loom stream list`"] if more else [table]


def _needs_a_look(log: LogInfo, stream: StreamInfo) -> bool:
    stopped = stream in log.active_streams and stream.state != "running"
    return stopped or bool(condition(stream))


def health(conditions: Sequence[ConditionInfo]) -> list[RenderableType]:
    """Return the conditions, the most urgent first, or that the cluster is healthy."""
    from rich.padding import Padding

    if not conditions:
        return ["[green]healthy:[/] every acknowledged entry has all its copies"]
    lines: list[RenderableType] = []
    groups = group_conditions(conditions)
    for group in groups[:CONDITIONS_SHOWN]:
        each = group.condition
        color = _COLORS.get(each.severity, "red")
        words = plain(each.text) + (f" (about {size(each.bytes)})" if each.bytes else "")
        lines.append(f"[{color}]{each.severity}[/] {plain(group.subject)}: {words}")
        if each.help:
            lines.append(Padding(f"→ {plain(each.help)}", (0, 0, 0, 2), expand=False))
    more = sum(group.count for group in groups[CONDITIONS_SHOWN:])
    return [*lines, f"and {more:,} more: see `loom status --json`"] if more > 0 else lines


class Rates:
    """Computes entries per second of each log, from one status to the next."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int]] = {}
        self._at_s = 0.0

    def update(self, logs: Sequence[LogInfo], now_s: float) -> dict[str, float]:
        """Return the rates since the last call; none for logs that cannot be compared."""
        counts = {log.name: epoch_and_tail(log) for log in logs if log.tail is not None}
        passed_s, before = now_s - self._at_s, self._before
        self._before, self._at_s = counts, now_s
        return {
            name: max(0, count - before[name][1]) / passed_s
            for name, (epoch, count) in counts.items()
            if name in before and before[name][0] == epoch and passed_s > 0
        }

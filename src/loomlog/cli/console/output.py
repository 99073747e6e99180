"""Output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from loomlog.core.copyset.nodeset import shard_name, shard_of
from loomlog.core.copyset.record import epoch_of, lsn_words
from loomlog.types import SyncMode

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from loomlog.client.operator_results import NodesOutage, ReplicaScrub, StreamDescription
    from loomlog.wire.info import (
        ClusterStatus,
        EpochsInfo,
        LogInfo,
        NodeInfo,
        RebuildInfo,
        StreamInfo,
    )

# A value is shown on one line and must not control the terminal; tabs are harmless.
STREAMS_SHOWN: Final = 10  # unneeded ones with data on a node
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(32), 127) if code != 9}
_VISIBLE |= {10: "\\n", 13: "\\r"}


def print_json(value: Any) -> None:
    """Print a value as one line."""
    print(json.dumps(value, default=str), flush=True)


def say(fields: Any, text: str, *, as_json: bool) -> None:
    """Print the outcome of a command: the fields for programs, or the text for people."""
    if as_json:
        print_json(fields)
    else:
        print(text)


def visible(data: bytes) -> str:
    """Return bytes as text on one line, with control characters and bad UTF-8 escaped."""
    return data.decode("utf-8", "backslashreplace").translate(_VISIBLE)


def span(first: int, last: int) -> str:
    """Name the positions from `first` to `last`."""
    return f"position {first:,}" if first == last else f"positions {first:,} to {last:,}"


def console() -> Console:
    """Return a console for tables; without a terminal nothing is cut to a width."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=200)


def plain(text: str) -> str:
    """Escape a user's text for rich, so that its brackets are not markup."""
    from rich.markup import escape

    return escape(text)


def print_scrubs(scrubs: Sequence[ReplicaScrub]) -> None:
    table = new_table("node", "checked", "corrupt", "missing", "repaired", "result")
    for scrub in scrubs:
        found = scrub.corrupt_batches + scrub.missing_copies
        whole = not scrub.error and found == scrub.repaired_batches
        result = plain(scrub.error) or ("whole" if whole else "corrupt")
        counts = _numbers(scrub.corrupt_batches, scrub.missing_copies, scrub.repaired_batches)
        row = (str(scrub.node), size(scrub.checked_bytes), *counts, _colored(result, good=whole))
        table.add_row(*row)
    console().print(table)


def print_outage(outage: NodesOutage) -> None:
    """Show what stopping nodes would interrupt."""
    stopped, away = (
        ", ".join(f"node {node}" for node in nodes) for nodes in (outage.nodes, outage.away)
    )
    without = f"without {stopped}" if stopped else "now"
    if away:
        without += f" ({away} is away)"
    unaffected = outage.logs - len(outage.affected)
    print(f"{without}: {unaffected} of {outage.logs} logs have all their copies")
    if not outage.affected:
        return
    table = new_table("log", "appends", "reads", "copies left", "why")
    for log in outage.affected:
        table.add_row(
            plain(log.log),
            *(
                _colored("stop" if stop else "continue", good=not stop)
                for stop in (log.appends_stop, log.reads_stop)
            ),
            f"{log.copies_left} of {log.copies}",
            plain("; ".join(filter(None, (log.appends_stop, log.reads_stop)))),
        )
    console().print(table)


def print_stream(described: StreamDescription) -> None:
    """Show a stream and everything known about its replicas."""
    stream = described.stream
    entries = "" if stream.entries is None else f", {stream.entries:,} entries"
    print(
        f"stream {stream.id} of log {described.log}: {stream.protocol}, {stream.state}, "
        f"epoch {stream.epoch}{entries}"
    )
    if text := condition(stream):
        print(visible(text.encode()))
    columns = ("written", "committed", "log end", "lag")
    table = new_table("node", "role", "state", "epoch", *columns)
    disks = new_table("node", "stored", "free", "path")
    for replica in described.replicas:
        numbers = (replica.written, replica.committed, replica.high_watermark, replica.lag)
        free = replica.free_bytes, replica.total_bytes
        table.add_row(
            str(replica.node),
            replica.role,
            plain(replica.state) if replica.alive else _colored("away", good=False),
            "" if replica.epoch is None else f"{replica.epoch:,}",
            *("" if number is None else f"{number:,}" for number in numbers),
        )
        disks.add_row(
            str(replica.node),
            "" if replica.stored_bytes is None else size(replica.stored_bytes),
            "" if None in free else " of ".join(size(part or 0) for part in free),
            plain(replica.path or ""),
        )
    console().print(table, disks)


def member_table(status: ClusterStatus) -> Table:
    """List the metadata repositories, if there are several."""
    table = new_table("metadata", "address", "role", "epoch", "state", "lag")
    for member in status.members:
        role = "leader" if member.leads else "leaving" if member.leaving else "follower"
        state = _colored("reachable" if member.reachable else "away", good=member.reachable)
        epoch = str(status.leader_epoch) if member.leads else ""
        table.add_row(str(member.id), member.address, role, epoch, state, f"{member.lag:,}")
    return table


def log_table(logs: Sequence[LogInfo], rates: Mapping[str, float] | None = None) -> Table:
    """List logs; with `rates`, also their entries per second."""
    table = new_table("log", "protocol", "running", "replicas", "first", "last")
    table.collapse_padding = True
    if rates is not None:
        table.add_column("entries/s", justify="right")
    retained = any(info.retention_s or info.retention_bytes for info in logs)
    if retained:
        table.add_column("kept")
    for info in logs:
        there = [stream.state for stream in info.active_streams for _ in stream.chains or (None,)]
        running = f"{there.count('running')}/{len(there)}"
        purpose = f" (rows for {info.staging_for})" if info.staging_for else ""
        numbers = [f"{info.replicas:,}", _short(info, info.head), _tail(info)]
        if rates is not None:
            rate = rates.get(info.name)
            numbers.append("" if rate is None else f"{rate:,.0f}")
        stay = [_stay(info)] if retained else []
        table.add_row(plain(info.name + purpose), info.protocol, running, *numbers, *stay)
    return table


def _stay(info: LogInfo) -> str:
    wishes = [age(info.retention_s)] if info.retention_s else []
    wishes += [size(info.retention_bytes).replace(".0 ", " ")] if info.retention_bytes else []
    return ", ".join(wishes) or "forever"


def group_table(logs: Sequence[LogInfo]) -> Table:
    """List the consumer groups with the lag of the slowest shard."""
    table = new_table("log", "group", "members", "shards", "behind")
    for info in logs:
        for group in info.groups:
            behind = "unknown" if group.behind is None else f"{max(group.behind):,}"
            numbers = _numbers(group.members, len(group.positions))
            table.add_row(plain(info.name), plain(group.name), *numbers, behind)
    return table


def segment_table(info: LogInfo) -> Table:
    table = new_table(
        "segment", "protocol", "streams", "replicas", "at least", "first", "last", "state"
    )
    packs = any(segment.compression != "none" for segment in info.segments)
    if packs:
        table.add_column("compression")
    for segment in info.segments:
        active = segment.end is None
        last = "" if segment.end is None else _position(info, segment.end)
        if segment.end is not None and segment.end < segment.start:
            last = "(empty)"
        state = (info.switching or "active") if active else "sealed"
        numbers = _numbers(segment.streams, segment.replicas, segment.min_replicas)
        numbers.append(_position(info, segment.start))
        cells = [str(segment.id), segment.protocol, *numbers, last, plain(state)]
        table.add_row(*cells, *([segment.compression] if packs else []))
    return table


def stream_table(
    logs: Sequence[LogInfo], only: Callable[[LogInfo, StreamInfo], bool] | None = None
) -> Table:
    """List streams: all of them, or those for which `only` returns True."""
    table = new_table("log", "stream", "state", "epoch", "entries", "nodes", "condition")
    table.collapse_padding = True
    for info in logs:
        for stream in info.streams:
            if only is not None and not only(info, stream):
                continue
            running = stream.state == "running"
            table.add_row(
                plain(info.name),
                str(stream.id),
                _colored(stream.state, good=stream not in info.active_streams or running),
                *_numbers(stream.epoch),
                _entries(info, stream),
                stream.placement,
                plain(condition(stream)),
            )
    return table


def epoch_table(info: LogInfo) -> Table:
    table = new_table("segment", "epochs", "nodeset", "replicas", "sequencer", "recovered to")
    for stream in info.streams:
        if (copyset := stream.copyset) is None:
            continue
        *older, newest = copyset.history
        ends = [later.since - 1 for later in copyset.history[1:]]
        for epochs, end in zip(older, ends, strict=True):
            table.add_row(*_epochs(stream, epochs, end), "", "")
        sequencer = f"node {copyset.sequencer}" if copyset.sequencer else "none yet"
        sequencer = "closed" if copyset.closed else sequencer
        cells = _epochs(stream, newest, stream.epoch)
        table.add_row(*cells, sequencer, f"epoch {copyset.last_clean}")
    return table


def _epochs(stream: StreamInfo, epochs: EpochsInfo, end: int) -> tuple[str, ...]:
    span = f"{epochs.since} to {end}" if end > epochs.since else str(epochs.since)
    shards = ", ".join(sorted(epochs.shards, key=lambda shard: [*map(int, shard.split("/"))]))
    return str(stream.segment), span, shards, str(epochs.replicas)


def _entries(info: LogInfo, stream: StreamInfo) -> str:
    """Return the number of entries. Where LLSNs are positions, entries are not counted, so return
    the last known position."""
    if stream.entries is not None:
        return f"{stream.entries:,}"
    starts = {segment.id: segment.start for segment in info.segments}
    if stream.last is None:
        return "unknown"
    last = stream.last
    if last < starts.get(stream.segment, 1):
        return "0"
    return f"up to {lsn_words(last) if stream.copyset is not None else f'{last:,}'}"


def _tail(info: LogInfo) -> str:
    if info.tail is None:
        return f"unknown, at least {_short(info, info.reached)}"
    return _short(info, info.tail)


def _short(info: LogInfo, position: int) -> str:
    """Return a position as its epoch and offset if it has them."""
    return info.epoch_and_offset(position) or f"{position:,}"


def _position(info: LogInfo, position: int) -> str:
    """Return a position in the form that commands accept, with its epoch and offset if it has
    them."""
    made_of = info.epoch_and_offset(position)
    return f"{position:,} ({made_of})" if made_of else f"{position:,}"


def epoch_and_tail(info: LogInfo) -> tuple[int, int]:
    """Return the epoch of a log's tail, if its positions have epochs, and the tail."""
    tail = info.tail or 0
    return (epoch_of(tail) if info.epoch_and_offset(tail) else 0), tail


def condition(stream: StreamInfo) -> str:
    """Return why it does not run, or what is in progress; empty if neither."""
    if stream.joining is None or stream.chains:  # of chains it says how much is copied
        return stream.condition.removeprefix(f"{stream.state}: ")
    words = stream.condition or f"node {stream.joining} joins"
    return f"{words} ({100 * copied(stream):.0f} %)"


def copied(stream: StreamInfo) -> float:
    """Return the share of its entries that the joining node has, 0 to 1."""
    if stream.joining is None:
        return 0.0
    last = stream.entries if stream.last is None else stream.last
    if last is None:
        return 0.0
    return min(1.0, stream.copied_entries / last) if last else 1.0


def node_table(nodes: Sequence[NodeInfo]) -> Table:
    located = any(node.location for node in nodes)
    careless = any(node.sync_mode != SyncMode.ALWAYS for node in nodes)
    table = new_table("node", "address", "state", "last report", "replicas", "stored")
    if careless:
        table.add_column("sync")
    if located:
        table.collapse_padding = True
        table.add_column("location", overflow="fold")
    for node in nodes:
        absent = "dead" if node.held_back is None else "held back"
        if node.restarting and not node.alive:
            absent = "restarting"
        state = ("draining" if node.draining else "alive") if node.alive else absent
        cells = [
            str(node.id),
            node.address,
            _colored(state, good=state == "alive"),
            "none yet" if node.last_report_s is None else f"{duration(node.last_report_s)} ago",
            str(node.replicas),
            "unknown" if node.stored_bytes is None else size(node.stored_bytes),
            *([node.sync_mode] if careless else []),
            *([plain(node.location)] if located else []),
        ]
        table.add_row(*cells)
    table.caption = "\n".join(_data_of_others(node) for node in nodes if node.unknown_streams)
    return table


def _data_of_others(node: NodeInfo) -> str:
    shown, more = node.unknown_streams[:STREAMS_SHOWN], len(node.unknown_streams) - STREAMS_SHOWN
    streams = ", ".join(map(str, shown)) + (f" and {more:,} more" if more > 0 else "")
    return f"node {node.id} has data of other streams: {streams}; see `loom node cleanup`"


def volume_table(nodes: Sequence[NodeInfo]) -> Table:
    table = new_table("shard", "volume", "state", "used", "limit", "free", "size")
    for node in nodes:
        for volume in node.volumes:
            state = "failed" if volume.failed else "takes no appends" if volume.full else "ok"
            table.add_row(
                shard_name(shard_of(node.id, volume.shard)),
                plain(volume.path),
                _colored(state, good=state == "ok"),
                size(volume.used),
                "" if volume.limit is None else size(volume.limit),
                size(volume.free),
                size(volume.total),
            )
    return table


def rebuild_table(rebuilds: Sequence[RebuildInfo]) -> Table:
    from rich.progress_bar import ProgressBar

    table = new_table("node", "status", "done", "", "records", "restored", "left", "waits for")
    for each in rebuilds:
        table.add_row(
            each.shard,
            each.status,
            ProgressBar(total=1.0, completed=each.part_done, width=20),
            f"{each.part_done:.0%}",
            f"{each.records:,}",
            size(each.bytes),
            "" if each.left_s is None else f"~{duration(each.left_s)}",
            each.waiting,
        )
    return table


def nodes_view(nodes: Sequence[NodeInfo]) -> RenderableType:
    """Return nodes, their volumes, and a line for each of their conditions."""
    from rich.console import Group

    conditions = (
        f"[red]node {node.id}:[/] {plain(condition)}"
        for node in nodes
        for condition in node.conditions
    )
    return Group(node_table(nodes), volume_table(nodes), *conditions)


def size(count: float) -> str:
    """Format 1536 as 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(seconds: float) -> str:
    """Format 93.5 as 1 m 33 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} m" if hours else f"{minutes} m {rest} s"


def age(seconds: int) -> str:
    """Format 604800 as 7d."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def new_table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left", caption_style="none")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _numbers(*values: int) -> list[str]:
    return [f"{value:,}" for value in values]


def _colored(text: str, *, good: bool) -> str:
    return f"[{'green' if good else 'red'}]{text}[/]"

"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from loomlog.types import Entry

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from loomlog.client.info import ClusterStatus, LogInfo, NodeInfo

# A value is shown on one line and must not steer the terminal; tabs are harmless.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(32), 127) if code != 9}
_VISIBLE |= {10: "\\n", 13: "\\r"}


def print_json(value: Any) -> None:
    """One line."""
    print(json.dumps(value, default=str))


def visible(data: bytes) -> str:
    """Bytes as text on one line; what is not UTF-8, and control characters, are escaped."""
    return data.decode("utf-8", "backslashreplace").translate(_VISIBLE)


def entry_fields(entry: Entry) -> dict[str, object]:
    """An entry for JSON; bytes that are not UTF-8 come as `value_base64` or `key_base64`."""
    fields: dict[str, object] = {
        "position": entry.position,
        "stream": entry.stream,
        "llsn": entry.llsn,
        "timestamp": entry.timestamp.isoformat(),
    }
    if entry.key is not None:
        fields |= _bytes_field("key", entry.key)
    return fields | _bytes_field("value", entry.value)


def _bytes_field(name: str, data: bytes) -> dict[str, object]:
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def console() -> Console:
    """For tables. Where there is no terminal nothing is cut to a width."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=200)


def plain(text: str) -> str:
    """Text of a user as rich shall print it: brackets in it are no markup."""
    from rich.markup import escape

    return escape(text)


def print_logs(logs: list[LogInfo] | tuple[LogInfo, ...]) -> None:
    table = _table("log", "protocol", "streams", "replicas", "first", "last")
    for info in logs:
        running = sum(stream.state == "running" for stream in info.streams)
        streams = f"{running}/{len(info.streams)} running"
        table.add_row(
            plain(info.name), info.protocol, streams, *_numbers(info.replicas, info.head, info.tail)
        )
    console().print(table)


def print_streams(info: LogInfo) -> None:
    table = _table("stream", "state", "epoch", "entries", "replicas (first: primary)")
    for stream in info.streams:
        replicas = "  ".join(f"{replica.node}@{replica.address}" for replica in stream.replicas)
        state = _colored(str(stream.state), good=stream.state == "running")
        table.add_row(str(stream.id), state, *_numbers(stream.epoch, stream.entries), replicas)
    console().print(table)


def print_status(status: ClusterStatus) -> None:
    alive = sum(node.alive for node in status.nodes)
    console().print(
        f"cluster [bold]{plain(status.cluster_id)}[/] at {status.metadata_address}: "
        f"{alive} of {len(status.nodes)} nodes alive, {status.rounds:,} commit rounds, "
        f"up {duration(status.uptime_s)}",
        highlight=False,
    )
    _print_nodes(status.nodes)
    if not status.logs:
        console().print("no logs yet: make one with `loom log create NAME`", highlight=False)
        return
    print_logs(status.logs)
    for info in status.logs:
        console().print(f"streams of [bold]{plain(info.name)}[/]", highlight=False)
        print_streams(info)


def _print_nodes(nodes: tuple[NodeInfo, ...]) -> None:
    table = _table("node", "address", "state", "last report", "sync", "replicas", "stored")
    for node in nodes:
        table.add_row(
            str(node.id),
            node.address,
            _colored("alive" if node.alive else "dead", good=node.alive),
            f"{duration(node.last_report_s)} ago",
            str(node.sync_mode),
            str(node.replicas),
            size(node.stored_bytes),
        )
    console().print(table)


def as_fields(info: LogInfo | ClusterStatus) -> dict[str, Any]:
    return asdict(info)


def size(count: float) -> str:
    """1536 -> 1.5 KiB"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(seconds: float) -> str:
    """93.5 -> 1 m 33 s"""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} m" if hours else f"{minutes} m {rest} s"


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _numbers(*values: int) -> list[str]:
    return [f"{value:,}" for value in values]


def _colored(text: str, *, good: bool) -> str:
    return f"[{'green' if good else 'red'}]{text}[/]"

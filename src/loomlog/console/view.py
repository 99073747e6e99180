"""Formats values for pages. Pure; escaping is left to the templates."""

from __future__ import annotations

import json
import math
from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from markupsafe import Markup, escape

from loomlog.client.operator_results import ReplicaDescription
from loomlog.console.entries import shown_headers
from loomlog.types import Entry, NodeId
from loomlog.wire.condition_groups import group_conditions
from loomlog.wire.info import ClusterStatus, LogInfo, NodeInfo, StreamInfo

TEXT_CHARS_MAX: Final = 20_000  # of one value on a page
HEX_BYTES_MAX: Final = 1024
_HEX_WIDTH: Final = 16


class Health(NamedTuple):
    """The state of the cluster in one sentence, and what helps."""

    severity: str  # good, work, warning, problem
    title: str
    sentence: str
    help: str = ""


def health(status: ClusterStatus) -> Health:
    if not status.conditions:
        return Health("good", "Healthy", "Every acknowledged entry has all its copies.")
    groups = group_conditions(status.conditions)
    first, subject = groups[0].condition, groups[0].subject
    link = " " if first.text.startswith("is ") else ": "
    what = sentence(f"{subject}{link}{first.text}.")
    if more := len(groups) - 1:
        what += f" And {more:,} more {'condition' if more == 1 else 'conditions'}, below."
    titles = {"problem": "Problem", "warning": "Warning", "work": "Work under way"}
    return Health(first.severity, titles.get(first.severity, "Problem"), what, sentence(first.help))


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def node_state(node: NodeInfo) -> tuple[str, str]:
    """Return a node's state in a word, and its severity."""
    if node.alive:
        return ("draining", "work") if node.draining else ("alive", "good")
    if node.held_back is not None:
        return "held back", "problem"
    return ("restarting", "work") if node.restarting else ("away", "problem")


def stream_state(log: LogInfo, stream: StreamInfo) -> tuple[str, str]:
    """Return a stream's state in a word, and its severity."""
    if stream not in log.active_streams:
        return stream.state, "info"
    return stream.state, "good" if stream.state == "running" else "problem"


class Lag(NamedTuple):
    """The number of entries that the slowest replica of a stream lacks."""

    entries: int
    node: NodeId  # that has it


def lag(replicas: Iterable[ReplicaDescription]) -> Lag | None:
    """Return the largest known lag; None if none is known."""
    known = [Lag(each.lag, each.node) for each in replicas if each.lag is not None]
    return max(known, default=None)


def first_nodes(nodes: Sequence[NodeInfo], most: int) -> list[NodeInfo]:
    """Return the nodes that need attention before the others, up to a number of them."""
    return sorted(nodes, key=lambda node: (node_state(node)[1] == "good", node.id))[:most]


def first_logs(logs: Sequence[LogInfo], rates: Mapping[str, float], most: int) -> list[LogInfo]:
    """Return the logs that need attention, and then those with most appends, up to a number of
    them; by name, so that rows do not jump."""

    def is_well(log: LogInfo) -> bool:
        return all(stream.state == "running" for stream in log.active_streams)

    first = sorted(logs, key=lambda log: (is_well(log), -rates.get(log.name, 0.0), log.name))
    return sorted(first[:most], key=lambda log: (is_well(log), log.name))


def copied(stream: StreamInfo) -> float:
    """Return the share of its entries that the joining node has, 0 to 1."""
    last = stream.last_llsn
    return min(1.0, stream.copied_entries / last) if last else 1.0


def position(log: LogInfo | None, number: int | None) -> str:
    """Return a position, with its epoch and offset if it has them; `log` is None for one that is
    new or gone."""
    if number is None:
        return "unknown"
    return (log.epoch_and_offset(number) if log is not None else "") or f"{number:,}"


class ShownValue(NamedTuple):
    """A value for people."""

    kind: str  # json, text, binary, empty
    text: str
    size: int
    cut: bool = False  # there is more


def shown(data: bytes) -> ShownValue:
    """Return JSON indented, text as it is, and anything else as a table of bytes."""
    if not data:
        return ShownValue("empty", "", 0)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _hex(data)
    if any(character < " " and character not in "\t\r\n" for character in text):
        return _hex(data)
    kind = "text"
    if text[0] in "{[" and len(text) <= TEXT_CHARS_MAX:
        try:
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
            kind = "json"
        except (ValueError, RecursionError):
            pass
    return ShownValue(kind, text[:TEXT_CHARS_MAX], len(data), len(text) > TEXT_CHARS_MAX)


def _hex(data: bytes) -> ShownValue:
    lines = []
    for start in range(0, min(len(data), HEX_BYTES_MAX), _HEX_WIDTH):
        part = data[start : start + _HEX_WIDTH]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in part)
        lines.append(f"{start:06x}  {part.hex(' '):<{3 * _HEX_WIDTH - 1}}  {letters}")
    return ShownValue("binary", "\n".join(lines), len(data), len(data) > HEX_BYTES_MAX)


def summary(data: bytes, most: int = 160) -> str:
    """Return the beginning of a value on one line; bytes that are no text in hexadecimal."""
    begin = data[: 4 * most]
    try:
        text = getincrementaldecoder("utf-8")().decode(begin, final=len(begin) == len(data))
        line = "".join(each if each.isprintable() else "·" for each in text)
    except UnicodeDecodeError:
        line = begin[: most // 3 + 1].hex(" ")
    return line if len(line) <= most else f"{line[: most - 1]}…"


def entry(log: LogInfo, row: Entry) -> dict[str, Any]:
    """Return an entry for a page."""
    return {
        "at": position(log, row.position),
        "position": row.position,
        "stream": row.stream,
        "time": row.timestamp,
        "key": None if row.key is None else summary(row.key, 60),
        "headers": shown_headers(row),
        "summary": summary(row.value),
        "value": shown(row.value),
    }


# ---- numbers


def size(count: float | None) -> str:
    """Format 1536 as 1.5 KiB."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def count(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def rate(number: float) -> str:
    """Format a rate with the digits that people read."""
    if number < 10 and number != math.floor(number):
        return f"{number:.1f}"
    return f"{number:,.0f}"


def duration(seconds: float | None) -> str:
    """Format 93.5 as 1 m 33 s."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    first = next(n for n, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)


def as_duration(seconds: int | None) -> str:
    """Format a duration as users write it: 7d; nothing if there is none."""
    if not seconds:
        return ""
    units = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
    name, unit = next(each for each in units if seconds % each[1] == 0)
    return f"{seconds // unit}{name}"


def as_size(count: int | None) -> str:
    """Format a size as users write it: 10G; nothing if there is none."""
    if not count:
        return ""
    units = (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10))
    name, unit = next((each for each in units if count % each[1] == 0), ("", 1))
    return f"{count // unit}{name}"


def moment(time_s: float | datetime) -> str:
    """Format a time in UTC, with seconds."""
    found = time_s if isinstance(time_s, datetime) else datetime.fromtimestamp(time_s, UTC)
    return found.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def slowest_shards(group: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
    """Return the shards of a group that are furthest behind, in order, with the owners' names."""
    names = {member["id"]: member["name"] for member in group["members"]}
    slowest = sorted(group["shards"], key=lambda shard: int(shard["position"]))[:most]
    return [
        {**shard, "owner_name": names.get(shard["owner"], shard["owner"])}
        for shard in sorted(slowest, key=lambda shard: int(shard["number"]))
    ]


def with_code(text: str) -> Markup:
    """Return a text in which commands between backticks stand out."""
    parts = [escape(part) for part in text.split("`")]
    shown = [Markup(f"<code>{p}</code>") if n % 2 else p for n, p in enumerate(parts)]  # noqa: S704 - escaped
    return Markup("").join(shown)


def with_breaks(path: str) -> Markup:
    """Return a path that may be broken before its slashes."""
    return Markup("<wbr>/").join(path.split("/"))


def clock(time_s: float) -> str:
    """Format the time of the day, in UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M:%S")


FILTERS: Final = {
    "with_breaks": with_breaks,
    "with_code": with_code,
    "clock": clock,
    "size": size,
    "count": count,
    "rate": rate,
    "duration": duration,
    "as_duration": as_duration,
    "as_size": as_size,
    "sentence": sentence,
    "moment": moment,
    "node_state": node_state,
    "copied": copied,
    "grouped": group_conditions,
}

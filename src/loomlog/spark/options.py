"""Parses and checks the options of a read; errors name the option.

Spark hands options over as text and does not keep the case of their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

from loomlog.client.arguments import duration_s
from loomlog.config import parse_number, parse_size
from loomlog.errors import InvalidArgument, shown
from loomlog.types import Glsn


@dataclass(frozen=True, slots=True)
class Committed:
    """Start after the last position that a pipeline committed."""

    pipeline: str


Start: TypeAlias = Glsn | Committed | Literal["earliest", "latest"]
End: TypeAlias = Glsn | Literal["latest"]

READ_TIMEOUT_MS: Final = 30_000
TRIGGER_DELAY: Final = "15m"
_NUMBER_MAX: Final = (1 << 63) - 2  # one more is still a position on the wire

_NAMES: Final = (
    "cluster",
    "log",
    "logs",
    "logPattern",
    "startingPosition",
    "startingOffsets",
    "endingPosition",
    "startingTimestamp",
    "endingTimestamp",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minRecordsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "readTimeoutMs",
    "includeHeaders",
    "tls",
    "tokenFile",
)
_STREAM_ONLY: Final = (
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minRecordsPerTrigger",
    "maxTriggerDelay",
)
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read."""

    cluster: str
    log: str  # empty if there may be several
    logs: tuple[str, ...]  # the names of several; empty: those that match the pattern
    log_pattern: str
    start: Start
    end: End
    from_time: datetime | None  # rows at or after it
    to_time: datetime | None  # rows before it
    records_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    records_per_trigger_min: int  # fewer wait for more, but not longer than the delay
    trigger_delay_s: float
    partitions_min: int
    records_per_partition_max: int | None
    fail_on_data_loss: bool
    read_timeout_s: float
    include_headers: bool
    tls: str | None  # as of `connect`
    token_file: str  # the same; a path: plans and Spark's pages show options


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Check the options of a batch read or of a streaming query."""
    options = named(given, _NAMES, "source")
    _refuse_wrong_kind(options, streaming)
    from_time = _time(options, "startingTimestamp")
    to_time = _time(options, "endingTimestamp")
    default = "latest" if streaming and from_time is None else "earliest"
    start = _start(options, default)
    end = _end(options.get("endingPosition", "latest"))
    if isinstance(start, int) and isinstance(end, int) and start > end:
        raise InvalidArgument(f"startingPosition {start} is above endingPosition {end}")
    if from_time is not None and to_time is not None and from_time > to_time:
        raise InvalidArgument("startingTimestamp is after endingTimestamp")
    most, least = (_count(options, f"{bound}RecordsPerTrigger") for bound in ("max", "min"))
    if most is not None and least is not None and least > most:
        raise InvalidArgument(f"minRecordsPerTrigger {least} is above maxRecordsPerTrigger {most}")
    cluster = required(options, "cluster", "the vmr's address, e.g. 127.0.0.1:7400")
    log, logs, log_pattern = _logs(options)
    if not log and (isinstance(start, int) or isinstance(end, int)):
        raise InvalidArgument(
            "a position is one of a single log: with logs or logPattern start at earliest, latest, "
            "committed:PIPELINE or a startingTimestamp, and end at latest"
        )
    return ReadOptions(
        cluster=cluster,
        log=log,
        logs=logs,
        log_pattern=log_pattern,
        start=start,
        end=end,
        from_time=from_time,
        to_time=to_time,
        records_per_trigger_max=most,
        bytes_per_trigger_max=_size(options, "maxBytesPerTrigger"),
        records_per_trigger_min=least or 0,
        trigger_delay_s=_delay(options, least),
        partitions_min=_count(options, "minPartitions") or 1,
        records_per_partition_max=_count(options, "maxRecordsPerPartition"),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        read_timeout_s=(_count(options, "readTimeoutMs") or READ_TIMEOUT_MS) / 1000,
        include_headers=_flag(options, "includeHeaders", default=False),
        tls=options.get("tls"),
        token_file=options.get("tokenFile", ""),
    )


def names_logs(given: Mapping[str, str]) -> bool:
    """Return whether the rows have a column `log`, since there may be several."""
    return any(name.lower() in ("logs", "logpattern") for name in given)


def includes_headers(given: Mapping[str, str]) -> bool:
    """Return whether the rows have a column `headers`; `read_options` checks the value."""
    return any(n.lower() == "includeheaders" and v.lower() == "true" for n, v in given.items())


def named(given: Mapping[str, str], names: Sequence[str], what: str) -> dict[str, str]:
    """Return the options under `names`, restoring their case; refuse unknown ones."""
    by_lower_case = {name.lower(): name for name in names}
    unknown = sorted(name for name in given if name.lower() not in by_lower_case)
    if unknown:
        raise InvalidArgument(
            f"the loomlog {what} has no option {', '.join(unknown)}; there are {', '.join(names)}"
        )
    return {by_lower_case[name.lower()]: str(value).strip() for name, value in given.items()}


def _refuse_wrong_kind(options: Mapping[str, str], streaming: bool) -> None:
    for name in _STREAM_ONLY:
        if not streaming and name in options:
            raise InvalidArgument(f"{name} is for spark.readStream: a batch has no triggers")


def required(options: Mapping[str, str], name: str, meaning: str) -> str:
    value = options.get(name)
    if not value:
        raise InvalidArgument(f"the option {name} is missing: {meaning}")
    return value


def _logs(options: Mapping[str, str]) -> tuple[str, tuple[str, ...], str]:
    """Return the name of the log, or those of several, or their pattern."""
    given = [name for name in ("log", "logs", "logPattern") if name in options]
    if len(given) > 1:
        raise InvalidArgument(f"{' and '.join(given)} name the logs to read: give one of them")
    if "logs" in options:
        names = [name.strip() for name in options["logs"].split(",")]
        if not all(names) or len(set(names)) < len(names):
            given_names = options["logs"]
            raise InvalidArgument(
                f"logs must be different names with commas between them, not {shown(given_names)}"
            )
        return "", tuple(sorted(names)), ""
    if "logPattern" in options:
        pattern = required(options, "logPattern", "a regular expression for names of logs")
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidArgument(
                f"logPattern {shown(pattern)} is not a regular expression: {error}"
            ) from None
        return "", (), pattern
    return required(options, "log", "the name of the log to read"), (), ""


def _start(options: Mapping[str, str], default: str) -> Start:
    if "startingPosition" in options and "startingOffsets" in options:
        raise InvalidArgument("startingOffsets is another name of startingPosition: give one")
    name = "startingOffsets" if "startingOffsets" in options else "startingPosition"
    text = options.get(name, default)
    lowered = text.lower()
    if lowered == "earliest":
        return "earliest"
    if lowered == "latest":
        return "latest"
    kind, _, pipeline = text.partition(":")
    if kind.lower() == "committed" and pipeline:
        return Committed(pipeline)
    wanted = "earliest, latest, committed:PIPELINE or a position from 1 on"
    return number(name, text, wanted)


def _end(text: str) -> End:
    if text.lower() == "latest":
        return "latest"
    return number("endingPosition", text, "latest or a position from 1 on")


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    return None if text is None else number(name, text, "a number from 1 on")


def _size(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    size = None if text is None else parse_size(text)
    if text is not None and not size:
        raise InvalidArgument(f"{name} must be a number of bytes such as 64M, not {shown(text)}")
    return size


def _delay(options: Mapping[str, str], least: int | None) -> float:
    text = options.get("maxTriggerDelay")
    if text is not None and least is None:
        raise InvalidArgument("maxTriggerDelay limits the wait for minRecordsPerTrigger: give both")
    try:
        return duration_s(text or TRIGGER_DELAY)
    except InvalidArgument as error:
        raise InvalidArgument(f"maxTriggerDelay: {error}") from None


def number(name: str, text: str, wanted: str) -> int:
    found = parse_number(text)
    if found and found <= _NUMBER_MAX:
        return found
    raise InvalidArgument(f"{name} must be {wanted}, not {shown(text)}")


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidArgument(f"{name} must be true or false, not {shown(text)}")
    return text.lower() == "true"


def _time(options: Mapping[str, str], name: str) -> datetime | None:
    """Parse ISO 8601 (UTC by default), or milliseconds since 1970 as for Kafka."""
    text = options.get(name)
    if text is None:
        return None
    try:
        if text.isascii() and text.isdigit():
            return _UNIX_EPOCH + timedelta(milliseconds=int(text))
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{name} must be ISO 8601, e.g. 2026-01-31T12:00:00Z, or milliseconds since 1970, "
            f"not {shown(text)}"
        ) from None

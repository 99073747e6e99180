"""The definition of a pipeline: sources, decoding, a function, an output, settings.

    @pipeline("counts", source="access", decode="json", schema="path string, status int",
              output=parquet("counts.table"))
    def counts(rows):
        return rows.groupBy("path").count()

Everything that can be checked without a cluster is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from loomlog.errors import InvalidArgument
from loomlog.types import Glsn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from loomlog.spark.pipelines.outputs import Output

Decode: TypeAlias = Literal["json", "csv", "arrow", "raw"] | Callable[[bytes], Any]
Start: TypeAlias = Glsn | Literal["earliest", "latest"]

FORMATS: Final = ("json", "csv", "arrow", "raw")
ROWS: Final = "rows"  # the name of the only source in SQL
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NAME_CHARS_MAX: Final = 60  # it is part of the names of logs, registers and writers
_OUTPUT_MODES: Final = ("append", "update", "complete")


@dataclass(frozen=True, slots=True)
class Watermark:
    """The allowed lateness of rows, by the event time in `column`."""

    column: str
    delay: str  # as Spark says it, e.g. "10 minutes"


@dataclass(frozen=True, slots=True)
class Letters:
    """The dead letters to process again: of one source, for one version of the output."""

    pipeline: str
    version: int
    log: str


@dataclass(frozen=True, slots=True)
class Rerun:
    """The part of its sources that a derived pipeline processes again."""

    from_time: datetime | None = None  # of a backfill: rows at or after it
    to_time: datetime | None = None  # and before it
    letters: Letters | None = None  # of a replay


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The definition of a pipeline. `function` takes one DataFrame for each of its sources."""

    name: str
    function: Callable[..., DataFrame]
    sources: Mapping[str, str]  # by the function's name for it: the log
    output: Output
    decode: Mapping[str, Decode]  # by log
    schemas: Mapping[str, str]  # by log, as SQL
    start: Start = "earliest"
    unit_records: int = 1_000_000  # the most of a unit
    interval_s: float = 0.2  # how often an idle source is checked
    lease_ttl_s: float = 10.0
    attempts: int = 3  # failures of a unit before it is halved, or its record set aside
    dead_letters: str = ""  # the log for records that fail
    stateful: bool = False
    checkpoint: str = ""  # directory for the state of a stateful pipeline
    output_mode: str = "append"
    watermarks: Mapping[str, Watermark] = field(default_factory=dict)  # by log
    heartbeat_s: float | None = None  # the interval of heartbeats in idle sources
    spark: Mapping[str, str] = field(default_factory=dict)
    rerun: Rerun = Rerun()  # of pipelines that `loomlog.spark.pipelines.rerun` derives

    @property
    def logs(self) -> tuple[str, ...]:
        return tuple(self.sources.values())

    @property
    def log(self) -> str:
        """The only source."""
        (log,) = self.sources.values()
        return log

    def summary(self) -> dict[str, Any]:
        """Return the settings that must not change while its progress is kept."""
        describe = getattr(self.output, "describe", None)
        times = {"from_time": self.rerun.from_time, "to_time": self.rerun.to_time}
        return {
            "sources": dict(self.sources),
            "output": describe() if describe else type(self.output).__name__,
            "stateful": self.stateful,
            "dead_letters": self.dead_letters,
            **{name: time.isoformat() for name, time in times.items() if time is not None},
        }


def pipeline(
    name: str,
    *,
    output: Output,
    source: str | None = None,
    sources: Mapping[str, str] | None = None,
    decode: Decode | Mapping[str, Decode] = "raw",
    schema: str | Mapping[str, str] = "",
    watermark: tuple[str, str] | Mapping[str, tuple[str, str]] | None = None,
    dead_letters: str | None = None,
    **settings: Any,
) -> Callable[[Callable[..., DataFrame]], Pipeline]:
    """Turn a function from DataFrame to DataFrame into a pipeline.

    With several `sources` (name -> log), the function gets a DataFrame for each, by name; `decode`,
    `schema` and `watermark` may then be mappings by the same names. `settings` are the other
    fields of Pipeline."""
    named = _named_sources(name, source, sources)

    def define(function: Callable[..., DataFrame]) -> Pipeline:
        try:
            defined = Pipeline(
                name=name,
                function=function,
                sources=MappingProxyType(named),
                output=output,
                decode=_by_log(named, decode, "decode"),
                schemas=_by_log(named, schema, "schema"),
                watermarks=_watermarks(named, watermark),
                dead_letters=dead_letters or f"{name}.dead-letters",
                **settings,
            )
        except TypeError as error:
            raise InvalidArgument(f"pipeline {name!r}: {_setting(error)}") from None
        check(defined)
        return defined

    return define


def check(found: Pipeline) -> None:
    """Raise InvalidArgument with the pipeline and the setting, if there is a problem."""
    for wrong in _wrongs(found):
        raise InvalidArgument(f"pipeline {found.name!r}: {wrong}")


def _wrongs(found: Pipeline) -> list[str]:
    wrongs: list[str] = []
    if not _NAME.fullmatch(found.name) or len(found.name) > _NAME_CHARS_MAX:
        wrongs.append(f"a name is up to {_NAME_CHARS_MAX} letters, digits, '_', '.' and '-'")
    for log, decode in found.decode.items():
        if not callable(decode) and decode not in FORMATS:
            wrongs.append(f"decode is one of {', '.join(FORMATS)} or a function, not {decode!r}")
        if decode != "raw" and not found.schemas[log]:
            wrongs.append(f"decode={decode!r} of log {log!r} needs a schema")
    if not hasattr(found.output, "stage") or not hasattr(found.output, "publish"):
        wrongs.append("output is parquet(…), log(…), delta(…) or an object with stage and publish")
    if found.output_mode not in _OUTPUT_MODES:
        wrongs.append(f"output_mode is one of {', '.join(_OUTPUT_MODES)}")
    if found.start not in ("earliest", "latest") and not _is_count(found.start):
        wrongs.append(f"start is earliest, latest or a position from 1 on, not {found.start!r}")
    numbers = [name for name in ("unit_records", "attempts") if not _is_count(getattr(found, name))]
    wrongs += [f"{name} is a number from 1 on" for name in numbers]
    times = {name: getattr(found, name) for name in ("interval_s", "lease_ttl_s", "heartbeat_s")}
    wrongs += [f"{name} is a time above 0" for name, time in times.items() if not _is_time(time)]
    return wrongs + _wrongs_of_state(found)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 1


def _is_time(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and value > 0)


def _wrongs_of_state(found: Pipeline) -> list[str]:
    wrongs = []
    if found.stateful and not found.checkpoint:
        wrongs.append("stateful=True needs checkpoint=DIR, on storage that all its sites share")
    if len(found.sources) > 1 and not found.stateful:
        wrongs.append("several sources need stateful=True: a join waits for the other side")
    if not found.stateful and (found.watermarks or found.heartbeat_s is not None):
        wrongs.append("watermark and heartbeat_s are for stateful=True")
    if found.heartbeat_s is not None and not found.watermarks:
        wrongs.append("heartbeat_s needs a watermark for it to move")
    return wrongs


def _named_sources(
    name: str, source: str | None, sources: Mapping[str, str] | None
) -> dict[str, str]:
    if (source is None) == (sources is None):
        raise InvalidArgument(f"pipeline {name!r}: give source=LOG or sources={{NAME: LOG, …}}")
    named = {ROWS: source} if source is not None else dict(sources or {})
    if not named or len(set(named.values())) < len(named):
        raise InvalidArgument(f"pipeline {name!r}: each source is another log; use a frame twice")
    return {key: str(log) for key, log in named.items()}


def _by_log(named: Mapping[str, str], given: Any, setting: str) -> dict[str, Any]:
    """Return a setting by log, given one value for all logs or one for each source."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(named.values(), given)
    if set(given) != set(named):
        raise InvalidArgument(f"{setting} must name the sources {', '.join(sorted(named))}")
    return {named[name]: value for name, value in given.items()}


def _watermarks(named: Mapping[str, str], given: Any) -> dict[str, Watermark]:
    return {
        log: Watermark(*value)
        for log, value in _by_log(named, given, "watermark").items()
        if value is not None
    }


def _setting(error: TypeError) -> str:
    """Return a clearer form of Python's error about an unknown setting."""
    found = re.search(r"argument '(\w+)'", str(error))
    return f"there is no setting {found[1]!r}" if found else str(error)

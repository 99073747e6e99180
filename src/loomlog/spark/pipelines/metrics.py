"""Figures of pipelines in the text format of Prometheus, for its collector of text files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from loomlog.spark.pipelines.status import PipelineStatus

_Figure = Callable[[PipelineStatus], float | None]

_FIGURES: Final[tuple[tuple[str, str, str, _Figure], ...]] = (
    ("lag_records", "gauge", "Records not processed yet.", lambda s: s.lag_records),
    ("lag_seconds", "gauge", "Time between newest and last processed record.", lambda s: s.lag_s),
    ("running", "gauge", "1 if a site is active.", lambda s: float(s.state == "running")),
    ("committed_time_seconds", "gauge", "Last commit, since 1970.", lambda s: s.committed_at),
    ("units_total", "counter", "Units committed.", lambda s: s.counters.units),
    ("records_total", "counter", "Records committed.", lambda s: s.counters.records),
    ("dead_letters_total", "counter", "Records put away.", lambda s: s.counters.dead_letters),
    ("failures_total", "counter", "Units that failed.", lambda s: s.counters.failures),
)


def as_text(statuses: Iterable[PipelineStatus]) -> str:
    found = list(statuses)
    lines = []
    for name, kind, meaning, figure in _FIGURES:
        lines += [
            f"# HELP loomlog_pipeline_{name} {meaning}",
            f"# TYPE loomlog_pipeline_{name} {kind}",
        ]
        for status in found:
            value = figure(status)
            if value is not None:
                lines.append(f'loomlog_pipeline_{name}{{pipeline="{status.name}"}} {value:g}')
    return "\n".join(lines) + "\n"


def write(path: Path, statuses: Iterable[PipelineStatus]) -> None:
    """In one step: whoever reads it meanwhile sees the old figures or the new ones."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(as_text(statuses))
    draft.replace(path)

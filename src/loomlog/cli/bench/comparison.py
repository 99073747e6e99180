"""Compares two reports, line by line, and distinguishes differences from noise.

Noise is estimated from the variation of a line within each run: twice the standard error of the
mean of its slices, of their rates and, for p99, of their p99. Separate runs vary more than that, so
a difference must also exceed a share that the user chooses.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from loomlog.cli.bench.reports import number, number_table, say
from loomlog.cli.console.output import console
from loomlog.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure in both reports."""

    scenario: str
    record_bytes: int
    batch: int
    figure: str
    before: float
    after: float
    noise: float  # the share by which the ratio may differ from 1 without a reason
    more_is_better: bool

    @property
    def ratio(self) -> float:
        if self.before == self.after:
            return 1.0  # both may be 0, if nothing was done in time
        return self.after / self.before if self.before else math.inf

    @property
    def verdict(self) -> str:
        """Return "better" or "worse", or "" for a change within the noise."""
        if abs(self.ratio - 1) <= self.noise:
            return ""
        return "better" if (self.ratio > 1) == self.more_is_better else "worse"


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """Two runs of the same measurements."""

    lines: list[Compared]
    only_in_one: list[str]

    def fields(self) -> dict[str, Any]:
        lines = [
            asdict(line) | {"ratio": _finite(line.ratio), "verdict": line.verdict}
            for line in self.lines
        ]
        return {"lines": lines, "only_in_one": self.only_in_one}

    def print(self) -> None:
        columns = ("bytes", "batch", "figure", "before", "after", "ratio", "noise", "")
        table = number_table("scenario", *columns)
        for line in self.lines:
            values = (f"{line.before:,.2f}", f"{line.after:,.2f}", number(line.ratio, ".2f"))
            sizes = (f"{line.record_bytes:,}", str(line.batch), line.figure)
            table.add_row(line.scenario, *sizes, *values, f"±{line.noise:.0%}", line.verdict)
        console().print(table)
        for name in self.only_in_one:
            say(f"only in one of them: {name}")


def _finite(ratio: float) -> float | None:
    return None if math.isinf(ratio) else round(ratio, 3)


def compare(before: Path, after: Path, noise: float) -> ComparisonReport:
    """Compare the reports in two files; smaller differences than the share `noise` are noise."""
    one, other = _results(before), _results(after)
    lines = [
        line for key in one if key in other for line in _compared(key, one[key], other[key], noise)
    ]
    single = [" ".join(map(str, key)) for key in {*one} ^ {*other}]
    return ComparisonReport(lines, sorted(single))


_Key = tuple[str, int, int]


def _results(file: Path) -> dict[_Key, dict[str, Any]]:
    try:
        results = json.loads(file.read_text())["results"]
        return {(r["scenario"], r["record_bytes"], r["batch"]): r for r in results}
    except (ValueError, KeyError, TypeError):
        raise InvalidArgument(
            f"{file} is not a report of appends and reads: `loom bench --save FILE` makes one"
        ) from None


def _compared(
    key: _Key, before: dict[str, Any], after: dict[str, Any], least: float
) -> list[Compared]:
    noise = max(least, _noise(before, after, 0))
    noise_of = {"p50_ms": noise, "p99_ms": max(noise, _noise(before, after, 1))}
    figures = [("records/s", before["records_per_s"], after["records_per_s"], noise, True)]
    figures += [
        (name.replace("_", " "), before[name], after[name], share, False)
        for name, share in noise_of.items()
        if before[name] and after[name]
    ]
    cpu = _cpu_us(before), _cpu_us(after)
    if cpu[0] and cpu[1] and not key[0].startswith("mixed"):  # there it is of all together
        figures.append(("CPU µs/record", cpu[0], cpu[1], noise, False))
    scenario, record_bytes, batch = key
    return [Compared(scenario, record_bytes, batch, *figure) for figure in figures]


def _noise(before: dict[str, Any], after: dict[str, Any], figure: int) -> float:
    """Return twice the standard error of a ratio, as a share; `figure` is a field of Slice."""
    return 2 * math.hypot(_error(before, figure), _error(after, figure))


def _error(result: dict[str, Any], figure: int) -> float:
    """Return the standard error of the mean of the slices, as a share of it."""
    values = [one[figure] for one in result.get("over_time", ()) if one[figure] is not None]
    if len(values) < 2 or not mean(values):
        return 0.0
    return float(stdev(values) / mean(values) / math.sqrt(len(values)))


def _cpu_us(result: dict[str, Any]) -> float:
    """Return the CPU time of all processes per record; 0 if it was not measured."""
    share = float(sum(result.get("cpu_percent", {}).values())) / 100
    rate = float(result["records_per_s"])
    return share * 1e6 / rate if rate else 0.0

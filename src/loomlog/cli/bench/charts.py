"""Charts of a measurement for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from loomlog.cli.bench.measurements import PERCENTILES, Result
from loomlog.cli.bench.reports import say

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_BAR_WIDTH: Final = 24


def print_result(result: Result) -> None:
    """Print the rate and the latency over time, the percentiles, and the CPU by process."""
    say(f"\n{result.scenario}, {result.record_bytes:,} B, {result.batch} at once")
    for line in lines(result):
        say(f"  {line}")


def lines(result: Result) -> list[str]:
    rates = [one.records_per_s for one in result.over_time]
    slices = [one.p99_ms for one in result.over_time]
    slow = [ms for ms in slices if ms is not None]
    found = []
    if any(rates):
        span = f"{min(rates):,.0f} to {max(rates):,.0f}"
        found.append(f"records/s  {sparkline(rates)}  {span}")
    if slow:
        found.append(f"p99 ms     {sparkline(slices)}  {min(slow):,.2f} to {max(slow):,.2f}")
    times = {name: getattr(result, name) for name in PERCENTILES}
    if all(times.values()):
        found += _bars(times)
    if result.cpu_percent:
        used = ", ".join(f"{name} {share:.0f}" for name, share in result.cpu_percent.items())
        found.append(f"CPU, % of a core: {used}; together {sum(result.cpu_percent.values()):.0f}")
    return found


def sparkline(values: Sequence[float | None]) -> str:
    """Return a block per value, from zero up to the largest one; nothing for None."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    last = len(_BLOCKS) - 1
    return "".join(
        " " if value is None else _BLOCKS[min(int(value / top * len(_BLOCKS)), last)]
        for value in values
    )


def _bars(times_ms: dict[str, float]) -> list[str]:
    """Return a bar per percentile. Their length is the logarithm: tails are far away."""
    least = min(times_ms.values())
    widest = math.log(max(times_ms.values()) / least) or 1.0
    shown = []
    for name, ms in times_ms.items():
        length = 1 + round(math.log(ms / least) / widest * (_BAR_WIDTH - 1))
        shown.append(f"{label(name):<9}  {'█' * length:<{_BAR_WIDTH}}  {ms:,.2f} ms")
    return shown


def label(field: str) -> str:
    """Return how people write a percentile: p99.9 for p999_ms."""
    name = field.removesuffix("_ms")
    return "p99.9" if name == "p999" else name

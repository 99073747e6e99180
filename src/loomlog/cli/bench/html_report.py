"""A report as one HTML file: tables and charts as SVG, no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from loomlog.cli.bench.charts import label
from loomlog.cli.bench.measurements import PERCENTILES

_WIDTH: Final = 320
_HEIGHT: Final = 90

_STYLE: Final = """
:root { color-scheme: light dark; --line: #2563eb; --soft: #94a3b8; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .75rem; border-bottom: 1px solid var(--soft); text-align: right }
th:first-child, td:first-child { text-align: left }
section { display: flex; flex-wrap: wrap; gap: 1.5rem }
figure { margin: 0 } figcaption { color: var(--soft); font-size: 13px }
h2 { font-size: 1rem; margin: 2rem 0 .5rem } svg { display: block; width: 20rem }
text { font: 11px system-ui, sans-serif; fill: currentColor }
"""


def page(report: dict[str, Any]) -> str:
    """Return the page of a report, given its fields as in JSON."""
    facts = {**report["cluster"], **report["machine"], **report["machine"]["versions"]}
    facts.pop("versions")
    facts["fdatasync_ms"] = f"{facts['fdatasync_ms']:.2f}"
    shown = ", ".join(f"{name} {value}" for name, value in facts.items())
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>loom bench</title><style>{_STYLE}</style>",
        f"<h1>loom bench</h1><p>{escape(shown)}</p>",
        _table(report["results"]),
        *(_charts(result) for result in report["results"]),
    ]
    return "\n".join(parts) + "\n"


def _table(results: list[dict[str, Any]]) -> str:
    heads = ["scenario", "bytes", "batch", "records/s", "MB/s"]
    heads += [f"{label(name)} ms" for name in PERCENTILES]
    rows = [
        [
            result["scenario"],
            f"{result['record_bytes']:,}",
            f"{result['batch']:,}",
            f"{result['records_per_s']:,.0f}",
            f"{result['mb_per_s']:,.1f}",
            *("-" if result[name] is None else f"{result[name]:,.2f}" for name in PERCENTILES),
        ]
        for result in results
    ]
    return f"<table>{_row('th', heads)}{''.join(_row('td', row) for row in rows)}</table>"


def _row(kind: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"


def _charts(result: dict[str, Any]) -> str:
    rates = [one[0] for one in result["over_time"]]
    slow = [one[1] or 0.0 for one in result["over_time"]]
    times = {label(name): result[name] for name in PERCENTILES if result[name] is not None}
    charts = [_line("records/s over time", rates)]
    if any(slow):
        charts.append(_line("p99 over time, ms", slow))
    if times:
        charts.append(_bars("latency, ms", times))
    if result["cpu_percent"]:
        charts.append(_bars("CPU, % of a core", result["cpu_percent"]))
    name = f"{result['scenario']}, {result['record_bytes']:,} B, {result['batch']} at once"
    return f"<h2>{escape(name)}</h2><section>{''.join(charts)}</section>"


def _line(caption: str, values: Sequence[float]) -> str:
    top = max(values, default=0.0) or 1.0
    step = _WIDTH / max(len(values) - 1, 1)
    points = " ".join(
        f"{at * step:.1f},{_HEIGHT - value / top * (_HEIGHT - 14):.1f}"
        for at, value in enumerate(values)
    )
    line = f'<polyline points="{points}" fill="none" stroke="var(--line)" stroke-width="2"/>'
    return _figure(caption, f'{line}<text x="0" y="10">{top:,.1f}</text>', _HEIGHT)


def _bars(caption: str, values: dict[str, float]) -> str:
    top = max(values.values(), default=0.0) or 1.0
    parts = []
    for at, (name, value) in enumerate(values.items()):
        y, width = at * 18, value / top * (_WIDTH - 150)
        parts.append(
            f'<text x="0" y="{y + 12}">{escape(name)}</text>'
            f'<rect x="60" y="{y + 2}" width="{width:.1f}" height="12" fill="var(--line)"/>'
            f'<text x="{width + 66:.1f}" y="{y + 12}">{value:,.2f}</text>'
        )
    return _figure(caption, "".join(parts), len(values) * 18 + 4)


def _figure(caption: str, content: str, height: int) -> str:
    picture = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{content}</svg>'
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"

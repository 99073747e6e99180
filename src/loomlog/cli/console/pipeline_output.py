"""Output of `loom pipeline`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from loomlog.cli.console.output import console, duration, new_table, plain, print_json

if TYPE_CHECKING:
    from loomlog.spark.pipelines.status import PipelineStatus
    from loomlog.spark.pipelines.units import Progress, Unit

_VALUE_CHARS_MAX = 60
FIRST_SIGN_S: Final = 10.0


class RunOutput:
    """Progress of a run: on stderr, or with --json a line of JSON for each event."""

    def __init__(self, name: str, *, as_json: bool) -> None:
        self._name = name
        self._as_json = as_json
        self._has_news = threading.Event()

    @contextmanager
    def signs_of_life(self, first_s: float = FIRST_SIGN_S) -> Iterator[None]:
        """Report, less and less often, that the first unit is still running: Spark's first job
        starts Python workers, and compiles."""
        thread = threading.Thread(target=self._wait, args=(first_s,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._has_news.set()
            thread.join()

    def _wait(self, wait_s: float) -> None:
        passed_s = 0.0
        while not self._has_news.wait(wait_s):
            passed_s += wait_s
            self.said(f"no unit is committed after {passed_s:g} s; still running")
            wait_s *= 2

    def said(self, text: str) -> None:
        if self._as_json:
            print_json({"event": "said", "pipeline": self._name, "text": text})
        else:
            print(f"{self._name}: {text}", file=sys.stderr, flush=True)

    def committed(self, unit: Unit, progress: Progress) -> None:
        self._has_news.set()
        ranges = {log: [each.first, each.last] for log, each in unit.ranges.items()}
        if self._as_json:
            number, records = unit.number, unit.records
            fields = {"unit": number, "ranges": ranges, "records": records}
            print_json({"event": "committed", "pipeline": self._name, **fields})
        else:
            what = ", ".join(f"{log} {a:,} to {b:,}" for log, (a, b) in ranges.items() if a <= b)
            self.said(f"unit {unit.number} committed: {what or 'nothing new'}")

    def ended(self, progress: Progress) -> None:
        counters = progress.counters
        if self._as_json:
            positions = dict(progress.positions)
            print_json({"event": "ended", "pipeline": self._name, "positions": positions})
        else:
            where = ", ".join(f"{log} up to {at:,}" for log, at in progress.positions.items())
            print(
                f"{self._name}: {where} committed; in all {counters.records:,} records, "
                f"units: {counters.units:,}, dead letters: {counters.dead_letters:,}"
            )


def print_pipelines(pipelines: Sequence[PipelineStatus]) -> None:
    columns = ("pipeline", "state", "site", "committed", "lag", "units", "dead\nletters")
    table = new_table(*columns)
    table.collapse_padding = True
    for status in pipelines:
        table.add_row(
            plain(status.name),
            status.state,
            plain(status.site),
            "\n".join(f"{plain(s.log)} {s.position:,}" for s in status.sources),
            _lag(status),
            f"{status.counters.units:,}",
            f"{status.counters.dead_letters:,}",
        )
    console().print(table)


def print_details(status: PipelineStatus) -> None:
    """Print the details that do not fit in the table."""
    print(f"output: {status.output}, version {status.version}")
    if status.unit is not None:
        unit = status.unit
        print(f"unit {unit['number']} is {unit['state']}, failures: {unit['failures']}")
    if status.committed_at:
        print(
            f"last commit {datetime.fromtimestamp(status.committed_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
        )
    if status.error:
        print(f"last error: {status.error}")


def print_letters(letters: Sequence[dict[str, Any]]) -> None:
    table = new_table("letter", "log", "position", "time", "error", "value")
    for letter in letters:
        time = datetime.fromtimestamp(letter["time_us"] / 1e6, UTC)
        value = str(letter.get("value", letter.get("value_base64", "")))
        table.add_row(
            f"{letter['letter']:,}",
            plain(letter["log"]),
            f"{letter['position']:,}",
            f"{time:%Y-%m-%d %H:%M:%S}",
            plain(letter["error"]),
            plain(value[:_VALUE_CHARS_MAX]),
        )
    console().print(table)


def _lag(status: PipelineStatus) -> str:
    seconds = "" if status.lag_s is None else f"\n{duration(status.lag_s)}"
    return f"{status.lag_records:,} records{seconds}"

"""The parts of a bench's report, for people and for programs, and the bar while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from loomlog.cli.bench.measurements import Result
from loomlog.cli.bench.private_cluster import Progress
from loomlog.cli.console.changes import WaitProgress, bar
from loomlog.cli.console.output import console, new_table

if TYPE_CHECKING:
    from rich.table import Table


class BenchReport(Protocol):
    """The result of a bench."""

    def print(self) -> None:
        """Print it for people."""

    def fields(self) -> dict[str, Any]:
        """Return it for JSON."""


def result_fields(result: Result) -> dict[str, Any]:
    rates = {
        "records_per_s": round(result.records_per_s, 1),
        "mb_per_s": round(result.mb_per_s, 3),
    }
    return asdict(result) | rates


def say(text: str) -> None:
    console().print(text, highlight=False)


def number_table(first: str, *columns: str) -> Table:
    """Return a table of numbers: all columns but the first are aligned to the right."""
    table = new_table(first)
    table.collapse_padding = True
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def memory(rss_mb: dict[str, float]) -> str:
    return ", ".join(f"{name} {mb:.0f} MB" for name, mb in rss_mb.items())


@contextmanager
def progress_bar(scenarios: int) -> Iterator[Progress]:
    """Show a progress bar on stderr if that is a terminal."""
    numbers = count()
    # Twice a second: the bar runs in this process and must not cost what is being measured.
    with bar(refresh_per_second=2) as show:

        def begin(scenario: str, seconds: float) -> None:
            done = next(numbers)
            text = f"{done} of {scenarios} done; {scenario} (about {seconds:g} s)"
            show(WaitProgress(False, done / scenarios, text))

        yield begin

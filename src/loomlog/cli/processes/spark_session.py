"""Spark for commands, without its pages of warnings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from loomlog.errors import LoomError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
}
LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def start_spark(app: str, master: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session for one command; raise a LoomError that says what is missing."""
    from loomlog import spark

    config = QUIET | (LOOPBACK if master.startswith("local") else {}) | dict(settings or {})
    try:
        with sign_of_life(f"Spark starts at {master}"), _stderr_of_java_hidden():
            return spark.session(app, master, config)
    except ImportError as error:
        raise LoomError(str(error)) from None
    except LoomError:
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise LoomError(
            f"Spark does not start at {master}: {first}; set LOOM_DEBUG=1 to see what it says"
        ) from error


def stop_spark(spark: SparkSession) -> None:
    """Stop Spark; does nothing if it has ended."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        spark.stop()
    except (Py4JError, OSError):
        pass  # callers that need it report the error


@contextmanager
def sign_of_life(what: str) -> Iterator[None]:
    """Show on a terminal that something is in progress, and for how long."""
    if not os.isatty(2):
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with (
        os.fdopen(os.dup(2), "w") as terminal,  # stderr is hidden meanwhile
        Progress(*columns, console=Console(file=terminal), transient=True) as progress,
    ):
        progress.add_task(what, total=None)
        yield


@contextmanager
def _stderr_of_java_hidden() -> Iterator[None]:
    """Hide Java's stderr, which is pages of warnings: real problems are raised as exceptions."""
    if os.environ.get("LOOM_DEBUG"):
        yield
        return
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)

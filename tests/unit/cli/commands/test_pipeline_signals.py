"""SIGTERM and Ctrl-C while a pipeline runs."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, cast

import pytest

from loomlog.cli.commands.pipeline import stopped_by_signals


class SlowRunner:
    """A runner whose work ends at once when it is stopped; stopping Spark takes longer."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.left = threading.Event()
        self.told_spark = False

    def stop(self) -> None:
        self.ended.set()
        self.told_spark = not self.left.wait(0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_spark_is_there_until_the_runner_has_stopped(number: int) -> None:
    runner = SlowRunner()
    with stopped_by_signals(cast(Any, runner)):
        os.kill(os.getpid(), number)
        assert runner.ended.wait(10)
    runner.left.set()
    assert runner.told_spark

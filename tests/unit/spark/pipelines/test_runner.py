"""A runner without a cluster."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from loomlog.spark import Runner, log, pipeline


@pytest.mark.parametrize("error", [Py4JNetworkError("no answer"), ConnectionRefusedError()])
def test_a_signal_that_ends_spark_too_is_no_error(error: Exception) -> None:
    """systemd and timeout(1) send SIGTERM to all processes of a group."""
    spark = MagicMock()
    spark.sparkContext.cancelAllJobs.side_effect = error
    copy = pipeline("copy", source="events", output=log("copied"))(lambda rows: rows)
    Runner(copy, "127.0.0.1:1", spark).stop()

"""Failures: a record is put aside only if it fails by itself."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PythonException

from loomlog import errors
from loomlog.spark.pipelines.failures import (
    Fault,
    FunctionError,
    PipelineError,
    fault_of,
    in_our_words,
    reason_of,
)

IN_A_TASK = """
Job aborted due to stage failure:
Traceback (most recent call last):
  File "worker.py", line 1, in main
{}
"""


def of_task(text: str) -> PythonException:
    return PythonException(IN_A_TASK.format(text))


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (errors.Unavailable("vmr is away"), Fault.SURROUNDINGS),
        (errors.SwapUnknown("perhaps"), Fault.SURROUNDINGS),
        (errors.Conflict("it was reset"), Fault.SURROUNDINGS),
        (errors.InvalidArgument("a bad name"), Fault.PIPELINE),
        (errors.Fenced("replaced"), Fault.PIPELINE),
        (FunctionError("no such column"), Fault.PIPELINE),
        (AnalysisException("no such column"), Fault.PIPELINE),
        (ConnectionRefusedError("Spark is gone"), Fault.PIPELINE),
        (OSError("no space left"), Fault.SURROUNDINGS),
        (of_task("ValueError: 5 is bad"), Fault.RECORDS),
        (of_task("loomlog.errors.Timeout: nothing came"), Fault.SURROUNDINGS),
        (of_task("ConnectionRefusedError: [Errno 111]"), Fault.SURROUNDINGS),
        (of_task("loomlog.errors.DataLoss: 1 to 5 were trimmed"), Fault.PIPELINE),
        (of_task("loomlog.errors.InvalidArgument: a value is too large"), Fault.RECORDS),
        (AnalysisException(IN_A_TASK.format("loomlog.errors.Busy: wait")), Fault.SURROUNDINGS),
    ],
)
def test_a_failure_is_somebodys_fault(error: Exception, fault: Fault) -> None:
    assert fault_of(error) is fault


def test_the_reason_is_what_the_task_said_in_one_line() -> None:
    assert reason_of(of_task("ValueError: 5 is bad")) == "ValueError: 5 is bad"
    assert reason_of(errors.Fenced("replaced")) == "replaced"
    assert reason_of(RuntimeError("one\ntwo")) == "one"


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JError("An error occurred while calling o25.sc"),
        ConnectionRefusedError(111),
    ],
)
def test_that_spark_has_ended_is_said_plainly(error: Exception) -> None:
    assert fault_of(error) is Fault.PIPELINE
    with pytest.raises(PipelineError, match=r"Spark has ended .* run the pipeline again"):
        raise in_our_words(error)


def test_other_failures_have_words_of_their_own() -> None:
    calling = "An error occurred while calling o25.x. Trace:\nMethod x([]) does not exist"
    for error in (errors.Fenced("replaced"), Py4JError(calling)):
        assert in_our_words(error) is error

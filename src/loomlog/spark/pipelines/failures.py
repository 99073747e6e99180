"""Classifies failures: caused by records, by the environment, or by the pipeline itself.

Only failures that records may have caused lead, when repeated, to dead letters.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from py4j.protocol import (  # type: ignore[import-untyped]
    Py4JError,
    Py4JJavaError,
    Py4JNetworkError,
)
from pyspark.errors import AnalysisException, ParseException, PySparkException

from loomlog import errors
from loomlog.errors import LoomError

_OURS: Final = re.compile(r"loomlog\.errors\.(\w+)")
_NETWORK: Final = re.compile(r"^(Connection\w*|BrokenPipe|Timeout)Error: ", re.MULTILINE)
_WAIT: Final = (
    errors.Retryable,
    errors.SwapUnknown,
    errors.AppendUnknown,
    errors.Sealed,
    errors.NotYetWritten,  # a leader that was replaced may have reported a later tail
    errors.Conflict,
)


class FunctionError(LoomError):
    """The pipeline's function is wrong, independently of the records."""


class PipelineError(LoomError):
    """A pipeline cannot continue; the message says why and what to do."""


def output_ahead(pipeline: str, what: str) -> PipelineError:
    """Return the error of a pipeline whose progress is older than its output."""
    return PipelineError(
        f"{what} units that pipeline {pipeline!r} does not know of, because the metadata was "
        f"restored from an older copy: `loom pipeline reset {pipeline}` writes all into a new "
        "version of the output; if you know up to where the output reaches, add `--same-output "
        "--to POSITION`"
    )


_STOP: Final = (
    errors.DataLoss,
    errors.Trimmed,
    errors.NotFound,
    errors.Unauthorized,
    errors.VersionMismatch,
    errors.Corrupt,
)
_LINE_CHARS_MAX: Final = 500


class Fault(Enum):
    """The cause of a failure."""

    RECORDS = "records"  # perhaps: repeated failures isolate them
    SURROUNDINGS = "surroundings"  # temporary: wait and try again
    PIPELINE = "pipeline"  # permanent: stop and report it


def fault_of(error: BaseException) -> Fault:
    if isinstance(error, LoomError):  # of the driver, which sees no records
        return Fault.SURROUNDINGS if isinstance(error, _WAIT) else Fault.PIPELINE
    kind = _kind_in_task(error)
    if kind is not None:
        if issubclass(kind, _WAIT):
            return Fault.SURROUNDINGS
        return Fault.PIPELINE if issubclass(kind, _STOP) else Fault.RECORDS
    if isinstance(error, PySparkException) and _NETWORK.search(str(error)):
        return Fault.SURROUNDINGS
    if isinstance(error, AnalysisException | ParseException) or _is_spark_gone(error):
        return Fault.PIPELINE
    if isinstance(error, PySparkException | Py4JJavaError):
        return Fault.RECORDS
    return Fault.SURROUNDINGS if isinstance(error, OSError) else Fault.PIPELINE


def in_our_words(error: Exception) -> Exception:
    """Return the error, or a LoomError that explains it better."""
    if not _is_spark_gone(error):
        return error
    return PipelineError(
        "Spark has ended under the pipeline (its JVM was killed, or ran out of memory): "
        "run the pipeline again, it continues where it was"
    )


def reason_of(error: BaseException) -> str:
    """Return one line; for a Python error in a task, its message without Spark's trace."""
    text = str(_java_text(error) or error).strip()
    if isinstance(error, LoomError) or not text:
        return text or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [
        line for line in lines if re.match(r"[\w.]*(Error|Exception|[a-z]\.[A-Z]\w+): ", line)
    ]
    return (raised[0] if "Traceback" in text and raised else lines[0])[:_LINE_CHARS_MAX]


def _is_spark_gone(error: BaseException) -> bool:
    """Return whether a call into the JVM of Spark failed without any answer."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return True
    return type(error) is Py4JError and "Trace:" not in str(error)


def _kind_in_task(error: BaseException) -> type[LoomError] | None:
    """Return the kind of loomlog error that a task raised."""
    found = _OURS.search(str(_java_text(error) or error))
    kind = getattr(errors, found[1], None) if found else None
    return kind if isinstance(kind, type) and issubclass(kind, LoomError) else None


def _java_text(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    return str(java.toString()) if java is not None else ""

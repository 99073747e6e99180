"""The errors of appends. Their messages say what failed, where, why, and what to do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from loomlog import limits
from loomlog.errors import (
    AppendUnknown,
    Busy,
    InvalidArgument,
    LoomError,
    NotFound,
    Sealed,
    Timeout,
    Unavailable,
    VersionMismatch,
    seconds,
)

if TYPE_CHECKING:
    from loomlog.client.append.appender import Batch
    from loomlog.client.append.delivery import Targets
    from loomlog.client.append.options import Wanted
    from loomlog.client.append.stream import Stream


def too_large(log: str, name: str, size: int) -> InvalidArgument:
    return InvalidArgument(
        f"append to log {log!r}: a {name} of {size} bytes is over the limit of "
        f"{limits.RECORD_BYTES_MAX}; store it elsewhere and append a reference"
    )


def too_many(log: str, count: int, size: int) -> InvalidArgument:
    return InvalidArgument(
        f"append to log {log!r}: {count} records of {size} bytes in all do not "
        f"fit into one batch of {limits.BATCH_BYTES_MAX}; split them"
    )


def closed(log: str) -> Unavailable:
    return Unavailable(f"append to log {log!r}: this client was closed")


def no_stream(log: str, wanted: Wanted) -> NotFound:
    return NotFound(f"log {log!r} has no{_place(wanted)}")


def not_running(log: str, batch: Batch, targets: Targets) -> Unavailable:
    """Return the error of a fail-fast batch for which no stream is running."""
    hindrance = targets.conditions.hindrance(batch.lane.stream)
    why = f": {hindrance}" if hindrance else ""
    return Unavailable(f"{_what(log, batch)}: no stream for it is running{why}; see `loom status`")


def refused(log: str, refusal: LoomError) -> LoomError:
    return type(refusal)(f"append to log {log!r}: {refusal}")


def unknown_protocol(log: str, stream: Stream) -> VersionMismatch:
    return VersionMismatch(
        f"append to log {log!r}: stream {stream.id} is of protocol {stream.protocol!r}, which this "
        "client does not know; upgrade it"
    )


def unknown(log: str, batch: Batch, why: str) -> AppendUnknown:
    return AppendUnknown(
        f"{_what(log, batch)}: {why}; it may or may not have been appended: "
        "read the log to find out before you repeat it"
    )


def overdue(log: str, batch: Batch, targets: Targets, timeout_s: float) -> LoomError:
    """Return the error of a batch that was not appended by its deadline, for certain."""
    after = f"{_what(log, batch)}: not appended within {seconds(timeout_s)}"
    refusal, wanted = batch.refusal, batch.lane.stream
    if refusal is None and targets.known and targets.missing(wanted):
        return no_stream(log, wanted)
    hindrance = targets.conditions.hindrance(wanted)
    if (refusal is None or hindrance) and targets.known and not targets.running(wanted):
        why = f": {hindrance}" if hindrance else ""
        return Sealed(f"{after}: no stream for it is running{why}; see `loom status`")
    if refusal is None and batch.attempt is not None:
        why = hindrance or "nobody took it in time"
        return Timeout(f"{after}: {why}; try again, and see `loom status`")
    if refusal is None:
        why = hindrance or "no place in any stream: append less at once"
        return Timeout(f"{after}: {why}; try again")
    if isinstance(refusal, Busy):
        return Busy(f"{after}: {refusal}")
    # NotFound from a node means that the stream has moved: the log exists.
    kind = type(refusal) if isinstance(refusal, Sealed) else Unavailable
    why = f": {hindrance}" if hindrance else ""
    return kind(f"{after}{why}, last: {refusal}; try again, and see `loom status`")


def fail(future: asyncio.Future[Any], error: LoomError, *, quietly: bool) -> None:
    """Raise `error` in a caller; if `quietly`, without a warning of asyncio if it is ignored."""
    if future.done():
        return
    future.set_exception(type(error)(*error.args))  # a copy, since each gets its own traceback
    if quietly:
        future.exception()  # marks it as retrieved


def _what(log: str, batch: Batch) -> str:
    stream = batch.lane.stream if batch.attempt is None else batch.attempt.target.id
    return f"append to log {log!r}{_place(stream)}"


def _place(wanted: Wanted) -> str:
    if isinstance(wanted, tuple):
        return f" stream {' or '.join(map(str, wanted))}"
    return "" if wanted is None else f" stream {wanted}"

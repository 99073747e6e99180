"""Appends to `ordered` streams with a given producer and sequence number, for publications.

delivery.py numbers a client's own batches as it sends them. Here several processes may send the
same batch, which must be stored once: so its producer, sequence number and stream are fixed, and
the stream detects a repeat. In any later epoch, either the stream has it or it was never taken.
"""

from __future__ import annotations

from typing import Final

from loomlog.client.append.carriers import retryable_if_sound
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client, Retries
from loomlog.client.loglets.contract import Confirm, Fixed
from loomlog.errors import (
    AppendUnknown,
    Corrupt,
    LoomError,
    NotFound,
    Retryable,
    RolledBack,
    Sealed,
    Unavailable,
    seconds,
)
from loomlog.types import Buffer, Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

_ANSWER_S: Final = 2.0  # then the metadata is refreshed and the batch sent again


class SegmentEndedError(LoomError):
    """The stream permanently takes no more appends: its content is final."""


async def append_fixed(
    log: CachedLog, client: Client, fixed: Fixed, batch: Buffer, confirm: Confirm
) -> Glsn:
    """Return the batch's first position; 0 if the stream takes no more appends."""
    try:
        return await _insist(log, client, fixed.stream, batch, confirm)
    except SegmentEndedError:
        return 0
    except AppendUnknown:
        await confirm()
        raise


async def _insist(
    log: CachedLog, client: Client, stream: StreamId, batch: Buffer, confirm: Confirm
) -> Glsn:
    """Send the batch until it is answered. `confirm` is called each time between learning the
    stream's epoch and sending: an earlier append of another process is known in that epoch, and
    in a later epoch this one is refused."""
    timeout_s = client.settings.append_timeout_s
    retries = Retries(client.rng, timeout_s)
    while True:
        target = await _find(log, stream)
        await confirm()
        try:
            return await _send(log.name, client, target, batch)
        except (Retryable, Sealed, NotFound) as error:
            if not await retries.pause():
                raise Unavailable(
                    f"log {log.name!r}: stream {stream} took no append for {seconds(timeout_s)} "
                    f"({error}); see `loom stream list`, unseal it if it was sealed by hand, and "
                    "publish again: nothing is lost or doubled by that"
                ) from error


async def _find(log: CachedLog, stream: StreamId) -> pb.LogStream:
    metadata = await log.fetch()
    ended = {segment.loglet_id for segment in metadata.segments if segment.HasField("end")}
    for target in metadata.streams:
        if target.log_stream_id == stream:
            if target.loglet_id in ended:
                raise SegmentEndedError(f"the segment of stream {stream} has ended")
            if target.removing and target.state == pb.STREAM_SEALED:
                raise SegmentEndedError(f"stream {stream} is being removed")
            return target
    raise SegmentEndedError(f"log {log.name!r} no longer has stream {stream}")


async def _send(log: str, client: Client, target: pb.LogStream, batch: Buffer) -> Glsn:
    if target.rolled_back:
        raise RolledBack(f"log {log!r}: {target.condition}")
    # Nothing is sent to a stream that may just have been found to have ended.
    if target.removing or target.state != pb.RUNNING or not target.replicas:
        raise Sealed(target.condition or "it does not run")
    connection = await client.connections.connect(target.replicas[0].address)
    request = pb.Append(log_stream_id=target.log_stream_id, seal_epoch=target.seal_epoch)
    try:
        answer, _ = await connection.request(
            pb.Frame(append=request), (batch,), timeout_s=_ANSWER_S
        )
    except Corrupt as error:
        raise retryable_if_sound(error, batch) from error
    if not answer.appended.first_glsn:
        raise Unavailable(f"{connection.peer} gave no position")
    return int(answer.appended.first_glsn)

"""Conditional appends to a replica. The metadata repository first holds the log, so that no other
stream gets positions before the batch does, or can no longer get its positions."""

from __future__ import annotations

from collections.abc import Callable

from loomlog.errors import LoomError
from loomlog.node.metadata_link import MetadataLink
from loomlog.node.ordered.reader import OpenReplica
from loomlog.types import StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame


async def append_held(
    link: MetadataLink,
    holding: Callable[[StreamId], OpenReplica],
    connection: Connection,
    frame: Frame,
    payload: memoryview,
) -> None:
    """Append a conditional batch and answer the client."""
    append = frame.append
    hold = pb.HoldLog(
        log_stream_id=append.log_stream_id,
        seal_epoch=append.seal_epoch,
        expected_tail=append.expected_tail,
    )
    try:
        refusal = await _refusal_of(link, pb.Frame(hold_log=hold))
        held = holding(append.log_stream_id)
        # Call it even with a refusal: it first checks whether a repeat was appended meanwhile.
        repeated = held.driver.append(connection, frame, payload, refusal)
        if repeated is not None:
            answer = await held.reader.appended(repeated)
            answer.id, answer.reply = frame.id, True
            connection.send(answer)
    except LoomError as error:
        connection.refuse(frame.id, error)


async def _refusal_of(link: MetadataLink, hold: Frame) -> LoomError | None:
    """Request a hold. Return why the batch must not be appended now, or None."""
    try:
        await link.request(hold)
    except LoomError as error:
        return error
    return link.rolled_back

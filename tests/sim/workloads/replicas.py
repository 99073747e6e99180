"""Reads a stream from each of its replicas, past the client: they must hold the same, byte by byte.

A client asks whichever replica answers first, so a difference between two of them may stay unseen
for as long as the run lasts.
"""

from __future__ import annotations

import asyncio
from typing import Any

from loomlog import batch
from loomlog.errors import LoomError
from loomlog.net.endpoints import connect
from loomlog.types import Llsn, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.info import StreamInfo
from loomlog.wire.link import Connection

CREDIT_BYTES = 1 << 30
WITHIN_S = 10.0  # a backup may still wait for its last commit


async def check_replicas_alike(stream: StreamInfo, first: Llsn, last: Llsn) -> None:
    """Raise AssertionError if replicas differ, or a LoomError if one cannot be asked."""
    held = [
        (replica.node, await _read(replica.address, stream.id, first, last))
        for replica in stream.replicas
    ]
    node, expected = held[0]
    for other, found in held[1:]:
        differences = [
            f"{_told(mine)} and {_told(theirs)}"
            for mine, theirs in zip(expected, found, strict=False)
            if mine != theirs
        ]
        alike = not differences and len(expected) == len(found)
        assert alike, (
            f"stream {stream.id}, LLSN {first} to {last}, is not the same on nodes {node} and "
            f"{other}: {len(expected)} and {len(found)} batches; {'; '.join(differences[:3])}"
        )


def _told(stored: bytes) -> str:
    header = batch.read_header(stored)
    return (
        f"LLSN {header.first_llsn} to {header.last_llsn} at {header.first_position} of producer "
        f"{header.producer_id:x} ({header.sequence}) in epoch {header.epoch}"
    )


async def _read(address: str, stream_id: StreamId, first: Llsn, last: Llsn) -> list[bytes]:
    """Return the batches with these entries, with the positions that this replica gives them."""
    connection = await connect(address, Codec("client"), _Nobody())
    found: list[bytes] = []
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(answer: pb.Frame | LoomError, payload: memoryview) -> None:
        if isinstance(answer, LoomError):
            if not finished.done():
                finished.set_exception(answer)
            return
        for header, view in batch.split(payload) if payload else ():
            if header.first_llsn <= last:
                found.append(bytes(view))
            if header.last_llsn >= last and not finished.done():
                finished.set_result(None)

    order = pb.Subscribe(log_stream_id=stream_id, first_llsn=first, credit_bytes=CREDIT_BYTES)
    connection.call(pb.Frame(subscribe=order), (), take, many=True)
    try:
        async with asyncio.timeout(WITHIN_S):
            await finished
    finally:
        connection.close()
    return found


class _Nobody:
    """Hears nothing but answers."""

    def frame_received(
        self, connection: Connection, kind: str, frame: Any, payload: memoryview
    ) -> None:
        pass

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        pass

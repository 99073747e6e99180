"""Finds out the outcome of appends to an `ordered` stream that have no answer.

During the epoch in which a batch was sent, the same batch is sent to the primary again, which
detects a repeat. Once the epoch is over, the outcome is final and any replica can report it. A
silent connection is probed and, if dead, closed: its appends have lost their answers.

delivery.py keeps the deadlines.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from loomlog.client.append import stream as streams
from loomlog.client.append.carriers import Outcomes
from loomlog.client.append.stream import Stream
from loomlog.client.context import BACKOFF, Client, Retries
from loomlog.errors import AppendUnknown, LoomError, Unavailable
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection

if TYPE_CHECKING:
    from loomlog.client.loglets.ordered.carrier import OrderedAttempt

PROBE_S: Final = 2.0  # a server that answers nothing at all for this long is dead
_CONNECT_S: Final = 0.5  # other replicas are asked at the same time
_ANSWER_S: Final = 1.0
_PAUSES: Final = BACKOFF._replace(max_s=0.15)  # a seal is noticed within this and a half


class Resolver:
    """Queries one stream until every attempt there has an answer."""

    def __init__(self, stream: Stream, client: Client, outcomes: Outcomes) -> None:
        self._stream = stream
        self._connections = client.connections
        self._producer_id = client.producer.id
        self._outcomes = outcomes
        self._rng = client.rng
        self._clock = client.loop.time
        self._probed: Connection | None = None
        self._probed_s = 0.0
        self._heard_s = float("-inf")

    async def run(self) -> None:
        retries = Retries(self._rng, backoff=_PAUSES)
        while self._needed():
            self._outcomes.refresh_soon()
            if over := self._of_past_epochs():
                await self._ask_replicas(over)
            elif self._stream.running:
                await self._repeat_at_primary()
                self._probe_silent()
            await retries.pause()

    def _needed(self) -> bool:
        stream = self._stream
        return bool(stream.doubtful) or stream.silent(self._clock())

    def _attempts(self) -> list[OrderedAttempt]:
        """Return the attempts on the stream, oldest first; all were made by its carrier."""
        return cast("list[OrderedAttempt]", list(self._stream.in_flight))

    def _of_past_epochs(self) -> list[OrderedAttempt]:
        return [
            attempt
            for attempt in self._attempts()
            if attempt.epoch < self._stream.epoch
            and (attempt.doubtful or attempt.connection is not None)
        ]

    # ---- the epoch is over

    async def _ask_replicas(self, attempts: list[OrderedAttempt]) -> None:
        """Ask all replicas at once, since some may be as silent as the primary was."""
        asking = [
            asyncio.ensure_future(self._ask(address, attempts)) for address in self._stream.replicas
        ]
        try:
            for answered in asyncio.as_completed(asking):
                await answered
                if not any(attempt.current for attempt in attempts):
                    return
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, address: str, attempts: list[OrderedAttempt]) -> None:
        connection = await self._connect(address)
        if connection is not None:
            await asyncio.gather(*(self._ask_one(connection, attempt) for attempt in attempts))

    async def _ask_one(self, connection: Connection, attempt: OrderedAttempt) -> None:
        try:
            frame = self._resolve_frame(attempt)
            answer = (await connection.request(frame, timeout_s=_ANSWER_S))[0].append_resolved
        except AppendUnknown as error:
            self._outcomes.unknown(attempt, error)
            return
        except LoomError:
            return  # it does not know yet; ask another, or again
        if answer.appended:
            self._outcomes.appended(attempt, answer.first_glsn, answer.first_llsn)
        else:
            self._outcomes.absent(attempt)

    def _resolve_frame(self, attempt: OrderedAttempt) -> pb.Frame:
        return pb.Frame(
            resolve_append=pb.ResolveAppend(
                log_stream_id=self._stream.id,
                seal_epoch=attempt.epoch,
                producer_id=self._producer_id,
                sequence=attempt.sequence,
            )
        )

    async def _connect(self, address: str) -> Connection | None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await self._connections.connect(address)
        except (LoomError, TimeoutError):
            return None

    # ---- the epoch is still current

    async def _repeat_at_primary(self) -> None:
        """Send the same batches in the same order; the primary detects those that it has."""
        if not any(self._unasked(attempt) for attempt in self._attempts()):
            return
        connection = await self._connect(self._stream.address)
        if connection is None:
            return
        for attempt in self._attempts():
            if self._unasked(attempt) and not connection.closed:
                attempt.transmit(connection)

    def _unasked(self, attempt: OrderedAttempt) -> bool:
        doubtful = attempt.doubtful and attempt.connection is None
        return doubtful and attempt.epoch == self._stream.epoch

    def _probe_silent(self) -> None:
        """Send a request that is answered at once, to see whether the primary is alive."""
        now_s = self._clock()
        waiting = next((a for a in self._attempts() if a.connection is not None), None)
        if waiting is None or not self._stream.silent(now_s):
            return
        connection = waiting.connection
        assert connection is not None
        if self._probed is connection:
            if now_s - self._probed_s > PROBE_S:
                self._probed = None
                connection.abort(Unavailable(f"{connection.peer} says nothing: connection cut"))
        elif now_s - self._heard_s > streams.SILENT_S:
            self._probed, self._probed_s = connection, now_s
            connection.call(self._resolve_frame(waiting), (), self._heard)

    def _heard(self, reply: pb.Frame | LoomError, content: memoryview) -> None:
        self._probed = None
        self._heard_s = self._clock()

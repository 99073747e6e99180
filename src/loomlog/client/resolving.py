"""What became of appends whose answers are missing: found out, not guessed.

One Resolver per stream, for as long as something is open there. While the epoch in which a batch
was sent goes on, its primary gets the very same batch again and recognises it. When the epoch is
over the outcome is definite, and any replica can tell it. A connection on which nothing is heard is
probed and, if it is dead, cut: then its appends have lost their answers, too.

It ends no append by itself when time runs out: that is delivery.py's, which knows the deadlines.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from loomlog.client import backoff
from loomlog.client.nodes import Connections
from loomlog.client.outgoing import Batch
from loomlog.client.targets import Stream
from loomlog.errors import AppendUnknown, LoomError, Unavailable
from loomlog.net.connection import Connection
from loomlog.types import Glsn, Llsn
from loomlog.wire import loomlog_pb2 as pb

SILENT_S: Final = 1.0  # after this a stream that gives no answers is looked at
PROBE_S: Final = 2.0  # a server that says nothing at all for so long is not there
_CONNECT_S: Final = 0.5  # other replicas are asked meanwhile
_ANSWER_S: Final = 1.0
_PAUSE_S_MAX: Final = 0.2  # a seal is noticed within this


class Outcomes(Protocol):
    """What a resolver needs of the delivery."""

    def refresh_soon(self) -> None:
        """Learn from the metadata repository in which epoch the streams are."""

    def resend(self, batch: Batch, connection: Connection) -> None: ...

    def appended(self, batch: Batch, first: Glsn, first_llsn: Llsn) -> None: ...

    def gone(self, batch: Batch) -> None:
        """It was certainly not appended."""

    def unknown(self, batch: Batch, error: LoomError) -> None:
        """Nobody can tell any more."""


class _Question(NamedTuple):
    batch: Batch
    sequence: int

    def open(self) -> bool:
        return not self.batch.settled and self.batch.sequence == self.sequence


class Resolver:
    """Asks one stream until nothing is open."""

    def __init__(
        self,
        stream: Stream,
        connections: Connections,
        producer_id: int,
        outcomes: Outcomes,
        rng: random.Random,
        clock: Callable[[], float],
    ) -> None:
        self._stream = stream
        self._connections = connections
        self._producer_id = producer_id
        self._outcomes = outcomes
        self._rng = rng
        self._clock = clock
        self._probed: Connection | None = None
        self._probed_s = 0.0
        self._heard_s = float("-inf")

    async def run(self) -> None:
        attempts = 0
        while self._needed():
            self._outcomes.refresh_soon()
            over = self._of_past_epochs()
            if over:
                await self._ask_replicas(over)
            elif self._stream.running:
                await self._repeat_at_primary()
                self._probe_silent()
            await asyncio.sleep(min(backoff.delay_s(attempts, self._rng), _PAUSE_S_MAX))
            attempts += 1

    def _needed(self) -> bool:
        stream = self._stream
        return bool(stream.doubtful) or stream.waited_s(self._clock()) >= SILENT_S

    def _of_past_epochs(self) -> list[_Question]:
        return [
            _Question(batch, batch.sequence)
            for batch in self._stream.in_flight
            if batch.epoch < self._stream.epoch and (batch.doubtful or batch.connection is not None)
        ]

    # ---- the epoch is over

    async def _ask_replicas(self, questions: list[_Question]) -> None:
        """All at once: some may be as silent as the one that owes the answer."""
        asking = [
            asyncio.ensure_future(self._ask(address, questions))
            for address in self._stream.replicas
        ]
        try:
            for answered in asyncio.as_completed(asking):
                await answered
                if not any(question.open() for question in questions):
                    return
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, address: str, questions: list[_Question]) -> None:
        connection = await self._connect(address)
        if connection is not None:
            await asyncio.gather(*(self._ask_one(connection, question) for question in questions))

    async def _ask_one(self, connection: Connection, question: _Question) -> None:
        batch = question.batch
        try:
            frame = self._resolve_frame(batch)
            answer = (await connection.request(frame, timeout_s=_ANSWER_S))[0].append_resolved
        except AppendUnknown as error:
            if question.open():
                self._outcomes.unknown(batch, error)
            return
        except LoomError:
            return  # it cannot tell yet; there are others, and another time
        if not question.open():
            return
        if answer.appended:
            self._outcomes.appended(batch, answer.first_glsn, answer.first_llsn)
        else:
            self._outcomes.gone(batch)

    def _resolve_frame(self, batch: Batch) -> pb.Frame:
        return pb.Frame(
            resolve_append=pb.ResolveAppend(
                log_stream_id=self._stream.id,
                seal_epoch=batch.epoch,
                producer_id=self._producer_id,
                sequence=batch.sequence,
            )
        )

    async def _connect(self, address: str) -> Connection | None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await self._connections.connect(address)
        except (LoomError, TimeoutError):
            return None

    # ---- the epoch goes on

    async def _repeat_at_primary(self) -> None:
        """The same batches in the same order; the primary knows those that it has."""
        if not any(self._unasked(batch) for batch in self._stream.in_flight):
            return
        connection = await self._connect(self._stream.address)
        if connection is None:
            return
        for batch in list(self._stream.in_flight):
            if self._unasked(batch) and not connection.closed:
                self._outcomes.resend(batch, connection)

    def _unasked(self, batch: Batch) -> bool:
        return batch.doubtful and batch.connection is None and batch.epoch == self._stream.epoch

    def _probe_silent(self) -> None:
        """Ask something that is answered at once: is anybody there?"""
        now_s = self._clock()
        waiting: Batch | None = next(
            (batch for batch in self._stream.in_flight if batch.connection is not None), None
        )
        if waiting is None or self._stream.waited_s(now_s) < SILENT_S:
            return
        connection = waiting.connection
        assert connection is not None
        if self._probed is connection:
            if now_s - self._probed_s > PROBE_S:
                self._probed = None
                connection.abort(Unavailable(f"{connection.peer} says nothing: connection cut"))
        elif now_s - self._heard_s > SILENT_S:
            self._probed, self._probed_s = connection, now_s
            connection.call(self._resolve_frame(waiting), (), self._heard)

    def _heard(self, reply: Any, payload: memoryview) -> None:
        self._probed = None
        self._heard_s = self._clock()

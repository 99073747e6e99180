"""The `chained` carrier on chains whose requests arrive, and are answered, by choice.

The operations, the replicas, the sequencer and the reconfiguration are those of core/chained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from chained_rig import Chains as Rig
from delivery_world import DeliveryWorld, Step

from loomlog import batch as batches
from loomlog.client.append.carriers import Outcomes
from loomlog.client.loglets.chained.carrier import ChainedAppend, ChainedCarrier
from loomlog.client.loglets.chained.chains import Chains, ChainView
from loomlog.client.loglets.chained.requests import Answered, PendingRequest
from loomlog.core.chained.append import UnreportedBlocks
from loomlog.core.chained.chain import Block
from loomlog.core.chained.messages import Answer, ChainedAsk, Refused, Renew, Write
from loomlog.core.chained.read import decide_at
from loomlog.core.chained.reconfigure import (
    Goal,
)
from loomlog.core.chained.trim import trim
from loomlog.core.requests import Lost, Service
from loomlog.protocol_names import CHAINED
from loomlog.types import Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb

REPLICAS = 2
UNCOUNTED = {"attempts"}  # how long an operation waits does not change what it does


class Flight(PendingRequest):
    """A request on its way to a replica or the sequencer, or its answer on the way back."""

    def __init__(self, ask: ChainedAsk, answered: Answered) -> None:
        super().__init__(answered)
        self.ask = ask
        self.answer: Answer | None = None  # once it has arrived

    @property
    def awaited(self) -> bool:
        return self._answered is not None

    @property
    def may_do_harm(self) -> bool:
        """Return whether it may still change something if nobody waits for it. A hole left by a
        sequencer is the same if the request arrived before its answer was lost."""
        return self.answer is None and isinstance(self.ask.request, Write)

    def land(self, answer: Answer) -> None:
        self._end(answer)


class Renewal:
    """A search for a newer projection."""

    def __init__(self, renewed: Callable[[ChainView | Exception], None]) -> None:
        self.renewed: Callable[[ChainView | Exception], None] | None = renewed

    def cancel(self) -> None:
        self.renewed = None


class ChainedWorld(DeliveryWorld):
    """One segment: a chain of two replicas."""

    protocol = CHAINED

    def connections(self) -> Any:
        self.rig = Rig(nodes=REPLICAS)
        self.flights: list[Flight] = []
        self.renewals: list[Renewal] = []
        self.unreported = UnreportedBlocks(lambda: None)
        self.written: dict[int, int] = {}  # the batch of a sequence number
        self.decided: dict[Glsn, int] = {}  # the batch at a position, even if it was trimmed
        self.known = self._newest()

    def carrier(self, outcomes: Outcomes) -> ChainedCarrier:
        return ChainedCarrier(cast(Chains, self), self.client, outcomes)

    def encode(self, index: int, sequence: int) -> bytearray:
        self.written[sequence] = index
        return batches.build(
            b"%8d" % index,
            codec=0,
            flags=0,
            count=1,
            raw_size=8,
            producer_id=7,
            sequence=sequence,
            min_timestamp_us=1,
            max_timestamp_us=1,
        )

    def described(self) -> Iterator[pb.LogStream]:
        yield pb.LogStream(
            log_stream_id=1, seal_epoch=self.known.epoch, replicas=[pb.Replica(address="head")]
        )

    def _newest(self) -> ChainView:
        return ChainView(1, self.rig.projection, {})

    # ---- in place of the client's chains

    @property
    def requests(self) -> ChainedWorld:
        return self

    def view(self, stream: StreamId) -> ChainView:
        return self.known

    def ask(self, view: ChainView, ask: ChainedAsk, answered: Answered) -> Flight:
        self.flights.append(Flight(ask, answered))
        return self.flights[-1]

    def renew(
        self, view: ChainView, request: Renew, renewed: Callable[[ChainView | Exception], None]
    ) -> Renewal:
        self.renewals.append(Renewal(renewed))
        return self.renewals[-1]

    # ---- what can happen

    def server_steps(self) -> Iterator[Step]:
        self.flights = [f for f in self.flights if f.awaited or f.may_do_harm]
        self.renewals = [r for r in self.renewals if r.renewed is not None]
        for index, flight in enumerate(self.flights):
            yield from self._steps_of(index, flight)
        for index, renewal in enumerate(self.renewals):
            yield f"renew {index}", lambda r=renewal: self._renew(r)  # type: ignore[misc]
        if self.known.epoch < self.rig.projection.epoch:
            yield "learn", self._learn
        if self.left["epoch"] and not self.rig.projection.closed:
            yield "epoch", lambda: self._reconfigure("epoch", Goal())
        if self.left["end"] and not self.rig.projection.closed:
            yield "end", lambda: self._reconfigure("end", Goal(close=True))
        if self.left["fill"] and self._handed_out() > 1:
            yield "fill", self._fill
        if self.left["trim"] and self.decided:
            yield "trim", self._trim

    def _steps_of(self, index: int, flight: Flight) -> Iterator[Step]:
        if flight.answer is None:
            yield f"arrive {index}", lambda: self._arrive(flight)
            if self.left["refuse"] and flight.awaited:
                yield f"refuse {index}", lambda: self._refuse(flight)
        elif flight.awaited:
            answer = flight.answer
            yield f"answer {index}", lambda: flight.land(answer)
        if self.left["cut"] and flight.awaited:
            yield f"lose {index}", lambda: self._lose(flight)

    # ---- how it happens

    def _arrive(self, flight: Flight) -> None:
        flight.answer = self.rig.answer(flight.ask)

    def _refuse(self, flight: Flight) -> None:
        self.spend("refuse")
        self.flights.remove(flight)
        flight.land(Refused("not now"))

    def _lose(self, flight: Flight) -> None:
        """Lose the answer; the request may still arrive. A client that does not reach the
        sequencer asks again: what it was given is a hole."""
        self.spend("cut")
        is_sequencer = flight.ask.target is Service.SEQUENCER
        flight.land(Refused("it does not answer") if is_sequencer else Lost())

    def _renew(self, renewal: Renewal) -> None:
        renewed, renewal.renewed = renewal.renewed, None
        assert renewed is not None
        self.known = self._newest()
        renewed(self.known)

    def _learn(self) -> None:
        self.known = self._newest()
        self.learn()

    def _reconfigure(self, what: str, goal: Goal) -> None:
        self.spend(what)
        self.rig.reconfigured(goal)

    def _handed_out(self) -> Glsn:
        sequencer = self.rig.sequencer
        return int(self.rig.projection.start if sequencer is None else sequencer.end)

    def _fill(self) -> None:
        """Let a reader decide the first position that is not decided."""
        self.spend("fill")
        self.note()
        there = {block.first for block in self._at_tail()}
        for position in range(1, self._handed_out()):
            if position not in there and position not in self.decided:
                self.rig.run(decide_at(self.rig.projection, position))
                return

    def _trim(self) -> None:
        self.spend("trim")
        self.rig.run(trim(self.rig.projection, max(self.decided)))

    def arrive_all(self) -> None:
        for flight in self.flights:
            if flight.answer is None:
                self._arrive(flight)
        self.note()
        for position in range(1, self._handed_out()):
            self.rig.run(decide_at(self.rig.projection, position))

    # ---- what must be true

    def _at_tail(self) -> list[Block]:
        return self.rig.on(REPLICAS)

    def note(self) -> None:
        for block in self._at_tail():
            if not block.is_junk:
                self.decided[block.first] = self.written[block.sequence]

    def stored(self, index: int) -> list[tuple[StreamId, Glsn]]:
        return [(1, first) for first, batch in self.decided.items() if batch == index]

    # ---- two worlds that continue alike

    def server_print(self) -> object:
        projection = self.rig.projection
        attempts = [batch.attempt for batch in self.batches]
        return (
            (projection.epoch, projection.closed, self._handed_out(), self.known.epoch),
            tuple(repr(self.rig.tables[node].look(r).standing) for node, r in self._replicas()),
            tuple(repr(self.rig.on(node)) for node, _ in self._replicas()),
            tuple(self.decided.items()),
            tuple((repr(f.ask), repr(f.answer), self._owner(f)) for f in self.flights),
            tuple(self._owner(renewal) for renewal in self.renewals if renewal.renewed),
            tuple(_print(a) if isinstance(a, ChainedAppend) else None for a in attempts),
        )

    def _replicas(self) -> Iterator[tuple[int, Any]]:
        return ((replica.node_id, replica) for replica in self.rig.projection.replicas)

    def _owner(self, request: Flight | Renewal) -> int | None:
        """Return which batch waits for it."""
        for index, batch in enumerate(self.batches):
            drive = getattr(batch.attempt, "_drive", None)
            if drive is not None and request in drive._requests:
                return index
        return None


def _print(attempt: ChainedAppend) -> object:
    """Return where an attempt is: all that tells how it continues."""
    found: list[object] = [attempt._sent, attempt._block is None]
    if attempt._drive is not None:
        found.append(attempt._drive._view.epoch)
        steps: Any = attempt._drive._steps
        while steps is not None and steps.gi_frame is not None:
            known = sorted(steps.gi_frame.f_locals.items())
            plain = [(k, repr(v)) for k, v in known if k not in UNCOUNTED and not callable(v)]
            found.append((steps.gi_code.co_name, steps.gi_frame.f_lasti, tuple(plain)))
            steps = steps.gi_yieldfrom
    return tuple(found)

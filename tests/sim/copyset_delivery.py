"""The `copyset` carrier and a model of its sequencers.

The carrier and its choice of sequencers are the real ones. The model of a sequencer follows the
rules of node/copyset/sequencers.py: an append names the epoch that it is for, and a repeated
one is looked for in earlier epochs. When an epoch ends, what was under way is kept or dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast

from delivery_world import REFUSALS, DeliveryWorld, ManualTask, Step

from loomlog.client.append.carriers import Outcomes
from loomlog.client.loglets.copyset.acknowledged import Acknowledgements
from loomlog.client.loglets.copyset.carrier import CopysetAttempt, CopysetCarrier
from loomlog.client.loglets.copyset.segments import Segments, Sequencers, View
from loomlog.core.copyset.log_state import first_state
from loomlog.core.copyset.nodeset import Member
from loomlog.core.copyset.record import make
from loomlog.errors import (
    AppendUnknown,
    Conflict,
    LoomError,
    NotLeader,
    Sealed,
    Timeout,
    Unavailable,
)
from loomlog.protocol_names import COPYSET
from loomlog.types import Glsn, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import KnownNode

NODES = {number: KnownNode(number, f"node-{number}", alive=True) for number in (1, 2)}


def node_of(epoch: int) -> KnownNode:
    return NODES[epoch % 2 + 1]


class Sent(NamedTuple):
    batch: int
    sequence: int


class Call:
    """A request on its way to a node, or its answer on the way back."""

    def __init__(self, address: str, request: pb.CopysetAppend, payload: bytes) -> None:
        self.address = address
        self.epoch: int = request.epoch
        self.repeated: bool = request.repeated
        self.conditional = request.HasField("expected_tail")
        self.sent = Sent(*map(int, payload.split()))
        self.arrived = False
        self.answer: pb.Frame | LoomError | None = None

    def __await__(self) -> Generator[Call, Any, Any]:
        answer = yield self
        return answer, b""

    def done(self) -> bool:
        return False  # whoever asks still waits

    @property
    def print(self) -> object:
        return self.address, self.epoch, self.repeated, self.sent, self.arrived, str(self.answer)


class Pause:
    def __await__(self) -> Generator[str, Any, Any]:
        return (yield "pause")


class ModelRetries:
    """Retries whose pauses end by choice."""

    def __init__(self, rng: object) -> None:
        pass

    async def pause(self) -> bool:
        return bool(await Pause())


class ModelConnection:
    def __init__(self, world: CopysetWorld, address: str) -> None:
        self.peer = address
        self.closed = False
        self._world = world

    def request(self, frame: pb.Frame, payload: tuple[bytes], timeout_s: float) -> Call:
        call = Call(self.peer, frame.copyset_append, payload[0])
        self._world.calls.append(call)
        return call


class Kept(NamedTuple):
    """A batch that a sequencer took, at its position."""

    sent: Sent
    position: Glsn
    epoch: int


class ModelCarrier(CopysetCarrier):
    """A carrier without tasks that asyncio could wait for."""

    def tasks(self) -> list[asyncio.Task[None]]:
        return []


class NoReports:
    """Ignores what is acknowledged: no disk forgets it here."""

    is_watched = True

    def __init__(self) -> None:
        self.news: list[tuple[int, Glsn, int]] = []


class CopysetWorld(DeliveryWorld):
    """One segment, sequenced by two nodes in turn."""

    protocol = COPYSET

    def connections(self) -> Any:
        self.epoch = 1
        self.closed = False  # the segment has ended
        self.kept: list[Kept] = []
        self.under_way: list[Kept] = []
        self.waiting: list[tuple[Kept, Call]] = []
        self.calls: list[Call] = []  # that may still arrive
        self._open: dict[str, ModelConnection] = {}
        self._down = self.shape.disconnected
        self.state = first_state([Member(1), Member(2)], replication=2)
        self.known = self._newest()

    def carrier(self, outcomes: Outcomes) -> CopysetCarrier:
        segments = cast(Segments, self)
        self.sequencers = Sequencers(segments)
        reports = cast(Acknowledgements, NoReports())
        return ModelCarrier(segments, self.sequencers, reports, self.client, outcomes)

    def encode(self, index: int, sequence: int) -> bytes:
        return b"%d %d" % (index, sequence)

    def described(self) -> Iterator[pb.LogStream]:
        yield pb.LogStream(
            log_stream_id=1,
            seal_epoch=self.known.state.epoch,
            replicas=[pb.Replica(address="node-1")],
        )

    def _newest(self) -> View:
        sequencer = node_of(self.epoch).node_id
        return View(1, 1, replace(self.state, epoch=self.epoch, sequencer=sequencer), NODES)

    # ---- in place of the client's segments

    def view(self, stream: StreamId) -> View:
        return self.known

    async def try_to_refresh(self) -> None:
        self.known = self._newest()

    async def connect_to(self, address: str) -> ModelConnection:
        if self._down:
            self._down = not await Pause()
        connection = self._open.get(address)
        if connection is None or connection.closed:
            connection = self._open[address] = ModelConnection(self, address)
        return connection

    # ---- what can happen

    def server_steps(self) -> Iterator[Step]:
        for index, call in enumerate(self.calls):
            yield f"arrive {index}", lambda c=call: self._arrive(c)  # type: ignore[misc]
        for index, task in enumerate(self.loop.tasks):
            yield from self._steps_of(index, task)
        if self.under_way:
            yield "commit", self._commit
        for what in ("epoch", "end"):
            if self.left[what] and not self.closed:
                yield f"{what} keeps", lambda w=what: self._end_epoch(w, keep=True)  # type: ignore[misc]
                if self.under_way:
                    yield f"{what} drops", lambda w=what: self._end_epoch(w, keep=False)  # type: ignore[misc]

    def _steps_of(self, index: int, task: ManualTask) -> Iterator[Step]:
        call = task.waits_for
        if not isinstance(call, Call):
            yield f"go on {index}", lambda: task.go_on(True)
            if self._down and self.left["refuse"]:
                yield (
                    f"unreachable {index}",
                    lambda: self._fail(task, "refuse", REFUSALS["refuse"]()),
                )
            return
        if call.answer is not None:
            yield f"answer {index}", lambda: self._answer(task, call)
            return
        if self.left["cut"]:
            yield f"cut {index}", lambda: self._cut(call.address)
            yield f"silence of {index}", lambda: self._fail(task, "cut", Timeout("no answer"))
        for how, error in REFUSALS.items():
            if self.left[how] and not call.arrived:
                yield f"{how} {index}", lambda h=how, e=error: self._refuse(task, call, h, e())  # type: ignore[misc]
        if self.left["forget"] and call.repeated and not call.arrived:
            yield f"forget {index}", lambda: self._refuse(task, call, "forget", AppendUnknown("?"))

    # ---- how it happens

    def _fail(self, task: ManualTask, what: str, error: Exception) -> None:
        self.spend(what)
        task.go_on(error=error)

    def _refuse(self, task: ManualTask, call: Call, what: str, error: Exception) -> None:
        self.calls.remove(call)
        self._fail(task, what, error)

    def _answer(self, task: ManualTask, call: Call) -> None:
        if isinstance(call.answer, LoomError):
            task.go_on(error=call.answer)
        else:
            task.go_on(call.answer)

    def _cut(self, address: str) -> None:
        """Break a connection: answers are lost, and requests may still arrive."""
        self.spend("cut")
        self._open[address].closed = True
        for task in list(self.loop.tasks):
            call = task.waits_for
            if isinstance(call, Call) and call.address == address and task in self.loop.tasks:
                task.go_on(error=Unavailable("the connection was lost"))

    def _arrive(self, call: Call) -> None:
        self.calls.remove(call)
        call.arrived = True
        found = [kept for kept in self.kept if kept.sent == call.sent]
        now = [kept for kept in (*self.kept, *self.under_way) if kept.epoch == self.epoch]
        known = [kept for kept in now if kept.sent == call.sent]
        if self.closed:
            is_there = call.repeated and found
            call.answer = _appended(found[0]) if is_there else Sealed("the segment has ended")
        elif call.address != node_of(self.epoch).address:
            call.answer = NotLeader("another node sequences", node_of(self.epoch).address)
        elif not self.fits(call):
            self._not_taken(call)
        elif call.repeated and not known and found:
            call.answer = _appended(found[0])
        elif known and known[0] in self.kept:
            call.answer = _appended(known[0])
        elif known:
            self.waiting.append((known[0], call))
        elif call.conditional and (self.kept or self.under_way):
            call.answer = Conflict("it would not be the first one")
        else:
            kept = Kept(call.sent, make(self.epoch, len(now) + 1), self.epoch)
            self.under_way.append(kept)
            self.waiting.append((kept, call))

    def fits(self, call: Call) -> bool:
        """Return whether an append may be taken in this epoch."""
        return call.epoch == self.epoch or (call.repeated and call.epoch < self.epoch)

    def _not_taken(self, call: Call) -> None:
        call.answer = pb.Frame(copyset_tail=pb.CopysetTail(epoch=self.epoch))

    def _commit(self) -> None:
        self._keep(self.under_way.pop(0))

    def _keep(self, kept: Kept) -> None:
        self.kept.append(kept)
        for waited, call in self.waiting:
            if waited == kept:
                call.answer = _appended(kept)
        self.waiting = [each for each in self.waiting if each[0] != kept]

    def _end_epoch(self, what: str, *, keep: bool) -> None:
        """Recover the epoch: what was under way is kept or dropped."""
        self.spend(what)
        under_way, self.under_way = self.under_way, []
        for kept in under_way if keep else ():
            self._keep(kept)
        self.epoch += 1
        self.closed = what == "end"
        for _, call in self.waiting:
            self._not_taken(call)
        self.waiting = []

    def arrive_all(self) -> None:
        while self.calls:
            self._arrive(self.calls[0])
        while self.under_way:
            self._commit()

    # ---- what must be true

    def stored(self, index: int) -> list[tuple[StreamId, Glsn]]:
        return [(1, kept.position) for kept in self.kept if kept.sent.batch == index]

    # ---- two worlds that continue alike

    def server_print(self) -> object:
        attempts = (batch.attempt for batch in self.batches)
        return (
            (self.epoch, self.closed, self._down, self.known.state.epoch),
            (tuple(self.kept), tuple(self.under_way)),
            tuple((kept, call.print) for kept, call in self.waiting),
            tuple(call.print for call in self.calls),
            tuple(sorted(address for address, c in self._open.items() if not c.closed)),
            tuple(map(self._task_print, self.loop.tasks)),
            tuple(a._epoch for a in attempts if isinstance(a, CopysetAttempt)),
            tuple(self.sequencers._named.items()),
            tuple(self.sequencers._reported.items()),
        )

    def _task_print(self, task: ManualTask) -> object:
        call = task.waits_for
        return task.print, call.print if isinstance(call, Call) else call


def _appended(kept: Kept) -> pb.Frame:
    return pb.Frame(appended=pb.Appended(first_glsn=kept.position, first_llsn=kept.position))

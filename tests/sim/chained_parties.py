"""The parties of a simulated chained log: nodes, clients, metadata repositories.

What clients and metadata repositories do are generators, like the operations of the core that they
are made of; the world delivers what they ask.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import count
from random import Random

from chained_judge import ChainedJudge
from memory_tables import MemoryTable

from loomlog.core.chained.admission import Admission
from loomlog.core.chained.append import Appended, Overtaken, append, resolve
from loomlog.core.chained.chain import Block, Projection, Replica
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import (
    Answer,
    Current,
    Done,
    Found,
    HandedOut,
    InForce,
    Interrupted,
    Next,
    NotWritten,
    Reading,
    Remove,
    Request,
    Steps,
    Ticket,
    Trimmed,
)
from loomlog.core.chained.newcomer import create
from loomlog.core.chained.read import decide_at, fill, find_end, find_tail, read, read_at
from loomlog.core.chained.reconfigure import Adopted, Goal, Reconfigured, least_start, reconfigure
from loomlog.core.chained.sequencer import Sequencer
from loomlog.core.chained.trim import trim
from loomlog.core.chained.upkeep import NewEpoch
from loomlog.core.requests import Ask, Service
from loomlog.storage.chained.write_once import Answered, WriteOnceStore
from loomlog.storage.files import Finished, Step
from loomlog.types import Glsn, NodeId

TRIES = 6
FOLLOWED_AT_ONCE = 4
COUNT_MAX = 3
POSITIONS_MAX = 300  # more than a world hands out


class SimulatedWorker:
    """A worker that does a job when the world says so."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Sequence[Step], Finished]] = deque()

    def run(self, steps: Sequence[Step], finished: Finished) -> None:
        self.jobs.append((steps, finished))

    run_short = run

    def work(self) -> None:
        steps, finished = self.jobs.popleft()
        for step in steps:
            step()
        finished(None)

    def close(self) -> None:
        self.jobs.clear()


class Node:
    """A storage node with the real store, on a disk in memory."""

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.name = f"node-{node_id}"
        self.up = True
        self._forget()
        self.table = MemoryTable()
        self._start()

    def _start(self) -> None:
        self.commits, self.look_ups = SimulatedWorker(), SimulatedWorker()
        self._store = WriteOnceStore(self.table, self.commits, self.look_ups)

    def _forget(self) -> None:
        self.unanswered: list[Answered] = []

    @property
    def busy(self) -> list[SimulatedWorker]:
        return [worker for worker in (self.commits, self.look_ups) if worker.jobs]

    def ask(self, replica: Replica, request: Request, done: Answered) -> None:
        self.unanswered.append(done)

        def answered(answer: Answer) -> None:
            if done in self.unanswered:
                self.unanswered.remove(done)
                done(answer)

        self._store.ask(replica, request, answered)

    def crash(self, random: Random) -> list[Answered]:
        """Crash, and return the requests that stay unanswered. A write in progress is stored, or
        not."""
        self.up = False
        unanswered = self.unanswered
        self._forget()
        if self.commits.jobs and random.random() < 0.5:
            for step in self.commits.jobs[0][0]:
                step()
        self.table.lose_power()
        return unanswered

    def restart(self) -> None:
        self.up = True
        self._start()

    def lose_disk(self) -> None:
        self.table = MemoryTable()


class Party:
    """A process that asks: a client, or a metadata repository."""

    def __init__(self, name: str, random: Random, judge: ChainedJudge) -> None:
        self.name = name
        self.random = random
        self.judge = judge
        self.projection: Projection | None = None

    def refresh(self) -> Steps[Projection | None]:
        [answer] = yield [Ask(Service.METADATA, Current())]
        if isinstance(answer, InForce):
            self.judge.in_force(answer.projection)
            self.projection = answer.projection
        return self.projection


class Client(Party):
    """Numbers its batches, keeps a projection until it meets a newer epoch, follows the log."""

    def __init__(self, name: str, producer_id: int, random: Random, judge: ChainedJudge) -> None:
        super().__init__(name, random, judge)
        self._producer_id = producer_id
        self._sequence = 0
        self._address: Glsn = 0  # of the next block to follow; 0: not known
        self.highest: Glsn = 1

    # ---- appending

    def append(self) -> Steps[None]:
        self._sequence += 1
        sequence, count = self._sequence, self.random.randint(1, COUNT_MAX)
        floor, since = self.judge.acknowledged_end, self.judge.now()
        for _ in range(TRIES):
            ticket = yield from self._ticket(count)
            if ticket is None:
                yield from self.refresh()
                continue
            block = Block(ticket.first, count, self._producer_id, sequence, b"batch")
            self.judge.tried(block)
            outcome = yield from self._write(ticket, block)
            if isinstance(outcome, Appended):
                self.judge.appended(block, floor, since)
            if isinstance(outcome, Overtaken):
                self.judge.lost(block)
                continue
            return

    def _ticket(self, count: int) -> Steps[Ticket | None]:
        if self.projection is None:
            return None
        [answer] = yield [Ask(Service.SEQUENCER, Next(self.projection.epoch, count))]
        return answer.ticket if isinstance(answer, HandedOut) else None

    def _write(self, ticket: Ticket, block: Block) -> Steps[Appended | Overtaken | None]:
        """Write a block until its outcome is known; return None if that takes too long."""
        for _ in range(TRIES):
            assert self.projection is not None
            if ticket.epoch == self.projection.epoch:
                outcome = yield from append(self.projection, ticket, block)
            else:
                outcome = yield from resolve(self.projection, block)
            if isinstance(outcome, Appended | Overtaken):
                return outcome
            if isinstance(outcome, Trimmed):
                self.judge.was_trimmed(outcome.position)
                return None
            yield from self.refresh()
        return None

    # ---- reading

    def follow(self) -> Steps[None]:
        """Read on in order; a hole is filled now and then."""
        for _ in range(FOLLOWED_AT_ONCE):
            projection = self.projection or (yield from self.refresh())
            if projection is None:
                return
            address = self._address or projection.first
            since = self.judge.now()
            outcome = yield from read(projection, address)
            if isinstance(outcome, NotWritten):
                self.judge.not_written(address, since)
                if self.random.random() < 0.5:
                    return
                since = self.judge.now()
                outcome = yield from fill(projection, address)
            yield from self._followed(address, since, outcome)

    def _followed(self, address: Glsn, since: int, outcome: Reading) -> Steps[None]:
        match outcome:
            case Found(block):
                self.judge.seen(block)
                self._address = block.end
                self.highest = max(self.highest, block.end)
            case NotWritten():
                self.judge.not_written(address, since)
            case Trimmed(position):
                self.judge.was_trimmed(position)
                yield from self._skip_trimmed(position + 1)
            case Interrupted():
                yield from self.refresh()

    def _skip_trimmed(self, position: Glsn) -> Steps[None]:
        assert self.projection is not None
        outcome = yield from decide_at(self.projection, position)
        if isinstance(outcome, Found):
            self.judge.seen(outcome.block)
            self._address = outcome.block.end

    def look(self) -> Steps[None]:
        """Read any position."""
        projection = self.projection or (yield from self.refresh())
        if projection is None:
            return
        end = self.judge.acknowledged_end
        first = self.random.choice((1, max(1, end - COUNT_MAX)))
        position = self.random.randint(first, end + COUNT_MAX)
        since = self.judge.now()
        operation = self.random.choice((read_at, read_at, decide_at))
        outcome = yield from operation(projection, position)
        match outcome:
            case Found(block):
                self.judge.seen(block)
                if not block.first <= position < block.end:
                    raise AssertionError(f"{block} does not cover {position}")
            case NotWritten():
                self.judge.not_written(position, since)
            case Trimmed(trimmed):
                self.judge.was_trimmed(trimmed)
            case Interrupted():
                yield from self.refresh()

    def measure(self) -> Steps[None]:
        projection = self.projection or (yield from self.refresh())
        if projection is None:
            return
        floor, tail_floor = self.judge.acknowledged_end, self.judge.tail_floor()
        if self.random.random() < 0.5:
            end = yield from find_end(projection)
            if isinstance(end, int):
                self.judge.end_found(end, floor)
        else:
            end = yield from find_tail(projection)
            if isinstance(end, int):
                self.judge.tail_found(end, tail_floor)
        if not isinstance(end, int):
            yield from self.refresh()

    def trim(self) -> Steps[None]:
        projection = self.projection or (yield from self.refresh())
        if projection is None:
            return
        position = self.random.randint(1, self.highest)
        self.judge.trimmed = max(self.judge.trimmed, position)
        outcome = yield from trim(projection, position)
        if isinstance(outcome, Interrupted):
            yield from self.refresh()


class Records:
    """The record of the loglet, as the metadata repositories share it."""

    def __init__(self, record: ChainedRecord) -> None:
        self.record = record
        self.may_be_short: set[int] = set()  # sequencers of epochs that may leave chains short
        self.births = count(record.projection.sequencer + 1)


class Repository(Party):
    """A metadata repository that leads, or believes that it does. Its sequencers die with it."""

    def __init__(self, name: str, random: Random, judge: ChainedJudge, records: Records) -> None:
        super().__init__(name, random, judge)
        self._records = records
        self.sequencers: dict[int, Sequencer] = {}  # by the number in their projections

    def reconfigure(self, goal: Goal, *, may_be_short: bool = False) -> Steps[None]:
        """Begin an epoch. `may_be_short`: the rules let it leave chains short."""
        projection = yield from self.refresh()
        if projection is not None:
            yield from self._reconfigure(projection, goal, may_be_short=may_be_short)

    def begin_epoch(self, wanted: NewEpoch) -> Steps[None]:
        """Begin the epoch that the upkeep wants; lost chains get a fresh replica."""
        log_id = self._records.record.loglet
        fresh = [Replica(n, log_id, chain, next(self._records.births)) for chain, n in wanted.fresh]
        record = self._records.record.note_witnesses(*wanted.given_up)
        self._records.record = record.admit(*fresh)
        self.judge.fresh.update(fresh)
        yield from self.reconfigure(wanted.goal(*fresh), may_be_short=wanted.short)
        self._records.record = self._records.record.give_up(*fresh)

    def join(self, chain: int, node_id: NodeId) -> Steps[None]:
        """Make a replica, fill it and let it join, until it has joined or is given up."""
        log_id = self._records.record.loglet
        replica = Replica(node_id, log_id, chain, next(self._records.births))
        self._records.record = self._records.record.admit(replica)
        yield from self._admit(replica)
        self._records.record = self._records.record.give_up(replica)

    def remove(self, replica: Replica) -> Steps[None]:
        """Remove a replica that is not needed any more from its node."""
        [answer] = yield [Ask(replica, Remove())]
        if isinstance(answer, Done):
            self._records.record = self._records.record.forget(replica)

    def _admit(self, replica: Replica) -> Steps[None]:
        projection = yield from self.refresh()
        if projection is None:
            return
        newcomer = yield from create(projection, replica)
        if isinstance(newcomer, Interrupted):
            return
        admission = Admission(newcomer)
        while replica in self._records.record.joining:
            projection = (yield from self.refresh()) or projection
            stop = yield from admission.catch_up(projection)
            if stop is None:
                goal = admission.next_goal(took_s=self.random.choice((0.0, 0.0, 1.0)))
                if (yield from self._reconfigure(projection, goal)):
                    continue
            if admission.retry_delay_s() is None:
                return

    def _stop(self, projection: Projection, goal: Goal, did_without: bool) -> Glsn:
        """Return where the next epoch may start. Half of the time what was handed out is unknown,
        as if another leader had done that, and is doing it still."""
        handed_out = 0
        if self.random.random() < 0.5:
            sequencer = self.sequencers.pop(projection.sequencer, None)
            handed_out = 0 if sequencer is None else sequencer.end
        trimmed = self._records.record.trimmed
        start = least_start(projection, goal, handed_out, trimmed, did_without=did_without)
        return min(start, projection.start + POSITIONS_MAX)

    def _reconfigure(
        self, projection: Projection, goal: Goal, *, may_be_short: bool = False
    ) -> Steps[bool]:
        """Return whether it came into force."""
        name = next(self._records.births)
        if may_be_short:
            self._records.may_be_short.add(name)
        stop = partial(self._stop, projection, goal)
        ending = yield from reconfigure(projection, goal, name, stop)
        match ending:
            case Reconfigured(new):
                self.judge.in_force(new)
                remembered = self.random.choice((1, 3, 100))
                if not new.closed:
                    self.sequencers[name] = Sequencer(new, remembered)
                return True
            case Adopted(other):
                self.judge.in_force(other)
        return False

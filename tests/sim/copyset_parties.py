"""The parties of a simulated copyset log: nodes, the epoch store, hosts of sequencers, readers;
and the messages and procedures that they have under way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Generic, TypeVar

from copyset_node import CopysetNode, MemoryRecords

from loomlog.core.copyset import log_state
from loomlog.core.copyset.effects import (
    AskShard,
    Deliver,
    Finished,
    NeedMetadata,
    ReaderEffect,
    ReadGap,
    SetTimer,
)
from loomlog.core.copyset.late_losses import miss
from loomlog.core.copyset.messages import (
    Activate,
    Delivered,
    EpochStoreRequest,
    Finish,
    GetState,
    LogState,
    Miss,
    NodeAnswer,
    NodeRequest,
    Read,
    Reassign,
    Refused,
    Restore,
    Seal,
    SealedAt,
    SetClean,
    Store,
    UseShort,
)
from loomlog.core.copyset.nodeset import (
    Authority,
    EpochMetadata,
    Exclusions,
    Member,
    Trouble,
    choose_short,
    node_of,
)
from loomlog.core.copyset.presumption import Presume
from loomlog.core.copyset.procedures import Answer, CopysetAsk, Exchange, Steps
from loomlog.core.copyset.reader import CopysetReader
from loomlog.core.copyset.reader_sources import ReadSettings
from loomlog.core.copyset.rebuild import restore
from loomlog.core.copyset.record import Epoch, Lsn, Record, skip_zero
from loomlog.core.copyset.recovery import Recovery
from loomlog.core.copyset.sequencer import EpochSequencer
from loomlog.core.requests import Lost, Service
from loomlog.types import NodeId

if TYPE_CHECKING:
    from copyset_world import CopysetWorld

LOG = 1
FAR: Lsn = 1 << 62

Answered = Callable[[Answer], None]
Outcome = TypeVar("Outcome")


def ignore(answer: Answer) -> None:
    pass


def is_nothing(request: NodeRequest, answer: NodeAnswer) -> bool:
    """Return whether the answer has nothing for a reader, which may as well wait."""
    match request, answer:
        case Read(first=first), Delivered(next_lsn=next_lsn):
            return next_lsn <= first
    return False


@dataclass(eq=False, slots=True)
class Message:
    """A request, or an answer to one."""

    sender: int  # the number of a process
    target: NodeId | Service
    request: NodeRequest | EpochStoreRequest
    done: Answered
    answer: Answer | None = None  # it is on its way back
    late: bool = False  # nobody waits for it any more


class Call(Generic[Outcome]):
    """A procedure that a process has under way. It ends with the process."""

    def __init__(
        self,
        world: CopysetWorld,
        process: int,
        steps: Steps[Outcome],
        ended: Callable[[Outcome], None],
    ) -> None:
        self._world = world
        self._process = process
        self._steps = steps
        self._ended = ended
        self._round = 0
        self._asks: Sequence[CopysetAsk] = ()
        self._answers: list[Answer | None] = []
        self._go_on(None)

    def _go_on(self, answers: Sequence[Answer] | None) -> None:
        try:
            asked = next(self._steps) if answers is None else self._steps.send(answers)
        except StopIteration as stop:
            self._ended(stop.value)
            return
        self._ask(asked)

    def _ask(self, asked: Exchange) -> None:
        self._round += 1
        self._asks = asked.asks
        self._answers = [None] * len(asked.asks)
        for index, ask in enumerate(asked.asks):
            self._world.send(self._process, ask.target, ask.request, self._waiter(index, asked))

    def _waiter(self, index: int, asked: Exchange) -> Answered:
        number = self._round

        def answered(answer: Answer) -> None:
            if number == self._round and self._world.is_alive(self._process):
                self._answers[index] = self._answers[index] or answer
                self._look(asked)

        return answered

    def _look(self, asked: Exchange) -> None:
        if None in self._answers and not self._is_enough(asked):
            return
        self._round += 1
        self._go_on([answer or Lost() for answer in self._answers])

    def _is_enough(self, asked: Exchange) -> bool:
        pairs = zip(self._asks, self._answers, strict=True)
        answers = {
            ask.target: answer
            for ask, answer in pairs
            if isinstance(ask.target, int) and answer is not None
        }
        return self._world.random.random() < 0.3 and asked.enough(answers)


class Node:
    """A storage node. All that it answered is on its disk."""

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.up = True
        self.process = 0  # the number of its process
        self.lost_through: Epoch = 0  # of epochs up to this one it may have lost records
        self.gone = False  # forever
        self.trouble: Trouble | None = None
        self.purging = False
        self.released: Lsn = 0  # the highest it was told of
        self.unreadable: set[Lsn] = set()  # where copies begin that are damaged
        self._disk = CopysetNode(node_id)
        self._copy = CopysetNode(node_id)

    @property
    def records(self) -> MemoryRecords:
        return self._disk.records(LOG)

    def answer(self, request: NodeRequest) -> NodeAnswer:
        if self.trouble is not None and isinstance(request, Store):
            return Refused(self.trouble)
        if isinstance(request, Restore | Reassign):
            return self._restore(request)
        answer = self._disk.answer(request)
        if isinstance(answer, SealedAt):
            return replace(answer, lost_through=self.lost_through)
        if isinstance(answer, Delivered):
            answer = replace(answer, lost_through=self.lost_through)
            is_head = isinstance(request, Read) and not request.batches
            return answer if is_head else self._without_damage(answer)
        return answer

    def _restore(self, request: Restore | Reassign) -> NodeAnswer:
        records = self.records
        answer, changes = restore.decide(request, records.standing, records, self.node_id, 0)
        for change in changes:
            records.apply(change)
        return answer

    def _without_damage(self, answer: Delivered) -> Delivered:
        damaged = [(r.first, r.last) for r in answer.records if r.first in self.unreadable]
        whole = [r for r in answer.records if r.first not in self.unreadable]
        return replace(answer, records=whole, damaged=damaged) if damaged else answer

    def readable(self) -> list[Record]:
        return [r for r in self.records.all() if r.first not in self.unreadable]

    def counts_in(self, epoch: Epoch) -> bool:
        """Return whether what the node lacks of the epoch was never there."""
        return not self.gone and epoch > self.lost_through

    def crash(self) -> None:
        self.up = False
        self.purging = False

    def restart(self, random: Random, process: int) -> None:
        self.up = True
        self.process = process
        if random.random() < 0.5:
            self.released = 0
            self.records.standing = self.records.standing._replace(released=0)

    def lose_disk(self, newest: Epoch) -> None:
        self._disk = CopysetNode(self.node_id)
        self._forget(newest)

    def keep_copy(self) -> None:
        """Copy its disk, for `roll_back`."""
        self._copy = deepcopy(self._disk)

    def roll_back(self, newest: Epoch) -> None:
        """Replace its disk by the copy, which is the disk from before the next time."""
        self._disk, self._copy = self._copy, self._disk
        self._forget(newest)

    def _forget(self, newest: Epoch) -> None:
        """Seal itself, because it has forgotten in which epoch it was sealed."""
        self.lost_through = newest
        self.released = 0
        self.unreadable.clear()
        self._disk.answer(Seal(LOG, newest - 1, 0))

    def peek(self, first: Lsn) -> Delivered:
        answer = self._disk.answer(Read(LOG, first, FAR, 1 << 30, everything=True))
        assert isinstance(answer, Delivered)
        return answer


class EpochStore:
    def __init__(
        self, nodeset: tuple[Member, ...], replication: int, random: Random, least: int = 0
    ) -> None:
        """`least`: copies that must do while nodes are away; 0: as many as wanted."""
        self._random = random
        self._members = nodeset
        self.least = least
        metadata = EpochMetadata(1, nodeset, replication)
        self.state = LogState(0, 0, (metadata,), 0, 0)
        self.told: Lsn = 0  # the newest tail that a sequencer told of

    def answer(
        self,
        request: EpochStoreRequest,
        gone: Collection[NodeId],
        takers: Collection[NodeId] = (),
    ) -> LogState:
        """`takers`: the nodes that take copies."""
        state = self.state
        match request:
            case Activate(_, node, expected) if expected == state.epoch and not state.closed:
                state = log_state.note_tail(state, self.told)
                history = self._history(gone)
                if not self.least:
                    self.state = replace(
                        state, epoch=state.epoch + 1, sequencer=node, history=history
                    )
                else:
                    nodeset = history[-1].nodeset
                    short = self._short(history[-1], takers)
                    self.state = log_state.take_epoch(
                        state, node, nodeset, short=short, least=self.least
                    )
            case SetClean():
                self.state = log_state.set_clean(state, request)
            case UseShort():
                self.state = log_state.use_short(state, request)
            case Presume():
                self.state = log_state.presume(state, request)
            case Miss():
                self.state = miss(state, request)
            case Finish():
                self.state = log_state.finish(state, request)
            case GetState() | Activate():
                pass
        return self.state

    def _short(self, metadata: EpochMetadata, takers: Collection[NodeId]) -> tuple[NodeId, ...]:
        """Return a short copyset if one is needed, and sometimes if not."""
        if self._random.random() < 0.2:
            count = self._random.randint(self.least, metadata.replication)
            by_node = {node_of(shard): shard for shard in metadata.shards}
            return tuple(self._random.sample([*by_node.values()], count))
        return choose_short(LOG, metadata._replace(short=()), takers, self.least)

    def _history(self, gone: Collection[NodeId]) -> tuple[EpochMetadata, ...]:
        """Return a history that sometimes changes the nodeset."""
        history = self.state.history
        newest = history[-1]
        here = [member for member in self._members if member.shard not in gone]
        stays = self._random.random() < (0.3 if set(newest.shards) & set(gone) else 0.7)
        if not self.state.epoch or stays or len(here) < newest.replication:
            return history
        count = self._random.randint(newest.replication, len(here))
        nodeset = tuple(sorted(self._random.sample(here, count)))
        metadata = EpochMetadata(self.state.epoch + 1, nodeset, newest.replication)
        return (*history, metadata) if metadata.can_hold_a_copyset(metadata.shards) else history


@dataclass(eq=False)
class Host:
    """A process that has a sequencer, and recovers the epochs before it."""

    process: int
    sequencer: EpochSequencer
    exclusions: Exclusions
    recovery: Recovery
    fencing: bool = False  # or fenced
    recovering: bool = False
    recovered: bool = False


class Follower:
    """A reader. The judge sees whatever it is shown."""

    def __init__(
        self, world: CopysetWorld, process: int, first: Lsn, until: Lsn, *, lazy: bool = False
    ) -> None:
        random = world.random
        settings = ReadSettings(
            room_bytes=random.choice((300, 100_000)), all_send_all=random.choice((1, 5, 100))
        )
        self.process = process
        self.shown = 0
        self.wakes_at: float | None = None
        self._world = world
        self._expected = skip_zero(first)
        self._until = until
        self._is_lazy = lazy  # takes what it is shown only now and then
        self._untaken = 0
        self._authorities: dict[NodeId, Authority] = {}
        self._reader = CopysetReader(LOG, first, until, settings=settings)
        self._carry_out(self._reader.woken(world.now))

    @property
    def head(self) -> Lsn:
        return self._reader.head

    @property
    def finished(self) -> bool:
        return self._reader.finished

    def tick(self) -> None:
        """Called when time has passed."""
        now = self._world.now
        authorities = self._world.authorities_for_readers()
        if authorities != self._authorities:
            self._authorities = authorities
            self._carry_out(self._reader.learn_authorities(authorities, now))
        if self._untaken:
            taken, self._untaken = self._untaken, 0
            self._carry_out(self._reader.consumed(taken, now))
        if self.wakes_at is not None and self.wakes_at <= now:
            self.wakes_at = None
            self._carry_out(self._reader.woken(now))
        if self._world.random.random() < 0.1:
            self._carry_out(self._reader.learn_state(self._world.store.state, now))

    def _carry_out(self, effects: list[ReaderEffect]) -> None:
        for effect in effects:
            match effect:
                case AskShard(node, question, request):
                    done = partial(self._answered, node, question)
                    self._world.send(self.process, node, request, done)
                case Deliver() | ReadGap():
                    self._show(effect)
                case NeedMetadata():
                    self._ask_for_state()
                case SetTimer(at):
                    self.wakes_at = at
                case Finished():
                    self._world.judge.reader_finished(self.head, self._until)

    def _show(self, shown: Deliver | ReadGap) -> None:
        self._world.judge.shown(shown, self._expected)
        self._expected = skip_zero(shown.last + 1)
        self.shown += 1
        if isinstance(shown, ReadGap):
            return
        if self._is_lazy:
            self._untaken += 1
        else:
            self._carry_out(self._reader.consumed(1, self._world.now))

    def _answered(self, node: NodeId, question: int, answer: Answer) -> None:
        if not self._world.is_alive(self.process):
            return
        now = self._world.now
        if isinstance(answer, Delivered):
            self._carry_out(self._reader.answered(node, question, answer, now))
        else:
            self._carry_out(self._reader.failed(node, question, now))

    def _ask_for_state(self) -> None:
        self._world.send(self.process, Service.METADATA, GetState(LOG), self._told_state)

    def _told_state(self, answer: Answer) -> None:
        if not self._world.is_alive(self.process):
            return
        if isinstance(answer, LogState):
            self._carry_out(self._reader.learn_state(answer, self._world.now))
        else:
            self._ask_for_state()

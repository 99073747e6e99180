"""A copyset log without a clock, a disk or a network: nodes, sequencers, recoveries, readers.

Each step does one thing that may happen next, by chance: a message arrives, is lost or is late, a
process dies, a node is away for long or loses its disk, a sequencer is replaced and does not know.
copyset_harm.py says what goes wrong, copyset_judge.py what must hold nevertheless.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import cast

from copyset_harm import Harm
from copyset_judge import CopysetJudge
from copyset_parties import (
    LOG,
    Answered,
    Call,
    EpochStore,
    Follower,
    Host,
    Message,
    Node,
    ignore,
    is_nothing,
)
from violation import Violation

from loomlog.core.copyset.effects import Contradicted, Send, SequencerEffect
from loomlog.core.copyset.log_state import completed, short_epochs
from loomlog.core.copyset.messages import (
    Activate,
    Amend,
    EpochStoreRequest,
    Finish,
    LogState,
    NodeAnswer,
    NodeRequest,
    Preempted,
    Purge,
    Read,
    Release,
    SetClean,
    Store,
    Stored,
)
from loomlog.core.copyset.nodeset import (
    Authority,
    Exclusions,
    Member,
    choose_short,
    node_of,
    shard_of,
)
from loomlog.core.copyset.procedures import Answer, fence, purge
from loomlog.core.copyset.rebuild.donor import (
    DonorAnswer,
    DonorAsk,
    RebuildOrder,
    Scan,
    fill,
)
from loomlog.core.copyset.record import LSN_MAX, Epoch, Lsn, make, offset_of
from loomlog.core.copyset.recovery import Ending, NotRecovered, Recovered, Recovery
from loomlog.core.copyset.sequencer import EpochSequencer, SequencerSettings, SequencerState
from loomlog.core.copyset.storage import epoch_to_purge
from loomlog.core.requests import Lost, Service
from loomlog.types import NodeId, ShardId

STEPS = 600
READ_STEPS = 200
CALM_STEPS = 20_000  # within which all must be well when the faults are over
APPENDS_IN_PEACE = 3
HOSTS_MAX = 3
COUNT_MAX = 3
SETTINGS = SequencerSettings(window_records=8, store_timeout_s=0.5, release_s=1.0)


class CopysetWorld:
    def __init__(
        self, seed: int, *, disaster: bool = False, shards: int = 1, short: bool = False
    ) -> None:
        """`shards`: of each node. A node that loses its disks loses those of all its shards.
        `short`: fewer copies than wanted do while nodes are away."""
        self.random = random = Random(seed)
        self._lost = random.choice((0.01, 0.04, 0.04, 0.15))  # of all messages
        self._turmoil = random.choice((0.04, 0.04, 0.1))  # of all steps
        self.disaster = disaster
        self.replication = replication = random.choice((1, 2, 2, 3, 3, 3))
        least = 0
        if short:
            self.replication = replication = random.choice((2, 3, 3, 3, 4))
            least = random.randint(1, replication)
        count = replication + random.randint(0 if short else 1, 3)
        racks = random.choice((0, 0, 2, 3))
        numbers = range(1, count + 1)
        ids = [shard_of(n, index) for index in range(shards) for n in numbers]
        members = [Member(n, f"rack {node_of(n) % racks}" if racks else "") for n in ids]
        self.nodes = {n: Node(n) for n in ids}  # each is a shard
        tolerated = (least or replication) - 1
        losing = random.randint(replication, count) if disaster else tolerated
        losers = random.sample(numbers, losing)
        self.unlucky = [n for n in ids if node_of(n) in losers]  # may lose their disks
        self.store = EpochStore(tuple(members), replication, random, least)
        self.judge = CopysetJudge(self)
        self._harm = Harm(self)
        self._closes = random.random() < 0.5  # the log, at the end
        self.silent = False  # nobody learns that a node is away
        self.now = 0.0
        self.messages: list[Message] = []
        self.waiting: list[Message] = []  # readers that wait for something to be released
        self.hosts: list[Host] = []
        self.followers: list[Follower] = []
        self.blocked: set[tuple[int, NodeId]] = set()
        self.suspects: set[NodeId] = set()  # readers think that they are away
        self.emptied: set[NodeId] = set()  # gone, and what they had is on others
        self.recoveries = 0
        self.completed = 0  # epochs with a short copyset
        self.purges = 0
        self._alive: set[int] = set()
        self._processes = 0
        self._appends = 0
        for node in self.nodes.values():
            node.process = self._new_process()

    def _new_process(self) -> int:
        self._processes += 1
        self._alive.add(self._processes)
        return self._processes

    def is_alive(self, process: int) -> bool:
        return process in self._alive

    def authorities(self) -> dict[NodeId, Authority]:
        """Return the authorities of nodes that cannot report their own."""
        return {n: Authority.UNAVAILABLE for n, node in self.nodes.items() if node.gone}

    def takers(self) -> set[NodeId]:
        """Return the nodes that take copies."""
        return {n for n, node in self.nodes.items() if node.up and node.trouble is None}

    def authorities_for_readers(self) -> dict[NodeId, Authority]:
        found = dict.fromkeys(self.suspects, Authority.UNAVAILABLE)
        for n in (n for n, node in self.nodes.items() if node.gone):
            found[n] = Authority.EMPTY if n in self.emptied else Authority.UNDERREPLICATED
        return found

    # ---- the run

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
        self._calm_down()
        self.settle()
        for _ in range(APPENDS_IN_PEACE):
            self._append()
        self._read_in_trouble()
        self._calm_down()
        self.settle()
        if self._closes:
            self._close()
        if self.store.least:
            self.complete(0.0)
        self.judge.look_at_the_end()

    def _read_in_trouble(self) -> None:
        """Start readers while nodes are away for some time."""
        self._harm.before_reading()
        self.replace_follower()
        self.replace_follower()
        for _ in range(READ_STEPS):
            self.now += self.random.random() * 0.02
            chance = self.random.random()
            if chance < 0.15:
                self._tick()
            elif chance < 0.17:
                self._harm.copy_again()
            else:
                self._deliver(self._lost)

    def settle(self) -> None:
        """Continue without faults until all is well."""
        for _ in range(CALM_STEPS):
            if self._is_well():
                return
            self._step_in_peace()
        raise Violation(f"not well although there are no faults: {self.store.state}")

    def _close(self) -> None:
        """Close the log before an epoch without appends."""
        self.activate()
        self.settle()
        self.store.state = replace(self.store.state, closed=True)
        self.settle()

    # ---- parts of a run, in peace

    def write(self, appends: int) -> None:
        """Append, and run until all is stored and released."""
        self.settle()
        for _ in range(appends):
            self._append()
            self.settle()

    def read_all(self, pace_s: float) -> float:
        """Return how long a reader takes to read everything released if a message takes up to
        `pace_s`."""
        began_s = self.now
        released = max(node.records.standing.released for node in self.nodes.values())
        self.followers = [Follower(self, self._new_process(), 1, released)]
        while not self.followers[0].finished:
            self.now += self.random.random() * pace_s
            if self.messages:
                self._deliver(0.0)
            else:
                self._pass_time()
        return self.now - began_s

    def _step(self) -> None:
        self.now += self.random.random() * 0.02
        chance = self.random.random()
        if chance < 0.10:
            self._append()
        elif chance < 0.15:
            self._tick()
        elif chance < 0.17:
            self.judge.peek()
        elif chance < 0.21:
            self._mend()
        elif chance < 0.21 + self._turmoil:
            self._harm.do()
        elif self.store.least and chance > 0.99:
            self.complete(self._lost)
        else:
            self._deliver(self._lost)

    def _step_in_peace(self) -> None:
        self.now += self.random.random() * 0.02
        if self.messages and self.random.random() < 0.9:
            self._deliver(0.0)
        else:
            self._pass_time()

    def _pass_time(self) -> None:
        """Advance the time to the next alarm."""
        alarms = [follower.wakes_at for follower in self.followers]
        alarms += [host.sequencer.next_due for host in self.hosts]
        times = [time for time in alarms if time is not None and time > self.now]
        self.now = min([*times, self.now + 0.5])
        self._tick()
        self._mend()

    # ---- messages

    def send(
        self,
        process: int,
        target: NodeId | Service,
        request: NodeRequest | EpochStoreRequest,
        done: Answered,
    ) -> None:
        self.messages.append(Message(process, target, request, done))

    def _deliver(self, lost: float) -> None:
        if not self.messages:
            return
        index = self.random.randrange(len(self.messages))
        if isinstance(self.messages[index].request, Read):
            index = self.random.randrange(len(self.messages))
        self.messages[index], self.messages[-1] = self.messages[-1], self.messages[index]
        message = self.messages.pop()
        if lost:
            self._harm.strike(message)
        if message.answer is not None:
            message.done(Lost() if self.random.random() < lost else message.answer)
        elif not message.late and (self.random.random() < lost or self._is_cut_off(message)):
            self._lose(message)
        elif isinstance(message.target, Service):
            self._answer(message, self._serve(message.request))
        elif not self.nodes[message.target].up:
            if not self.silent:
                message.done(Lost())
        else:
            self._arrive(self.nodes[message.target], message)

    def _lose(self, message: Message) -> None:
        """Lose a message; it may still arrive when no sender waits for it any more."""
        message.done(Lost())
        if self.random.random() < 0.5:
            message.late, message.done = True, ignore
            self.messages.append(message)

    def _is_cut_off(self, message: Message) -> bool:
        return (message.sender, message.target) in self.blocked

    def _answer(self, message: Message, answer: Answer) -> None:
        message.answer = answer
        self.messages.append(message)

    def _serve(self, request: NodeRequest | EpochStoreRequest) -> LogState:
        assert not isinstance(request, NodeRequest)
        before = self.store.state
        gone = {node.node_id for node in self.nodes.values() if node.gone}
        state = self.store.answer(request, gone, self.takers())
        if isinstance(request, Finish) and state is not before:
            self.judge.finished[request.epoch] = make(request.epoch, request.last)
        if isinstance(request, SetClean) and state is not before:
            self.recoveries += 1
            self.judge.cleaned(request.end)
        return state

    def _arrive(self, node: Node, message: Message) -> None:
        request = message.request
        assert isinstance(request, NodeRequest)
        answer = self._ask(node, request)
        if isinstance(request, Release):
            node.released = max(node.released, request.lsn)
            self.judge.released(node)
            self._purge(node)
            self._wake(node)
        if is_nothing(request, answer):
            self.waiting.append(message)
        else:
            self._answer(message, answer)

    def _ask(self, node: Node, request: NodeRequest) -> NodeAnswer:
        if isinstance(request, Purge):
            there = self.judge.there()
            answer = node.answer(request)
            self.judge.purged(node, there)
            return answer
        if not isinstance(request, Store | Amend):
            return node.answer(request)
        sealed = node.records.standing.seal
        before = node.records.by_first.get(request.record.first)
        answer = node.answer(request)
        if isinstance(answer, Stored):
            self.judge.took(node, request.record, before, sealed)
        return answer

    def _wake(self, node: Node) -> None:
        """Deliver the requests that wait for the node to release something."""
        self.messages += [m for m in self.waiting if m.target == node.node_id]
        self.waiting = [m for m in self.waiting if m.target != node.node_id]

    # ---- records on short copysets

    def complete(self, lost: float) -> None:
        """Let a node of each short copyset complete its records. Messages may be `lost`."""
        state = self.store.state
        asked: dict[ShardId, bool] = {}
        for epoch in [e for e in short_epochs(state) if e <= state.last_clean]:
            donors = [
                [n for n in short if self._has_all(self.nodes[n], epoch)]
                for short in state.metadata_of(epoch).short
            ]
            if not all(donors):
                continue
            chosen = [self.random.choice(some) for some in donors]
            for donor in chosen:
                if donor not in asked:
                    asked[donor] = self._is_filled(donor, lost)
            if all(asked[donor] for donor in chosen):
                self.completed += 1
                self.store.state = completed(self.store.state, epoch)

    def _has_all(self, node: Node, epoch: Epoch) -> bool:
        return node.up and node.counts_in(epoch)

    def _is_filled(self, donor: ShardId, lost: float) -> bool:
        order = RebuildOrder(LOG, 0, donor, {}, frozenset(), frozenset(self.takers()))
        result = Scan()
        steps = fill(order, self.store.state, result)
        with suppress(StopIteration):
            asks = next(steps)
            while True:
                asks = steps.send([self._answer_donor(ask, lost) for ask in asks])
        return not result.left

    def _answer_donor(self, ask: DonorAsk, lost: float) -> DonorAnswer:
        node = self.nodes[ask.target]
        is_there = node.up and self.random.random() >= lost
        return node.answer(ask.request) if is_there else Lost()

    # ---- sequencers

    def activate(self) -> None:
        if len(self.hosts) >= HOSTS_MAX:
            self.kill(self.random.choice(self.hosts))
        newest = self._newest_host()
        if newest is not None and self.random.random() < 0.2:
            self._carry_out(newest, newest.sequencer.drain(self.now))
        process = self._new_process()
        expected = self.store.state.epoch

        def activated(answer: Answer) -> None:
            if isinstance(answer, LogState) and answer.sequencer == process:
                self._begin(process, answer)

        self.send(process, Service.METADATA, Activate(LOG, process, expected), activated)

    def _begin(self, process: int, state: LogState) -> None:
        exclusions = Exclusions(silent_s=3.0)
        sequencer = EpochSequencer(
            LOG,
            state.metadata_of(state.epoch),
            state.epoch,
            {node for metadata in state.history for node in metadata.shards},
            exclusions,
            self.random,
            SETTINGS,
        )
        host = Host(process, sequencer, exclusions, Recovery(LOG, state.epoch))
        self.hosts.append(host)
        if self.random.random() < 0.7:
            self._fence(host, state)
            self._recover(host)

    def _fence(self, host: Host, state: LogState) -> None:
        host.fencing = True
        steps = fence(LOG, host.sequencer.epoch, state, self.authorities())
        Call(self, host.process, steps, partial(self._fenced, host))

    def _fenced(self, host: Host, outcome: dict[NodeId, Lsn] | Preempted | None) -> None:
        match outcome:
            case dict():
                for node, lsn in outcome.items():
                    self._carry_out(host, host.sequencer.found(node, lsn))
                self._carry_out(host, host.sequencer.fenced())
            case Preempted(seal):
                self._carry_out(host, host.sequencer.preempted(seal))
            case None:
                host.fencing = False

    def kill(self, host: Host) -> None:
        self.hosts.remove(host)
        self._alive.discard(host.process)

    def finish(self, host: Host) -> None:
        """End a sequencer, which reports how far it has acknowledged."""
        epoch, last = host.sequencer.epoch, offset_of(host.sequencer.last_acknowledged)
        self.kill(host)
        self.send(0, Service.METADATA, Finish(LOG, epoch, last), ignore)

    def _append(self) -> None:
        running = [host for host in self.hosts if host.sequencer.state is SequencerState.RUNNING]
        if self.random.random() < 0.1:
            running = self.hosts
        if not running:
            return
        self.append(self.random.choice(running))

    def append(self, host: Host) -> None:
        self._appends += 1
        self.judge.begins(self._appends, host.process)
        batch = b"batch %d" % self._appends
        count = self.random.randint(1, COUNT_MAX)
        now_us = int(self.now * 1e6)
        self._carry_out(host, host.sequencer.append(batch, count, self._appends, now_us, self.now))

    def _tick(self) -> None:
        for host in self.hosts:
            self._carry_out(host, host.sequencer.tick(self.now))
            if self.random.random() < 0.1:
                self.store.told = max(self.store.told, host.sequencer.last_acknowledged)
        for follower in self.followers:
            follower.tick()
        if self.random.random() < 0.1:
            for message in self.waiting:
                node = self.nodes[cast(NodeId, message.target)]
                self._answer(message, node.answer(cast(Read, message.request)))
            self.waiting.clear()

    def _carry_out(self, host: Host, effects: list[SequencerEffect]) -> None:
        for effect in effects:
            self.judge.did(host.sequencer.epoch, effect)
            match effect:
                case Send(node, Store(record=record) | Amend(record=record) as request):
                    done = partial(self._stored, host, node, record.first, record.wave)
                    self.send(host.process, node, request, done)
                case Send(node, request):
                    self.send(host.process, node, request, partial(self._released, host, node))
                case Contradicted():
                    raise AssertionError(f"no epoch is taken twice here: {effect}")

    def _stored(self, host: Host, node: NodeId, lsn: Lsn, wave: int, answer: Answer) -> None:
        if host not in self.hosts:
            return
        if isinstance(answer, Lost) and self.random.random() < 0.5:
            return  # it is the clock that tells
        told = None if isinstance(answer, Lost | LogState) else answer
        self._carry_out(host, host.sequencer.answered(node, lsn, wave, told, self.now))

    def _released(self, host: Host, node: NodeId, answer: Answer) -> None:
        if host in self.hosts and isinstance(answer, Lost) and self.nodes[node].up:
            self._carry_out(host, host.sequencer.returned(node_of(node)))

    # ---- recovery and purge

    def _recover(self, host: Host) -> None:
        host.recovering = True
        down = (
            ()
            if self.store.least and self.random.random() < 0.3
            else set(map(node_of, self.nodes.keys() - self.takers()))
        )
        attempt = host.recovery.attempt(self.authorities(), int(self.now * 1e6), down)
        Call(self, host.process, attempt, partial(self._recovery_ended, host))

    def _recovery_ended(self, host: Host, ending: Ending) -> None:
        host.recovering = False
        match ending:
            case Recovered(state):
                host.recovered = True
                effects = host.sequencer.recovered_up_to(state.last_clean, self.now)
                self._carry_out(host, effects)
            case Preempted(seal):
                self._carry_out(host, host.sequencer.preempted(seal))
            case NotRecovered():
                pass

    def _purge(self, node: Node) -> None:
        epoch = epoch_to_purge(node.released, node.records.standing)
        if epoch is None or node.purging:
            return
        node.purging = True
        lng = node.records.standing.released_in(epoch)
        steps = purge(LOG, epoch, node.node_id, lng)
        Call(self, node.process, steps, partial(self._purge_ended, node))

    def _purge_ended(self, node: Node, problem: str) -> None:
        node.purging = False
        if not problem:
            self.purges += 1
            node.answer(Release(LOG, node.released))
            self._wake(node)
            self._purge(node)

    # ---- who comes and goes

    def crash(self, node: Node) -> None:
        self._wake(node)
        node.crash()
        if self.random.random() < 0.3:
            self.suspects.add(node.node_id)
        self._alive.discard(node.process)

    def restart(self, node: Node) -> None:
        self.suspects.discard(node.node_id)
        node.restart(self.random, self._new_process())
        for host in self.hosts:
            self._carry_out(host, host.sequencer.returned(node_of(node.node_id)))

    def replace_follower(self) -> None:
        if len(self.followers) > 1:
            self._alive.discard(self.followers.pop(0).process)
        first = self.random.choice((1, 1, self.somewhere_released() or 1))
        until = self.random.choice((LSN_MAX, LSN_MAX, self.somewhere_released()))
        until = until if until >= first else LSN_MAX
        lazy = self.random.random() < 0.3
        self.followers.append(Follower(self, self._new_process(), first, until, lazy=lazy))

    def somewhere_released(self) -> Lsn:
        shown = self.random.choice([*self.nodes.values()]).peek(1).records
        return self.random.choice(shown).last if shown else 0

    # ---- peace

    def _mend(self) -> None:
        """Do what the keepers of a log do."""
        if self.store.state.closed:
            return
        newest = self._newest_host()
        if newest is None:
            if not any(isinstance(m.request, Activate) and not m.late for m in self.messages):
                self.activate()
        elif newest.fencing and not (newest.recovered or newest.recovering):
            self._recover(newest)
        elif self._needs_epoch(newest) and self.random.random() < 0.3:
            self.activate()
        for host in self.hosts:
            if not host.fencing and self.random.random() < 0.2:
                self._fence(host, self.store.state)
        for node in self.nodes.values():
            if node.up:
                self._purge(node)

    def _needs_epoch(self, newest: Host) -> bool:
        is_short = bool(self.store.least) and not self._can_append()
        return is_short or (newest.recovered and self._has_loss())

    def _has_loss(self) -> bool:
        """Return whether a node of the newest epoch lost its disk and so does not count in it."""
        state = self.store.state
        nodes = [self.nodes[node] for node in state.metadata_of(state.epoch).shards]
        return not all(node.counts_in(state.epoch) for node in nodes)

    def _can_append(self) -> bool:
        """Return whether the newest epoch uses as many nodes as it can, or no epoch could."""
        state, takers = self.store.state, self.takers()
        metadata = state.metadata_of(state.epoch)
        if metadata.can_replicate(takers):
            return not metadata.short
        short = choose_short(LOG, metadata, takers, self.store.least)
        return metadata.can_hold_a_copyset(takers) or not short

    def _newest_host(self) -> Host | None:
        epoch = self.store.state.epoch
        newest = (host for host in self.hosts if host.sequencer.epoch == epoch)
        return next(
            (host for host in newest if host.sequencer.state is SequencerState.RUNNING), None
        )

    def _calm_down(self) -> None:
        self.blocked.clear()
        self.suspects.clear()
        for host in self.hosts:
            host.exclusions.down = frozenset()
        for node in self.nodes.values():
            node.trouble = None
            if not (node.up or node.gone):
                self.restart(node)

    def _is_well(self) -> bool:
        if self.store.state.closed:
            return not self.messages and all(follower.finished for follower in self.followers)
        if self.messages:
            return False
        newest = self._newest_host()
        if newest is None or not newest.recovered or self.judge.open_appends():
            return False
        released = newest.sequencer.released
        return (
            newest.sequencer.next_lsn == released + 1
            and all(n.records.standing.released == released for n in self.nodes.values() if n.up)
            and all(self._has_read_all(follower, released) for follower in self.followers)
        )

    def _has_read_all(self, follower: Follower, released: Lsn) -> bool:
        return follower.finished or follower.head == released + 1

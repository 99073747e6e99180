"""A copyset log without a clock, a disk or a network: nodes, sequencers, recoveries, readers.

Each step does one thing that may happen next, by chance: a message arrives, is lost or is late, a
process dies, a node is away for long or loses its disk, a sequencer is replaced and does not know.

Judged while it runs (copyset_judge.py):
- what was acknowledged is read for ever, as long as fewer than R nodes lose their disks;
- what was not is a record or a hole, the same for all, for ever; nothing of it shows as a loss;
- nothing of an epoch is shown before all epochs before it are clean, and those do not change.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import cast

from copyset_calls import Answered, Call, Message, ignore, is_nothing
from copyset_follower import Follower
from copyset_harm import Harm
from copyset_judge import Judge, Violation
from copyset_oracle import Oracle
from copyset_parties import LOG, EpochStore, Host, Node

from loomlog.core.copyset.asking import Answer, Lost, Service
from loomlog.core.copyset.authority import Authority
from loomlog.core.copyset.effects import Acknowledge, Effect, Send, StepDown
from loomlog.core.copyset.epoch_metadata import Member
from loomlog.core.copyset.exclusions import Exclusions, ExclusionTimes
from loomlog.core.copyset.fencing import fence
from loomlog.core.copyset.lsn import Lsn
from loomlog.core.copyset.messages import (
    Activate,
    Amend,
    EpochStoreRequest,
    LogState,
    NodeRequest,
    Preempted,
    Read,
    Release,
    SetClean,
    Store,
)
from loomlog.core.copyset.purging import NotPurged, Purged, purge
from loomlog.core.copyset.recovery import Ending, Interrupted, Recovered, Recovery
from loomlog.core.copyset.sequencer import Sequencer, SequencerSettings, State
from loomlog.core.copyset.storage import epoch_to_purge
from loomlog.types import NodeId

STEPS = 700
CALM_STEPS = 20_000  # within which all must be well when the faults are over
HOSTS_MAX = 3
COUNT_MAX = 3
SETTINGS = SequencerSettings(window_records=8, store_timeout_s=0.5, release_s=1.0)


class World:
    def __init__(self, seed: int, *, disaster: bool = False) -> None:
        self.random = random = Random(seed)
        self._lost = random.choice((0.01, 0.04, 0.04, 0.15))  # of all messages
        self._turmoil = random.choice((0.04, 0.04, 0.1))  # of all steps
        self.disaster = disaster
        self.replication = replication = random.choice((1, 2, 2, 3, 3, 3))
        count = replication + random.randint(1, 3)
        racks = random.choice((0, 0, 2, 3))
        members = [Member(n, f"rack {n % racks}" if racks else "") for n in range(1, count + 1)]
        self.nodes = {n: Node(n) for n in range(1, count + 1)}
        disks = random.randint(replication, count) if disaster else replication - 1
        self.unlucky = random.sample(sorted(self.nodes), disks)  # may lose their disks
        self.store = EpochStore(tuple(members), replication, random)
        self.judge = Judge(losses=disaster)
        self.oracle = Oracle(self)
        self._harm = Harm(self)
        self.now = 0.0
        self.messages: list[Message] = []
        self.waiting: list[Message] = []  # readers that wait for something to be released
        self.hosts: list[Host] = []
        self.followers: list[Follower] = []
        self.blocked: set[tuple[int, NodeId]] = set()
        self.recoveries = 0
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
        gone = Authority.UNAVAILABLE
        return {n: gone if node.gone else node.authority for n, node in self.nodes.items()}

    # ---- the run

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
        self._calm_down()
        self.replace_follower()
        for _ in range(CALM_STEPS):
            if self._is_well():
                break
            self._step_in_peace()
        else:
            raise Violation(f"not well although there are no faults: {self.store.state}")
        self.oracle.look_at_the_end()

    def _step(self) -> None:
        self.now += self.random.random() * 0.02
        chance = self.random.random()
        if chance < 0.10:
            self._append()
        elif chance < 0.15:
            self._tick()
        elif chance < 0.17:
            self.oracle.peek()
        elif chance < 0.21:
            self._mend()
        elif chance < 0.21 + self._turmoil:
            self._harm.do()
        else:
            self._deliver(self._lost)

    def _step_in_peace(self) -> None:
        self.now += self.random.random() * 0.02
        if self.messages and self.random.random() < 0.9:
            self._deliver(0.0)
            return
        self.now += 0.5
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
            message.done(Lost())
        else:
            self._arrive(self.nodes[message.target], message)

    def _lose(self, message: Message) -> None:
        """It may still arrive, when nobody waits for it any more."""
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
        state = self.store.answer(request, gone)
        if isinstance(request, SetClean) and state is not before:
            self.recoveries += 1
            self.oracle.cleaned(request.epoch)
        return state

    def _arrive(self, node: Node, message: Message) -> None:
        request = message.request
        assert isinstance(request, NodeRequest)
        answer = node.answer(request)
        if isinstance(request, Release):
            node.released = max(node.released, request.lsn)
            self._purge(node)
            self._wake(node)
        if is_nothing(request, answer):
            self.waiting.append(message)
        else:
            self._answer(message, answer)

    def _wake(self, node: Node) -> None:
        """There is something for those who wait for it to release something."""
        self.messages += [m for m in self.waiting if m.target == node.node_id]
        self.waiting = [m for m in self.waiting if m.target != node.node_id]

    # ---- sequencers

    def activate(self) -> None:
        if len(self.hosts) >= HOSTS_MAX:
            self.kill(self.random.choice(self.hosts))
        process = self._new_process()
        expected = self.store.state.epoch

        def activated(answer: Answer) -> None:
            if isinstance(answer, LogState) and answer.sequencer == process:
                self._begin(process, answer)

        self.send(process, Service.EPOCH_STORE, Activate(LOG, process, expected), activated)

    def _begin(self, process: int, state: LogState) -> None:
        sequencer = Sequencer(
            LOG,
            state.metadata_of(state.epoch),
            state.epoch,
            {node for metadata in state.history for node in metadata.nodes},
            Exclusions(ExclusionTimes(silent_s=3.0)),
            self.random,
            SETTINGS,
        )
        host = Host(process, sequencer, Recovery(LOG, state.epoch))
        self.hosts.append(host)
        steps = fence(LOG, state.epoch, state, self.authorities())
        Call(self, process, steps, partial(self._fenced, host))
        self._recover(host)

    def _fenced(self, host: Host, is_fenced: bool | Preempted) -> None:
        if is_fenced is True:
            self._carry_out(host, host.sequencer.fenced())

    def kill(self, host: Host) -> None:
        self.hosts.remove(host)
        self._alive.discard(host.process)

    def _append(self) -> None:
        running = [host for host in self.hosts if host.sequencer.state is State.RUNNING]
        if not running:
            return
        host = self.random.choice(running)
        self._appends += 1
        self.judge.begins(self._appends)
        batch = b"batch %d" % self._appends
        count = self.random.randint(1, COUNT_MAX)
        now_us = int(self.now * 1e6)
        self._carry_out(host, host.sequencer.append(batch, count, self._appends, now_us, self.now))

    def _tick(self) -> None:
        for host in self.hosts:
            self._carry_out(host, host.sequencer.tick(self.now))
        for follower in self.followers:
            follower.tick()
        if self.random.random() < 0.1:
            for message in self.waiting:
                node = self.nodes[cast(NodeId, message.target)]
                self._answer(message, node.answer(cast(Read, message.request)))
            self.waiting.clear()

    def _carry_out(self, host: Host, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(node, Store() | Amend() as request):
                    if isinstance(request, Store):
                        self.judge.given(request.record)
                    record = request.record
                    done = partial(self._stored, host, node, record.first, record.wave)
                    self.send(host.process, node, request, done)
                case Send(node, request):
                    self.send(host.process, node, request, partial(self._released, host, node))
                case Acknowledge(number, lsn):
                    self.judge.appended(lsn, cast(int, number))
                    self.oracle.look_for_losses([lsn])
                case StepDown():
                    pass

    def _stored(self, host: Host, node: NodeId, lsn: Lsn, wave: int, answer: Answer) -> None:
        if host not in self.hosts:
            return
        if isinstance(answer, Lost) and self.random.random() < 0.5:
            return  # it is the clock that tells
        told = None if isinstance(answer, Lost | LogState) else answer
        self._carry_out(host, host.sequencer.answered(node, lsn, wave, told, self.now))

    def _released(self, host: Host, node: NodeId, answer: Answer) -> None:
        if host in self.hosts and isinstance(answer, Lost) and self.nodes[node].up:
            self._carry_out(host, host.sequencer.returned(node))

    # ---- recovery and purge

    def _recover(self, host: Host) -> None:
        host.recovering = True
        attempt = host.recovery.attempt(self.authorities(), int(self.now * 1e6))
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
            case Interrupted():
                pass

    def _purge(self, node: Node) -> None:
        epoch = epoch_to_purge(node.released, node.records.standing)
        if epoch is None or node.purging:
            return
        node.purging = True
        steps = purge(LOG, epoch, node.node_id, self.authorities())
        Call(self, node.process, steps, partial(self._purge_ended, node))

    def _purge_ended(self, node: Node, ending: Purged | NotPurged) -> None:
        node.purging = False
        if isinstance(ending, Purged):
            self.purges += 1
            if not ending.end.wave:
                self.judge.doubtful.add(ending.end.epoch)
            node.answer(Release(LOG, node.released))
            self._wake(node)
            self._purge(node)

    # ---- who comes and goes

    def crash(self, node: Node) -> None:
        self._wake(node)
        node.crash()
        self._alive.discard(node.process)

    def restart(self, node: Node) -> None:
        node.restart(self.random, self._new_process())
        for host in self.hosts:
            self._carry_out(host, host.sequencer.returned(node.node_id))

    def replace_follower(self) -> None:
        if len(self.followers) > 1:
            self._alive.discard(self.followers.pop(0).process)
        first = self.random.choice((1, 1, self.oracle.somewhere_released() or 1))
        self.followers.append(Follower(self, self._new_process(), first))

    # ---- peace

    def _mend(self) -> None:
        """What those do who look after a log."""
        newest = self._newest_host()
        if newest is None:
            if not any(isinstance(m.request, Activate) and not m.late for m in self.messages):
                self.activate()
        elif not (newest.recovered or newest.recovering):
            self._recover(newest)
        for node in self.nodes.values():
            if node.up:
                self._purge(node)

    def _newest_host(self) -> Host | None:
        epoch = self.store.state.epoch
        running = [host for host in self.hosts if host.sequencer.state is State.RUNNING]
        return next((host for host in running if host.sequencer.epoch == epoch), None)

    def _calm_down(self) -> None:
        self.blocked.clear()
        for node in self.nodes.values():
            node.trouble = None
            if not (node.up or node.gone):
                self.restart(node)

    def _is_well(self) -> bool:
        newest = self._newest_host()
        if self.messages or newest is None or not newest.recovered:
            return False
        released = newest.sequencer.released
        return (
            newest.sequencer.next_lsn == released + 1
            and all(n.records.standing.released == released for n in self.nodes.values() if n.up)
            and all(follower.head == released + 1 for follower in self.followers)
        )

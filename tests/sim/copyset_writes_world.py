"""Sequencers of one log, each of its own epoch, and nodes that are slow, refuse, or are away."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Final

from copyset_writes_judge import LOG, Judge

from loomlog.core.copyset.effects import Effect, Send
from loomlog.core.copyset.epoch_metadata import EpochMetadata, Member
from loomlog.core.copyset.exclusions import Exclusions, ExclusionTimes
from loomlog.core.copyset.lsn import Epoch
from loomlog.core.copyset.messages import (
    NodeAnswer,
    NodeRequest,
    Preempted,
    Refused,
    Release,
    Seal,
    Store,
    Trouble,
)
from loomlog.core.copyset.sequencer import Sequencer, SequencerSettings, State
from loomlog.testing.copyset_node import CopysetNode
from loomlog.types import NodeId

TROUBLED_S: Final = 10.0  # from then on all is well
ENDED_S: Final = 100.0  # by then nothing happens any more
APPENDS: Final = 40
SETTINGS: Final = SequencerSettings(window_records=12, store_timeout_s=0.2)


class Host:
    """Where a sequencer runs."""

    def __init__(self, world: World, epoch: Epoch) -> None:
        self.world = world
        self.epoch = epoch
        self.exclusions = Exclusions(ExclusionTimes(silent_s=5.0))
        self.sequencer = Sequencer(
            LOG,
            world.metadata,
            epoch,
            world.metadata.nodes,
            self.exclusions,
            Random(world.random.random()),
            SETTINGS,
        )
        self.sealed: set[NodeId] = set()
        self._alarm: float | None = None

    def heed(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.world.judge.saw(self.epoch, effect)
            if isinstance(effect, Send):
                self.world.send(self, effect.node, effect.request)
        self._set_alarm()

    def append(self, token: str, records: int) -> None:
        self.world.judge.began(token)
        batch = token.encode()
        self.heed(self.sequencer.append(batch, records, token, 0, self.world.now))

    def answered(self, node: NodeId, request: NodeRequest, answer: NodeAnswer | None) -> None:
        if isinstance(request, Release):
            return
        record = request.record  # type: ignore[union-attr]
        self.heed(self.sequencer.answered(node, record.first, record.wave, answer, self.world.now))

    def recovered(self) -> None:
        self.world.judge.recovered.add(self.epoch)
        self.heed(self.sequencer.recovered_up_to(self.epoch - 1, self.world.now))

    def _set_alarm(self) -> None:
        due = self.sequencer.next_due
        if due is not None and (self._alarm is None or due < self._alarm):
            self._alarm = due
            self.world.at(due, self._wake_up)

    def _wake_up(self) -> None:
        self._alarm = None
        self.heed(self.sequencer.tick(self.world.now))


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        number = self.random.randint(3, 6)
        racks = self.random.choice([0, 2, 3])
        members = (
            Member(node, f"rack={node % racks}" if racks else "") for node in range(1, number + 1)
        )
        self.metadata = EpochMetadata(1, tuple(members), self.random.randint(1, 3))
        self.nodes = {node: CopysetNode(node) for node in self.metadata.nodes}
        self.judge = Judge(self.metadata, self.nodes.values())
        self.hosts: list[Host] = []
        self.tokens: list[str] = []
        self.delivered = 0
        self._slow: set[NodeId] = set()
        self._away: set[NodeId] = set()
        self._refusing: dict[NodeId, Trouble] = {}
        self._loss = self.random.choice([0.0, 0.02, 0.1])
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, action: Callable[[], None]) -> None:
        heappush(self._events, (max(when, self.now), next(self._numbers), action))

    def run(self) -> None:
        self._start(1)
        for action, times in ((self._succeed, 2), (self._append, APPENDS), (self._trouble, 12)):
            for _ in range(times):
                self.at(self.random.uniform(0, TROUBLED_S), action)
        self.at(TROUBLED_S, self._heal)
        while self._events and self.now < ENDED_S:
            self.now, _, action = heappop(self._events)
            action()
        self._finish()

    # ---- sequencers

    def _start(self, epoch: Epoch) -> None:
        host = Host(self, epoch)
        self.hosts.append(host)
        self.at(self.now + self.random.choice([0.0, 2.0]), partial(self._fence, host))

    def _succeed(self) -> None:
        """A new sequencer. The one before may drain, or not know."""
        before = self.hosts[-1]
        if self.random.random() < 0.3:
            before.heed(before.sequencer.drain(self.now))
        self._start(before.epoch + 1)

    def _fence(self, host: Host) -> None:
        """Again and again, until all nodes are sealed."""
        for node in self.nodes.keys() - host.sealed:
            self.at(self.now + self._delay(node), partial(self._seal, self.nodes[node], host))
        if len(host.sealed) < len(self.nodes) and host.sequencer.state is not State.OVER:
            self.at(self.now + 1.0, partial(self._fence, host))

    def _seal(self, node: CopysetNode, host: Host) -> None:
        if node.node_id in self._away:
            return
        answer = node.answer(Seal(LOG, host.epoch - 1))
        self.judge.look_at(node)
        if isinstance(answer, Preempted):
            host.heed(host.sequencer.preempted(answer.seal))
        else:
            host.sealed.add(node.node_id)
        if self.metadata.is_f_majority(host.sealed):
            host.heed(host.sequencer.fenced())
            if host.epoch == 1 or self.random.random() < 0.3:
                self.at(self.now + self.random.uniform(0, 2), host.recovered)

    def _append(self) -> None:
        self.tokens.append(f"append {len(self.tokens)}")
        self.random.choice(self.hosts).append(self.tokens[-1], self.random.randint(1, 4))

    # ---- the network, and what goes wrong

    def send(self, host: Host, node: NodeId, request: NodeRequest) -> None:
        self.at(self.now + self._delay(node), lambda: self._arrive(host, node, request))

    def _arrive(self, host: Host, node: NodeId, request: NodeRequest) -> None:
        if node in self._away or self.random.random() < self._loss:
            self._lose(host, node, request)
            return
        answer: NodeAnswer
        if node in self._refusing and isinstance(request, Store):
            answer = Refused(self._refusing[node])
        else:
            answer = self.nodes[node].answer(request)
            self.judge.look_at(self.nodes[node])
        if self.random.random() < self._loss:
            self._lose(host, node, request)
        else:
            self.at(self.now + self._delay(node), lambda: host.answered(node, request, answer))

    def _lose(self, host: Host, node: NodeId, request: NodeRequest) -> None:
        """The sender learns of it, or not; a release is sent again when it is connected again."""
        if self.random.random() < 0.5:
            self.at(self.now + self._delay(node), lambda: host.answered(node, request, None))
        if isinstance(request, Release):
            self.at(self.now + 1.0, lambda: host.heed(host.sequencer.returned(node)))

    def _delay(self, node: NodeId) -> float:
        return self.random.expovariate(2.0 if node in self._slow else 50.0)

    def _trouble(self) -> None:
        node = self.random.choice(list(self.nodes))
        match self.random.randrange(5):
            case 0:
                self._slow ^= {node}
            case 1:
                self._away ^= {node}
            case 2:
                self._refusing[node] = self.random.choice(list(Trouble))
            case 3:
                self._refusing.pop(node, None)
            case 4:
                for host in self.hosts:
                    host.exclusions.down = frozenset(self._away)

    def _heal(self) -> None:
        self._slow.clear()
        self._away.clear()
        self._refusing.clear()
        self._loss = 0.0
        for host in self.hosts:
            host.exclusions.down = frozenset()

    # ---- in the end

    def _finish(self) -> None:
        self.judge.finish(self.tokens)
        if 1 in self.judge.recovered:
            for node in self.metadata.nodes:
                down = frozenset({node} if self.metadata.replication > 1 else ())
                self.delivered += self.judge.check_delivery(1, down)

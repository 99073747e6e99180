"""A reader of a `copyset` log, and nodes to which all sorts of things happen while it reads.

Nodes answer by the real decisions of a storage node. They are slow, silent, away, late to learn
what is released; they lose their disks, or single copies; what was lost is copied again if
something is left of it; the log is trimmed, goes on, and is closed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from copyset_written import LOG, NODES, WrittenLog

from loomlog.core.copyset.authority import Authority
from loomlog.core.copyset.lsn import LSN_MAX, Lsn, epoch_of, last_of, make, skip_zero, words
from loomlog.core.copyset.messages import Trim
from loomlog.core.copyset.reader import Reader
from loomlog.core.copyset.reader_words import (
    Ask,
    Deliver,
    Effect,
    Finished,
    Gap,
    GapKind,
    NeedMetadata,
    ReadSettings,
    SetTimer,
)
from loomlog.core.copyset.record import Kind, Record
from loomlog.types import NodeId

LONG_POLL_S = 0.5
TIMEOUT_S = 1.5
TROUBLE_S = 4.0  # so long things happen; then all is repaired that can be
END_S = 200.0


class Violation(AssertionError):  # noqa: N818 - it says what it is
    pass


class Dangers(NamedTuple):
    """How often something happens, in a run."""

    outages: int = 4
    losses: int = 2  # of disks
    damages: int = 4  # of copies
    tails: int = 1  # damages of all copies of the last records of an epoch
    trims: int = 1


class ReadingWorld:
    def __init__(self, seed: int, dangers: Dangers | None = None) -> None:
        self.pick = random.Random(seed)
        self.log = WrittenLog(self.pick, epochs_max=4, records_max=15)
        self.now = 0.0
        self.down: set[NodeId] = set()
        self.slowness_s = {node: self.pick.choice([0.002, 0.01, 0.2]) for node in NODES}
        self.consumer_s = [0, 0.01, 0.1]  # what a delivery may take it
        self.authorities: dict[NodeId, Authority] = {}
        self.trimmed: Lsn = 0
        self.released = self.pick.choice([self.log.released_with(r) for r in self.log.truth] or [0])
        self.seen: list[Deliver | Gap] = []
        self.questions: dict[NodeId, int] = {}  # the newest
        self.asked = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = 0
        self.reader = self._make_reader()
        self._plan(dangers or Dangers())

    def run(self) -> None:
        self._perform(self.reader.start(self.now))
        while self._events and not self.reader.finished:
            self.now, _, event = heapq.heappop(self._events)
            if self.now > END_S:
                break
            event()
        if not self.reader.finished:
            raise Violation(f"stands still at {words(self.reader.head)}")
        self._check_order()

    # ---- what happens

    def _make_reader(self) -> Reader:
        truth = self.log.truth
        last = truth[-1].last if truth else 0
        until = LSN_MAX if self.log.closed else last
        firsts = [1, make(self.log.first_epoch, 1)]
        if truth:
            some = self.pick.choice(truth)
            firsts += [some.first, min(some.last, some.first + 1)]
            until = min(until, self.pick.choice([until, until, self.pick.choice(truth).last]))
        room_bytes = self.pick.choice([300, 3000, 100_000])
        settings = ReadSettings(room_bytes=room_bytes, all_send_all=self.pick.choice([1, 5, 100]))
        self.first = self.pick.choice(firsts)
        self.until = until
        return Reader(LOG, self.first, until, settings=settings)

    def _plan(self, dangers: Dangers) -> None:
        for node in NODES:
            self.log.nodes[node].release(self.released)
        for _ in range(dangers.outages):
            self._at(self._some_time(), self._outage)
        for _ in range(self.pick.randint(0, dangers.losses)):
            self._at(self._some_time(), self._lose)
        for _ in range(self.pick.randint(0, dangers.damages)):
            self._at(self._some_time(), self._damage)
        for _ in range(self.pick.randint(0, dangers.tails)):
            self._at(self._some_time(), self._damage_tail)
        for _ in range(self.pick.randint(0, dangers.trims)):
            self._at(self._some_time(), self._trim)
        for number in range(40):
            self._at(number * 0.05, self._release_more)
        self._at(TROUBLE_S, self._heal)

    def _some_time(self) -> float:
        return self.pick.choice([0.0, self.pick.uniform(0, 0.2), self.pick.uniform(0, TROUBLE_S)])

    def _at(self, time: float, event: Callable[[], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (time, self._scheduled, event))

    def _after(self, delay: float, event: Callable[[], None]) -> None:
        self._at(self.now + delay, event)

    def _outage(self) -> None:
        node = self.pick.choice(NODES)
        self.down.add(node)
        self._after(self.pick.uniform(0, 3), lambda: self.down.discard(node))
        if self.pick.random() < 0.3 and node not in self.authorities:
            self._judge_node(node, Authority.UNAVAILABLE)

    def _lose(self) -> None:
        node = self.pick.choice(NODES)
        if self.log.nodes[node].has_lost:
            return
        self.log.nodes[node].lose_all()
        late = self.pick.uniform(0, 1)
        self._after(late, lambda: self._judge_node(node, Authority.UNDERREPLICATED))
        self._after(late + self.pick.uniform(0, 2), lambda: self._copy_again(node))

    def _copy_again(self, node: NodeId) -> None:
        alive = [other for other in NODES if other not in self.down]
        if self.log.copy_again(node, alive):
            self._judge_node(node, Authority.EMPTY)

    def _damage(self) -> None:
        if self.log.truth:
            record = self.pick.choice(self.log.truth)
            for node in self.pick.sample(NODES, 2):
                self.log.nodes[node].unreadable.add(record.first)

    def _damage_tail(self) -> None:
        epoch = self.pick.randint(self.log.first_epoch, self.log.last_epoch)
        records = [record for record in self.log.truth if record.epoch == epoch]
        for record in records[-self.pick.randint(1, 3) :]:
            for node in NODES:
                self.log.nodes[node].unreadable.add(record.first)

    def _trim(self) -> None:
        released = [r for r in self.log.truth if r.last <= self.released]
        if released:
            self.trimmed = max(self.trimmed, self.pick.choice(released).last)
            for node in NODES:
                self._after(self.pick.uniform(0, 1), partial(self._trim_node, node))

    def _trim_node(self, node: NodeId) -> None:
        if node not in self.down:
            self.log.nodes[node].answer(Trim(LOG, self.trimmed))

    def _release_more(self) -> None:
        coming = [r for r in self.log.truth if r.last > self.released][: self.pick.randint(0, 5)]
        for record in coming:
            self.released = self.log.released_with(record)
        for node in NODES:
            if node not in self.down and self.pick.random() < 0.7:
                self.log.nodes[node].release(self.released)
        if self.pick.random() < 0.1:
            self._tell_state()

    def release_all(self) -> None:
        self.released = self.log.released_with(self.log.truth[-1]) if self.log.truth else 0
        for node in NODES:
            self.log.nodes[node].release(self.released)

    def _heal(self) -> None:
        """All that can be good again is."""
        self.down.clear()
        self.release_all()
        for node in NODES:
            self.slowness_s[node] = 0.01
            if self.authorities.get(node) is Authority.UNAVAILABLE:
                self._judge_node(node, Authority.FULL)
            if self.log.nodes[node].has_lost and self.authorities.get(node) is not Authority.EMPTY:
                self._judge_node(node, Authority.UNDERREPLICATED)
        self._tell_state()

    def _judge_node(self, node: NodeId, authority: Authority) -> None:
        lost = self.log.nodes[node].has_lost
        if authority is Authority.UNAVAILABLE and lost:
            return
        self.authorities[node] = authority
        self._perform(self.reader.told_authorities(dict(self.authorities), self.now))

    def _tell_state(self) -> None:
        state = self.log.state(self.released, self.trimmed)
        self._perform(self.reader.told_state(state, self.now))

    # ---- the driver

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Ask():
                    self._ask(effect)
                case Deliver() | Gap():
                    self._check(effect)
                    self.seen.append(effect)
                    if isinstance(effect, Deliver):
                        self._after(self.pick.choice(self.consumer_s), self._consume)
                case NeedMetadata():
                    self._after(0.005, self._tell_state)
                case SetTimer(at):
                    self._at(at, lambda: self._perform(self.reader.woken(self.now)))
                case Finished():
                    pass

    def _consume(self) -> None:
        self._perform(self.reader.consumed(1, self.now))

    def _ask(self, ask: Ask) -> None:
        self.asked += 1
        self.questions[ask.node] = ask.question
        if ask.node in self.down:
            delay = self.pick.choice([0.001, TIMEOUT_S])
            self._after(delay, lambda: self._fail(ask))
        else:
            delay = self.pick.uniform(0, self.slowness_s[ask.node])
            self._after(delay, lambda: self._answer(ask, self.now + LONG_POLL_S))

    def _fail(self, ask: Ask) -> None:
        self._perform(self.reader.failed(ask.node, ask.question, self.now))

    def _answer(self, ask: Ask, until: float) -> None:
        if self.questions[ask.node] != ask.question and self.pick.random() < 0.5:
            return  # it was cancelled; else the answer comes though nobody wants it any more
        if ask.node in self.down:
            self._after(TIMEOUT_S, lambda: self._fail(ask))
            return
        answer = self.log.nodes[ask.node].read(ask.request)
        if answer.next_lsn <= ask.request.first and not answer.damaged and self.now < until:
            self._after(0.02, lambda: self._answer(ask, until))
            return
        delay = self.pick.uniform(0, self.slowness_s[ask.node])
        self._after(
            delay,
            lambda: self._perform(self.reader.answered(ask.node, ask.question, answer, self.now)),
        )

    # ---- the judge

    def _check(self, seen: Deliver | Gap) -> None:
        pieces = [r for r in self.log.truth if r.first <= seen.last and seen.first <= r.last]
        if isinstance(seen, Deliver):
            self._check_delivery(seen, pieces)
            return
        match seen.kind:
            case GapKind.TRIM:
                good = seen.last <= self.trimmed
            case GapKind.HOLE:
                good = all(piece.kind is Kind.HOLE for piece in pieces)
            case GapKind.BRIDGE:
                good = self._may_be_bridge(seen, pieces)
            case GapKind.DATALOSS:
                good = self._is_loss(seen, pieces)
        if not good:
            raise Violation(f"{seen.kind} {words(seen.first)} … {words(seen.last)}: {pieces}")

    def _check_delivery(self, seen: Deliver, pieces: list[Record]) -> None:
        [piece] = pieces
        same = (seen.record.first, seen.record.count, seen.record.batch)
        if piece.kind is not Kind.DATA or same != (piece.first, piece.count, piece.batch):
            raise Violation(f"delivered {seen}, it should be {piece}")
        if piece.last > self.released:
            raise Violation(f"not released: {seen}")

    def _may_be_bridge(self, seen: Gap, pieces: list[Record]) -> bool:
        """When nobody knows the end of the epoch any more, what was lost may look like it."""
        epoch = epoch_of(seen.first)
        inside = [piece for piece in pieces if piece.kind is not Kind.BRIDGE]
        reaches_end = seen.last in (self.until, last_of(epoch))
        is_end_known = any(epoch in node.records(LOG).ends for node in self.log.nodes.values())
        return not inside or (reaches_end and self._all_gone(inside) and not is_end_known)

    def _is_loss(self, seen: Gap, pieces: list[Record]) -> bool:
        epoch = epoch_of(seen.first)
        nodes = self.log.metadata_of(epoch).nodes
        is_nobody_left = all(self.log.nodes[node].has_lost for node in nodes)
        inside = [piece for piece in pieces if piece.kind is not Kind.BRIDGE]
        is_exact = bool(inside) and inside == pieces
        return self._all_gone(pieces) and (is_exact or is_nobody_left)

    def _all_gone(self, pieces: list[Record]) -> bool:
        return not any(self.log.holders(piece) for piece in pieces)

    def _check_order(self) -> None:
        expected = self.first
        for seen in self.seen:
            if seen.first != skip_zero(expected):
                raise Violation(f"{words(expected)} is missing before {seen}")
            expected = seen.last + 1

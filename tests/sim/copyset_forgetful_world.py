"""A copyset log whose disks forget writes when the power fails, and whose recoveries die.

An epoch is written, a recovery may begin and die, and the power fails everywhere. Some disks
forget what they confirmed last.
Recoveries begin with some of the nodes, not always patient enough to wait for the rest, and die at
any request. When one ends, all nodes come back, but for one that may be given up. Some writers
live on and report what they got acknowledged, and a reader reads the epoch: perhaps up to the end
of its segment, as it was recorded before the nodes came back.

What was acknowledged, as some disk or writer still knows, is read or said to be lost. Nothing else
is said to be lost, and nothing at all if no disk forgot anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from random import Random

from copyset_node import CopysetNode
from copyset_recovery_rig import LOG, NOW_US, RecoveryRig
from violation import Violation

from loomlog.core.copyset.acknowledged import AcknowledgedRanges, to_report
from loomlog.core.copyset.effects import AskShard, Deliver, GapKind, NeedMetadata, ReadGap
from loomlog.core.copyset.late_losses import forgotten, heard
from loomlog.core.copyset.log_state import take_epoch
from loomlog.core.copyset.messages import Delivered, Life, Release, SetClean
from loomlog.core.copyset.nodeset import Authority
from loomlog.core.copyset.procedures import Answer, CopysetAsk, purge
from loomlog.core.copyset.reader import CopysetReader
from loomlog.core.copyset.record import (
    OFFSET_MAX,
    Epoch,
    Kind,
    Lsn,
    Offset,
    last_of,
    make,
    offset_of,
)
from loomlog.core.copyset.recovery import Recovered, Recovery
from loomlog.core.copyset.storage import epoch_to_purge
from loomlog.types import NodeId

RECORDS_MAX = 8
RECOVERIES_MAX = 4
READ_S = 100.0  # within which a reader must get to the end
REQUESTS_MAX = 40  # of a recovery before it dies
BEFORE, AFTER = 1, 2  # the power failure: lives of nodes


class Death(Exception):  # noqa: N818 - it is what happens
    """The process that recovers dies."""


class _Recovery(Recovery):
    """A recovery whose patience is drawn."""

    def __init__(self, epoch: int, *, patient: bool) -> None:
        super().__init__(LOG, epoch)
        self._patient = patient

    def _is_patient(self, now_s: float) -> bool:
        return self._patient


class ForgetfulWorld:
    def __init__(self, seed: int) -> None:
        self._random = random = Random(seed)
        replication = random.choice((2, 2, 3))
        self._rig = RecoveryRig(count=replication + random.randint(0, 2), replication=replication)
        self._rig.state = replace(self._rig.state, epoch=1)
        self._rig.lives = dict.fromkeys(self._rig.nodes, BEFORE)
        self._acknowledged: set[Offset] = set()
        self._is_honest = random.random() < 0.25  # no disk forgets anything
        self._known_by: dict[NodeId, Offset] = {}
        self._living: set[Offset] = set()  # acknowledged to writers that live on
        self._given_up: set[NodeId] = set()
        self._kept: set[Offset] = set()  # were found by a recovery with all nodes
        self._until: Lsn = last_of(1)  # where readers end
        self.delivered: set[Offset] = set()
        self.lost: set[Offset] = set()
        self.deaths = 0

    def run(self) -> None:
        self._begin(BEFORE)
        copies = self._write()
        if self._random.random() < 0.3:
            self._recover_and_die(BEFORE)
        self._lose_power(copies)
        for _ in range(self._random.randint(0, RECOVERIES_MAX)):
            self._give_up()
            self._recover_and_die()
        self._give_up()
        if is_closed := self._random.random() < 0.3:
            self._close()
        while not self._is_recovered():
            pass
        if is_closed:
            self._until = self._rig.state.tail
        self._rig.down = set(self._given_up)
        for step in self._random.sample([self._hear, self._purge, self._report], 3):
            step()
        self._read()

    # ---- writing

    def _begin(self, life: int) -> None:
        """Give out the newest epoch, to nodes in this life."""
        rig = self._rig
        lives = (Life(rig.state.epoch, node, life) for node in rig.nodes)
        rig.state = replace(rig.state, lives=(*rig.state.lives, *lives))

    def _write(self) -> dict[NodeId, CopysetNode]:
        """Return the disks as they really are, without what they forget."""
        rig, random = self._rig, self._random
        copies = {node: deepcopy(rig.nodes[node]) for node in rig.nodes}
        count = random.choice((1, 2, random.randint(1, RECORDS_MAX)))
        in_flight = random.randint(0, 2)  # at the end, when the power fails
        lng = 0
        self._surviving = random.choice((0.0, 0.5, 1.0))
        for offset in range(1, count + 1):
            copyset = tuple(sorted(random.sample([*rig.nodes], rig.metadata.replication)))
            stored = copyset
            if offset > count - in_flight:
                stored = tuple(node for node in copyset if random.random() < 0.5)
            rig.write(offset, *stored, lng=max(0, lng - random.choice((0, 0, 1))), copyset=copyset)
            if stored == copyset:
                self._acknowledged.add(offset)
                if random.random() < self._surviving:
                    self._living.add(offset)
                lng += lng == offset - 1
            if random.random() < 0.3:
                node = random.choice([*rig.nodes])
                copies[node] = deepcopy(rig.nodes[node])
            if random.random() < 0.3:
                rig.nodes[random.choice([*rig.nodes])].answer(Release(LOG, make(1, lng)))
        return copies

    def _lose_power(self, copies: dict[NodeId, CopysetNode]) -> None:
        rig, random = self._rig, self._random
        if not self._is_honest:
            for node in random.sample([*rig.nodes], random.randint(1, len(rig.nodes))):
                rig.nodes[node] = copies[node]
        rig.lives = dict.fromkeys(rig.nodes, AFTER)
        self._known_by = {number: self._known_on(node) for number, node in rig.nodes.items()}

    def _give_up(self) -> None:
        """Give up nodes for good; with honest disks, fewer than an entry has copies."""
        random, nodes = self._random, [*self._rig.nodes]
        if not self._given_up and random.random() < 0.15:
            most = 1 if self._is_honest else len(nodes) - 1
            self._given_up = set(random.sample(nodes, random.randint(1, most)))

    @property
    def _known(self) -> Offset:
        """Up to where all was acknowledged, as some disk still knows."""
        there = self._known_by.keys() - self._given_up
        return max(self._known_by[number] for number in there)

    @staticmethod
    def _known_on(node: CopysetNode, epoch: Epoch = 1) -> Offset:
        """Return up to where an epoch is fully stored, as a node knows from writers, or from a
        recovery."""
        records = node.records(LOG)
        end = records.end_of(epoch)
        return max(records.standing.released_in(epoch), end.lng if end else 0)

    # ---- recoveries

    def _next(self, life: int) -> _Recovery:
        """Begin the next recovery, with some of the nodes."""
        rig, random = self._rig, self._random
        rig.next_sequencer()
        self._begin(life)
        away = random.choice((0, 0, 1, 1, 2))
        rig.down = {*random.sample([*rig.nodes], min(away, len(rig.nodes))), *self._given_up}
        return _Recovery(rig.state.epoch, patient=random.random() < 0.3)

    def _close(self) -> None:
        rig = self._rig
        lives = dict.fromkeys(rig.nodes, AFTER)
        rig.state = take_epoch(rig.state, 1, rig.metadata.nodeset, closed=True, lives=lives)

    def _recover_and_die(self, life: int = AFTER) -> None:
        requests = iter(range(self._random.randint(1, REQUESTS_MAX)))
        fatal = SetClean if self._random.random() < 0.3 else None
        with suppress(Death):
            recovery = self._next(life).attempt(self._authorities, NOW_US)
            self._rig.drive(recovery, lambda ask: self._die(requests, ask, fatal))

    def _die(
        self, requests: Iterator[int], ask: CopysetAsk, fatal: type[object] | None
    ) -> Answer | None:
        if (fatal and isinstance(ask.request, fatal)) or next(requests, None) is None:
            self.deaths += 1
            raise Death
        return None

    def _is_recovered(self) -> bool:
        recovery = self._next(AFTER).attempt(self._authorities, NOW_US)
        if not (self._rig.down or self._rig.state.last_clean):
            self._kept = self._acknowledged & self._stored()
        return isinstance(self._rig.drive(recovery), Recovered)

    def _stored(self) -> set[Offset]:
        """Return which records have a copy."""
        nodes = self._rig.nodes.values()
        records = (record for node in nodes for record in node.records(LOG).all())
        return {record.offset for record in records if record.kind is Kind.DATA}

    @property
    def _authorities(self) -> dict[NodeId, Authority]:
        return dict.fromkeys(self._given_up, Authority.UNAVAILABLE)

    # ---- those that know better

    def _hear(self) -> None:
        """Ask the nodes that were absent what they know."""
        rig = self._rig
        for end in rig.state.ends:
            for number in sorted(set(end.absent) - rig.down):
                lng = self._known_on(rig.nodes[number], end.epoch)
                if problem := rig.drive(purge(LOG, end.epoch, number, lng)):
                    raise Violation(f"node {number} cannot say what it knows: {problem}")
                rig.state = heard(rig.state, number, rig.state.last_clean)

    def _report(self) -> None:
        """Report what writers that live on got acknowledged."""
        ranges = AcknowledgedRanges()
        for offset in self._random.sample(sorted(self._living), len(self._living)):
            ranges.add(make(1, offset), make(1, offset))
        reported = to_report(self._rig.state, ranges.take(1))
        self._rig.state = forgotten(self._rig.state, reported)

    def _purge(self) -> None:
        """Let all nodes catch up with what was recovered."""
        rig = self._rig
        newest = make(rig.state.epoch, 0)
        for number, node in rig.nodes.items():
            while number not in rig.down:
                node.answer(Release(LOG, newest))
                standing = node.records(LOG).standing
                epoch = epoch_to_purge(newest, standing)
                if epoch is None:
                    break
                problem = rig.drive(purge(LOG, epoch, number, standing.released_in(epoch)))
                if problem:
                    raise Violation(f"node {number} cannot purge epoch {epoch}: {problem}")

    # ---- reading

    def _read(self) -> None:
        reader = CopysetReader(LOG, make(1, 1), self._until)
        reader.learn_losses(dict.fromkeys(self._given_up, self._rig.state.epoch), 0.0)
        now, effects = 0.0, deque(reader.learn_state(self._rig.state, 0.0))
        while effects or not reader.finished:
            if not effects:
                now += 0.1
                effects += reader.woken(now)
            if now > READ_S:
                raise Violation(f"a reader waits at {reader.head}")
            match effects.popleft() if effects else None:
                case AskShard(node, question, _) if node in self._given_up:
                    effects += reader.failed(node, question, now)
                case AskShard(node, question, request):
                    answer = self._rig.nodes[node].answer(request)
                    assert isinstance(answer, Delivered)
                    answer = replace(answer, life=AFTER)
                    effects += reader.answered(node, question, answer, now)
                case NeedMetadata():
                    effects += reader.learn_state(self._rig.state, now)
                case Deliver() as shown:
                    offsets = range(offset_of(shown.first), offset_of(shown.last) + 1)
                    self.delivered.update(offsets)
                    effects += reader.consumed(1, now)
                case ReadGap() as gap:
                    self._judge(gap)
        if passed := self._kept - self.delivered:
            raise Violation(f"{passed} was acknowledged and is passed, although a node has it")
        missing = self._acknowledged - self.delivered - self.lost
        known = {offset for offset in missing if offset <= self._known or offset in self._living}
        if known or (missing and self._is_honest):
            raise Violation(f"{missing} was acknowledged and is passed; {known} was known")

    def _judge(self, gap: ReadGap) -> None:
        if gap.kind is not GapKind.DATALOSS:
            return
        last = min(gap.last, make(1, OFFSET_MAX))
        offsets = range(offset_of(gap.first), offset_of(last) + 1)
        if self._is_honest:
            raise Violation(f"{gap} is said to be lost, and no disk forgot anything")
        if gap.exact and not (self._acknowledged | self._found()).issuperset(offsets):
            raise Violation(f"{gap} is said to be lost, and was not acknowledged")
        self.lost.update(offset for offset in self._acknowledged if offset in offsets)

    def _found(self) -> set[Offset]:
        """Return where recovery found records, which may be gone since."""
        [end] = [end for end in self._rig.state.ends if end.epoch == 1]
        found = [(first, last) for first, last in end.found if last < OFFSET_MAX]
        return {offset for first, last in found for offset in range(first, last + 1)}

"""Rebuilding of a copyset log without a clock, a disk or a network: nodes, donors, a vmr, readers.

Each step does one thing that may happen next, by chance: a message arrives, is lost or is late, a
node crashes, loses its disk, returns, is drained or given up, the log is trimmed or gets another
epoch. Epochs are recovered at once: recovery has a world of its own (copyset_world.py).
rebuild_judge.py says what must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from copyset_node import CopysetNode, MemoryRecords
from rebuild_judge import RebuildJudge
from violation import Violation

from loomlog.core.copyset import log_state
from loomlog.core.copyset.messages import (
    Delivered,
    EpochEnd,
    LogState,
    NodeAnswer,
    NodeRequest,
    Purge,
    Release,
    Store,
    Trim,
)
from loomlog.core.copyset.nodeset import (
    EpochMetadata,
    Member,
    choose_copyset,
    choose_nodeset,
)
from loomlog.core.copyset.rebuild import events, plan, restore
from loomlog.core.copyset.rebuild.donor import (
    DonorAnswer,
    DonorAsk,
    RebuildOrder,
    Scan,
    Steps,
    scan,
)
from loomlog.core.copyset.rebuild.events import (
    Abort,
    Acknowledged,
    DonorProgress,
    Event,
    IsRebuilt,
    Mode,
    NeedsRebuild,
    RebuildState,
    Refill,
    Rescan,
    Status,
    Undrain,
    Unrecoverable,
)
from loomlog.core.copyset.rebuild.restore import RestoreRequest
from loomlog.core.copyset.record import OFFSET_MAX, Epoch, Kind, Lsn, Record, make
from loomlog.core.copyset.storage import Put, epoch_to_purge
from loomlog.core.requests import Lost
from loomlog.types import ShardId

LOG = 1
STEPS = 400
CALM_STEPS = 6_000  # within which all must be well when the faults are over
RECORDS_MAX = 6  # of an epoch
LULL_MAX = 200  # steps


@dataclass(frozen=True)
class Replica:
    """The event log as a node knows it, and what the vmr says about the log with it."""

    state: RebuildState
    through: dict[ShardId, Epoch]
    is_held: bool = False  # donors of this version leave the log out


@dataclass(eq=False)
class Donor:
    """A scan that a node has under way."""

    replica: Replica
    scans: int
    result: Scan = field(default_factory=Scan)
    over: bool = False

    def is_busy(self, version: int) -> bool:
        return not self.over and self.replica.state.version == version


class Node:
    def __init__(self, node_id: ShardId, replica: Replica) -> None:
        self.node_id = node_id
        self.up = True
        self.process = 0
        self.lost = False  # its disk; the vmr learns of it when the node is back
        self.lost_through: Epoch = 0
        self.replica = replica
        self.donor: Donor | None = None
        self.scanned = (0, 0)  # the version, and how many scans of it are finished
        self.requested = 0  # the newest version of any request
        self._disk = CopysetNode(node_id)

    @property
    def records(self) -> MemoryRecords:
        return self._disk.records(LOG)

    def ask(self, request: NodeRequest | RestoreRequest) -> DonorAnswer:
        if isinstance(request, RestoreRequest):
            self.requested = max(self.requested, request.version)
            known = max(self.requested, self.replica.state.version)
            records = self.records
            answer, changes = restore.decide(
                request, records.standing, records, self.node_id, known
            )
            for change in changes:
                records.apply(change)
            return answer
        return self.answer(request)

    def answer(self, request: NodeRequest) -> NodeAnswer:
        answer = self._disk.answer(request)
        if isinstance(answer, Delivered):
            return replace(answer, lost_through=self.lost_through)
        return answer

    def lose_disk(self) -> None:
        self._disk = CopysetNode(self.node_id)
        self.lost = True


@dataclass(eq=False)
class Message:
    process: int
    target: ShardId
    request: NodeRequest | RestoreRequest
    done: Callable[[DonorAnswer], None]
    answer: DonorAnswer | None = None


class RebuildWorld:
    def __init__(
        self, seed: int, *, disaster: bool = False, late: bool = False, partly: bool = False
    ) -> None:
        """`late`: many messages are lost, and arrive long after their senders gave them up;
        `partly`: shards leave nodesets before they count as rebuilt, and donors may leave out what
        is not recovered when their version begins."""
        self.random = random = Random(seed)
        self.disaster = disaster
        self._partly = partly
        self._message_loss = random.choice((0.0, 0.02, 0.1, 0.2))
        self._turmoil = random.choice((0.05, 0.1, 0.2))
        self._returns = random.choice((8, 8, 8, 1))  # how often nodes come back, beside other harm
        self._lulls = random.random() < 0.5  # long enough for work to end, with nodes still away
        self._lull = 0
        self._haste = random.choice((0.1, 0.02, 0.0))  # of messages that nobody waits for
        if late:
            self._message_loss, self._haste, self._turmoil = 0.3, 0.02, 0.1
        self.replication = random.choice((2, 2, 3, 3))
        count = self.replication + random.randint(2, 4)
        racks = random.choice((0, 0, 0, 2, 3))
        self.members = {
            n: Member(n, f"rack {n % racks}" if racks else "") for n in range(1, count + 1)
        }
        self._nodeset_size = random.randint(self.replication, count)
        self.replica = Replica(RebuildState(), {})
        self.nodes = {n: Node(n, self.replica) for n in self.members}
        self.judge = RebuildJudge(self)
        self.messages: list[Message] = []
        self.late: list[Message] = []  # their senders no longer wait for them
        self.older: list[LogState] = []  # states of the log that readers may still know
        self.reports: list[DonorProgress] = []  # on their way to the vmr
        self.rebuilds = 0
        self.restored = 0  # records, as donors counted them
        self.aborts = 0
        self.superseded = 0  # scans
        self.widened = 0
        self.refilled = 0
        self.left = 0  # nodesets, by shards that were not rebuilt yet
        self.rescans = 0
        self._processes = 0
        self._appended = 0
        self.trimmed: Lsn = 0
        self.lossy: set[Epoch] = set()  # as the vmr notes them
        first = EpochMetadata(1, self._choose_nodeset(), self.replication)
        self.state = LogState(1, 0, (first,), last_clean=0, tail=0)
        for node in self.nodes.values():
            node.process = self._new_process()
        for _ in range(random.randint(1, 3)):
            self.end_epoch()

    def _new_process(self) -> int:
        self._processes += 1
        return self._processes

    def status(self, shard: ShardId) -> Status:
        return self.replica.state.status(shard)

    def holding(self) -> list[Node]:
        """Return the nodes whose copies count."""
        counting = (Status.INTACT, Status.REFILLING)
        return [node for n, node in self.nodes.items() if self.status(n) in counting]

    # ---- the run

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
        self._calm_down()
        for _ in range(CALM_STEPS):
            if self._is_well():
                break
            self._step_in_peace()
        else:
            raise Violation(f"not well although there are no faults: {self.replica}, {self.state}")
        for node in self.nodes.values():
            self._release(node)
        while self.late:
            self._deliver_late()
        self.judge.look_at_the_end()

    def _step(self) -> None:
        if self.late and self.random.random() < self._haste:
            self._deliver_late()
        chance = self.random.random()
        self._lull -= 1
        if chance < self._turmoil and self._lull < 0:
            self._harm()
            if self._lulls and self.random.random() < 0.1:
                self._lull = self.random.randint(1, LULL_MAX)
        elif chance < self._turmoil + 0.25 or not self.messages:
            self._keep()
        else:
            self._deliver(self._message_loss)

    def _step_in_peace(self) -> None:
        if self.messages and self.random.random() < 0.8:
            self._deliver(0.0)
        else:
            self._keep()

    def _calm_down(self) -> None:
        for node in self.nodes.values():
            if not node.up:
                self.restart(node)
            self.append(Undrain(node.node_id))

    def _is_well(self) -> bool:
        return not (self.messages or self.reports or self.replica.state.shards)

    # ---- messages

    def _deliver(self, lost: float) -> None:
        if not self.messages:
            return
        index = self.random.randrange(len(self.messages))
        self.messages[index], self.messages[-1] = self.messages[-1], self.messages[index]
        message = self.messages.pop()
        node = self.nodes[message.target]
        if message.answer is not None:
            message.done(Lost() if self.random.random() < lost else message.answer)
        elif self.random.random() < lost:
            message.done(Lost())
            if self.random.random() < 0.7:
                self.late.append(message)
        elif not node.up:
            message.done(Lost())
        else:
            message.answer = node.ask(message.request)
            self.messages.append(message)

    def _deliver_late(self) -> None:
        message = self.late.pop(self.random.randrange(len(self.late)))
        if self.nodes[message.target].up:
            self.nodes[message.target].ask(message.request)

    # ---- the vmr

    def append(self, event: Event) -> None:
        """Append to the event log. A shard is rebuilt through the newest epoch at its event."""
        before = self.replica.state
        state = events.apply(before, event)
        shard = event.shard
        through = dict(self.replica.through)
        rebuilt_through = through.get(shard, 0)
        if isinstance(event, NeedsRebuild | Unrecoverable) and state.version != before.version:
            through[shard] = max(self.state.epoch, through.get(shard, 0))
        if isinstance(event, Unrecoverable) and state.version != before.version:
            self._note_loss(state, through)
        if shard not in events.rebuilt(state):
            through.pop(shard, None)
        is_held = self.replica.is_held
        if state.version != before.version:
            is_ready = plan.is_ready(self.state, through)
            is_held = self._partly and not is_ready and self.random.random() < 0.7
        self.replica = Replica(state, through, is_held)
        if isinstance(event, IsRebuilt) and shard not in events.rebuilt(state):
            self.rebuilds += 1
            self.refilled += before.status(shard) is Status.REFILLING
            self.nodes[shard].lost_through = 0
            self.judge.rebuilt(shard, rebuilt_through, before, event.version)

    def _note_loss(self, state: RebuildState, through: dict[ShardId, Epoch]) -> None:
        lost = {
            shard: through[shard]
            for shard in events.absent(state)
            if state.status(shard) is not Status.RESTORING or self.nodes[shard].lost_through
        }
        self.lossy |= set(log_state.lossy_epochs(self.state, lost))

    def _keep(self) -> None:
        """Do one thing that vmr and nodes do on their own."""
        node = self.random.choice([*self.nodes.values()])
        match self.random.randrange(6):
            case 0:
                self._repair_nodesets()
                self._finish()
            case 1 if self.reports:
                self.random.shuffle(self.reports)
                arrived, self.reports = self.reports[:9], self.reports[9:]
                for report in arrived:
                    self.append(report)
            case 2 if not plan.is_ready(self.state, self.replica.through):
                self.end_epoch()
            case 3 if node.up:
                self._release(node)
            case 4 if node.up:
                node.replica = self.replica
            case _:
                if node.up:
                    self._donate(node)
                    self._acknowledge(node)

    def _repair_nodesets(self) -> None:
        usable = events.targets(self.replica.state, self.members)
        members = [self.members[n] for n in usable]
        before = self.state
        self.state = plan.widened(before, self.replica.through, members)
        self.widened += self.state != before
        if self.state != before:
            self.older.append(before)
        if self.random.random() < 0.2:
            for shard in self.members:
                if self.status(shard) in (Status.EMPTY, Status.DRAINED):
                    self.older.append(self.state)
                    self.state = plan.narrowed(self.state, shard, self.state.last_clean)

    def donors(self) -> list[ShardId]:
        return events.donors(self.replica.state, self.members)

    def _finish(self) -> None:
        state, through = self.replica.state, self.replica.through
        absent, may_return = events.absent(state), events.may_return(state)
        for shard in events.rebuilt(state):
            delay = plan.delay(shard, self.state, through, absent, may_return)
            if not events.has_scanned(state, shard, self.donors(), 2) or self._is_left_out(shard):
                continue
            if delay is None:
                self.append(IsRebuilt(shard, state.version))
            elif self._partly and state.status(shard) in (Status.RESTORING, Status.LOST):
                self._leave(shard)
        self._take_in()

    def _is_left_out(self, shard: ShardId) -> bool:
        """Return whether donors left out what a shard had."""
        through = self.replica.through
        return self.replica.is_held and bool(plan.parts(self.state, {shard: through[shard]}))

    def _leave(self, shard: ShardId) -> None:
        """Let a shard leave the nodesets where it is not waited for, though it is in others."""
        before, through = self.state, self.replica.through
        self.state = plan.narrowed(before, shard, through[shard], self._kept(shard))
        if self.state != before:
            self.left += 1
            self.older.append(before)
            self.judge.left(shard, before)

    def _kept(self, shard: ShardId) -> list[EpochMetadata]:
        state, through = self.replica.state, self.replica.through
        absent, may_return = events.absent(state), events.may_return(state)
        return plan.doubts(shard, self.state, through, absent, may_return)

    def _take_in(self) -> None:
        state, through = self.replica.state, self.replica.through
        rebuilt = events.rebuilt(state)
        is_over = all(events.has_scanned(state, s, self.donors(), 2) for s in rebuilt)
        if rebuilt and self.replica.is_held and is_over and plan.is_ready(self.state, through):
            self.rescans += 1
            self.append(Rescan(rebuilt[0]))

    def _acknowledge(self, node: Node) -> None:
        if self.status(node.node_id) is Status.EMPTY:
            self.append(Acknowledged(node.node_id))

    # ---- the log

    def _choose_nodeset(self) -> tuple[Member, ...]:
        intact = events.targets(self.replica.state, self.members)
        here = [self.members[n] for n in intact if self.nodes[n].up]
        return choose_nodeset(self.random.randrange(99), here, self._nodeset_size)

    def end_epoch(self) -> None:
        """Fill the newest epoch, recover it, and begin the next one."""
        epoch, metadata = self.state.epoch, self.state.metadata_of(self.state.epoch)
        excluded = [n for n in metadata.shards if not self._can_take(n)]
        nodeset = self._choose_nodeset()
        following = EpochMetadata(epoch + 1, nodeset, self.replication)
        if not following.can_hold_a_copyset(following.shards):
            return
        is_writable = choose_copyset(metadata, excluded, self.random) is not None
        records = self._records(epoch, metadata, excluded) if is_writable else []
        last = max((r.last for r in records if r.kind is Kind.DATA), default=make(epoch, 0))
        end = EpochEnd(epoch, last & OFFSET_MAX, last & OFFSET_MAX, epoch, 1)
        writable = [node for node in metadata.shards if node not in excluded]
        for node in (self.nodes[n] for n in writable):
            standing = node.records.standing
            if standing.last_clean == epoch - 1:
                node.records.apply(standing._replace(last_clean=epoch, seal=epoch))
            if records:
                node.records.apply(end)
        for record in records:
            self.judge.truth[record.first] = record
            for n in record.copyset:
                self.nodes[n].records.apply(Put(record))
        history = self.state.history
        if following.nodeset != metadata.nodeset:
            history = (*history, following)
        self.state = replace(
            self.state,
            epoch=epoch + 1,
            history=history,
            last_clean=epoch,
            tail=last,
            ends=(*self.state.ends, end) if records else self.state.ends,
        )

    def _can_take(self, shard: ShardId) -> bool:
        return self.nodes[shard].up and shard in events.targets(self.replica.state, [shard])

    def _records(
        self, epoch: Epoch, metadata: EpochMetadata, excluded: Sequence[ShardId]
    ) -> list[Record]:
        records = []
        offset = 1
        for _ in range(self.random.randint(1, RECORDS_MAX)):
            copyset = choose_copyset(metadata, excluded, self.random)
            assert copyset is not None
            self._appended += 1
            count = self.random.randint(1, 3)
            batch = b"batch %d" % self._appended
            wave = self.random.choice((1, 1, 2))
            first = make(epoch, offset)
            record = Record(first, count, Kind.DATA, 0, copyset, wave, 0, batch=batch)
            if wave == 2:
                self._leave_behind(record, metadata, excluded)
            records.append(record)
            offset += count
        copyset = choose_copyset(metadata, excluded, self.random)
        assert copyset is not None
        rest = OFFSET_MAX - offset + 1
        bridge = Record(make(epoch, offset), rest, Kind.BRIDGE, 0, copyset, 1, 0, epoch + 1)
        return [*records, bridge]

    def _leave_behind(
        self, record: Record, metadata: EpochMetadata, excluded: Sequence[ShardId]
    ) -> None:
        """Store a copy of an earlier wave, with another copyset, that was never complete."""
        copyset = choose_copyset(metadata, excluded, self.random)
        assert copyset is not None
        node = self.nodes[self.random.choice(copyset)]
        node.answer(Store(LOG, record._replace(copyset=copyset, wave=1), draining=True))

    def _release(self, node: Node) -> None:
        lsn = make(self.state.epoch, 1)
        if self.trimmed > node.records.standing.trimmed:
            node.answer(Trim(LOG, self.trimmed))
        node.answer(Release(LOG, lsn))
        while (epoch := epoch_to_purge(lsn, node.records.standing)) is not None:
            end = self.state.end_of(epoch)
            assert end is not None
            node.answer(Purge(LOG, end))
            node.answer(Release(LOG, lsn))

    # ---- donors

    def _donate(self, node: Node) -> None:
        """Begin a scan, if one is due and none of this version is under way."""
        replica = node.replica
        state = replica.state
        if node.donor is not None and node.donor.is_busy(state.version):
            return
        if not events.rebuilt(state) or node.node_id not in events.donors(state, self.members):
            return
        version, scans = node.scanned if node.scanned[0] == state.version else (state.version, 0)
        if scans == 2 or (scans == 1 and not self._is_first_scan_over(state)):
            self._report(node, Scan(), replica, scans)  # the last report may be lost
            return
        node.donor = donor = Donor(replica, scans + 1)
        if replica.is_held:
            self._scanned(node, donor)
            return
        order = RebuildOrder(
            LOG,
            version,
            node.node_id,
            replica.through,
            frozenset(events.absent(state)),
            frozenset(events.targets(state, self.members)),
        )
        steps = scan(order, self.state, scans + 1, donor.result)
        Call(self, node, steps, partial(self._scanned, node, donor))

    def _is_first_scan_over(self, state: RebuildState) -> bool:
        donors = events.donors(state, self.members)
        return all(events.has_scanned(state, s, donors, 1) for s in events.rebuilt(state))

    def _scanned(self, node: Node, donor: Donor) -> None:
        donor.over = True
        self.restored += donor.result.records.total()
        self.superseded += bool(donor.result.superseded)
        if donor is node.donor and not donor.result.left and not donor.result.superseded:
            node.scanned = donor.replica.state.version, donor.scans
            self._report(node, donor.result, donor.replica, donor.scans)

    def _report(self, node: Node, result: Scan, replica: Replica, scans: int) -> None:
        for shard in events.rebuilt(replica.state):
            report = DonorProgress(
                shard,
                node.node_id,
                replica.state.version,
                result.records[shard],
                result.size_bytes[shard],
                scans,
            )
            if self.random.random() >= self._message_loss:
                self.reports.append(report)

    # ---- harm

    def _harm(self) -> None:
        random = self.random
        node = random.choice([*self.nodes.values()])
        shard = node.node_id
        calamities = 2 if self.disaster else 0
        match random.choices(range(8), (6, self._returns, 4, 4, 2, 2, 2, calamities))[0]:
            case 0 if node.up and self._is_spare(shard):
                self.crash(node)
            case 1 if not node.up:
                self.restart(node)
            case 2 if not node.up:
                self.append(NeedsRebuild(shard, Mode.RESTORE))
                if node.lost and random.random() < 0.3:
                    self.append(Unrecoverable(shard))
            case 3 if self._is_spare(shard) or self._is_gone(shard):
                self.crash(node)
                node.lose_disk()
                self.judge.lost_disk()
            case 4 if self._is_spare(shard):
                self.append(NeedsRebuild(shard, Mode.RELOCATE))
            case 5 if random.random() < 0.5:
                self.append(Undrain(shard))
            case 5:
                self.judge.read(random.choice([self.state, *self.older]))
            case 6 if self.judge.truth and random.random() < 0.6:
                self._trim()
            case 6:
                self.end_epoch()
            case 7:
                self._suffer_calamity()

    def _suffer_calamity(self) -> None:
        """Lose as many nodes at once as records have copies, some of them with their disks, for so
        long that work which does not wait for them ends."""
        for node in self.random.sample([*self.nodes.values()], self.replication):
            if self._is_spare(node.node_id):
                self.crash(node)
                self.append(NeedsRebuild(node.node_id, Mode.RESTORE))
                if self.random.random() < 0.4:
                    node.lose_disk()
                    self.judge.lost_disk()
        self._lull = LULL_MAX

    def _endangered(self) -> set[ShardId]:
        """Return the nodes whose copies may be lost, or cannot be read now."""
        return {
            n
            for n, node in self.nodes.items()
            if not node.up or node.lost or self.status(n) is not Status.INTACT
        }

    def _is_spare(self, shard: ShardId) -> bool:
        """Return whether enough is left without the node for every record and for new copies."""
        gone = self._endangered() | {shard}
        usable = set(self.members) - gone
        whole = EpochMetadata(1, tuple(self.members.values()), self.replication)
        return whole.can_hold_a_copyset(usable) and self._can_lose(gone)

    def _is_gone(self, shard: ShardId) -> bool:
        """Return whether nothing depends on the node. One that is refilled takes new records."""
        endangered = self._endangered()
        return shard in endangered and self._can_lose(endangered)

    def _can_lose(self, gone: set[ShardId]) -> bool:
        return self.disaster or not any(
            metadata.can_hold_a_copyset(gone) for metadata in self.state.history
        )

    def crash(self, node: Node) -> None:
        node.up = False
        node.donor = None
        node.scanned = (0, 0)
        node.requested = 0
        node.process = self._new_process()

    def restart(self, node: Node) -> None:
        """Let a node register: the vmr learns what it has, and it learns the version."""
        node.up = True
        shard = node.node_id
        if node.lost:
            node.lost = False
            node.lost_through = self.state.epoch
            self.append(Unrecoverable(shard))
            if self.status(shard) is not Status.LOST:
                node.lost_through = 0  # it was rebuilt before
        else:
            self.aborts += self.status(shard) is Status.RESTORING
            self.append(Refill(shard) if node.lost_through else Abort(shard))
        if self.random.random() < 0.7:
            self.append(Refill(shard))
        node.replica = self.replica

    def _trim(self) -> None:
        lsn = self.random.choice(sorted(self.judge.truth)[: len(self.judge.truth) // 2 + 1])
        record = self.judge.truth[lsn]
        if record.kind is not Kind.DATA:
            return
        self.trimmed = max(self.trimmed, record.last)
        self.state = replace(self.state, trimmed=self.trimmed)


class Call:
    """A scan that a node has under way. It ends with the node's process."""

    def __init__(
        self, world: RebuildWorld, node: Node, steps: Steps[None], ended: Callable[[], None]
    ) -> None:
        self._world = world
        self._node = node
        self._process = node.process
        self._steps = steps
        self._ended = ended
        self._answers: list[DonorAnswer | None] = []
        self._continue(None)

    def _continue(self, answers: Sequence[DonorAnswer] | None) -> None:
        try:
            asks = next(self._steps) if answers is None else self._steps.send(answers)
        except StopIteration:
            self._ended()
            return
        self._answers = [None] * len(asks)
        for index, ask in enumerate(asks):
            self._send(ask, index)

    def _send(self, ask: DonorAsk, index: int) -> None:
        done = partial(self._answered, self._answers, index)
        self._world.messages.append(Message(self._process, ask.target, ask.request, done))

    def _answered(self, answers: list[DonorAnswer | None], index: int, answer: DonorAnswer) -> None:
        if answers is not self._answers or answers[index] is not None:
            return
        answers[index] = answer
        given = [each for each in answers if each is not None]
        if len(given) == len(answers) and self._process == self._node.process:
            self._continue(given)

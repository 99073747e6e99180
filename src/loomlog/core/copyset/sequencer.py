"""The sequencer of one epoch gives LSNs and has every record stored on R nodes. Pure.

It takes events and returns effects. Nothing of it is stored: when it is lost, the next sequencer
recovers what it left from the nodes. Invariants:

- An LSN is given once. A record is acknowledged once, when all nodes of one wave have stored it,
  not before the sequencers of older epochs are fenced (procedures.py), and never after a later one
  is found to exist.
- A wave, one attempt to store a record on R nodes, counts only as a whole. All its copies name the
  same copyset, so all nodes agree which node sends the record to readers and which rebuilds it.
- A conditional record is taken only if no other record has, or ever had, an LSN behind the one that
  it expects. So the earlier epochs must be recovered before that is decided.
- The LNG passes only what is stored so. Nothing of this epoch is released before all epochs below
  it are recovered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from typing import Final

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.effects import (
    Acknowledge,
    Contradicted,
    Drained,
    LeaveOpen,
    Reject,
    Rejection,
    Send,
    SequencerEffect,
    StepDown,
    Token,
)
from loomlog.core.copyset.messages import (
    Amend,
    NodeAnswer,
    NotHere,
    Occupied,
    Preempted,
    Refused,
    Release,
    Store,
    Stored,
)
from loomlog.core.copyset.nodeset import EpochMetadata, Exclusions, Shuffler, node_of
from loomlog.core.copyset.record import (
    OFFSET_MAX,
    Epoch,
    Kind,
    Lsn,
    Offset,
    Record,
    epoch_of,
    make,
    offset_of,
)
from loomlog.limits import MIB
from loomlog.types import Buffer, LogId, NodeId, ShardId


class Stamps:
    """The stamps of one epoch: when records were appended, according to its sequencer.

    A stamp decides how long the record is kept, so it must not be too early, whatever the
    sequencer's clock says. It is the latest of:

    - the sequencer's clock;
    - the time by most clocks of the cluster when the epoch began, plus the time since. So a new
      sequencer with a slow clock continues where its predecessor was;
    - the latest timestamp of the batch: no entry is deleted before its own timestamp allows it.

    Stamps may fall: a clock that is ahead for a second affects only the records of that second."""

    def __init__(self, began_us: int, began_s: float) -> None:
        """`began_us`: the time by most clocks, 0 if unknown; `began_s`: the same moment by a
        monotonic clock."""
        self._began_us = began_us
        self._began_s = began_s

    def stamp(self, own_us: int, latest_us: int, now_s: float) -> int:
        """Return the stamp of a batch whose latest timestamp is `latest_us`."""
        passed_us = int((now_s - self._began_s) * 1_000_000)
        return max(own_us, self._began_us + passed_us, latest_us)


@dataclass(slots=True)
class Underway:
    """A record that is being stored, and its newest wave."""

    token: Token
    record: Record  # as of its newest wave, without its batch
    batch: Buffer
    stored: set[ShardId] = field(default_factory=set)  # in this wave
    holders: set[ShardId] = field(default_factory=set)  # of any wave: they have the batch
    failures: int = 0
    given_up: bool = False  # this wave: another one begins when it is due
    due: float = 0.0  # when something must be done about it
    done: bool = False

    @property
    def wave(self) -> int:
        return self.record.wave

    def begin_wave(
        self, log: LogId, copyset: tuple[ShardId, ...], lng: Offset, draining: bool
    ) -> list[Send]:
        self.record = self.record._replace(wave=self.wave + 1, copyset=copyset, lng=lng)
        self.stored.clear()
        self.given_up = False
        store = Store(log, self.record._replace(batch=self.batch), draining)
        return [
            Send(shard, Amend(log, self.record) if shard in self.holders else store)
            for shard in copyset
        ]

    def store(self, log: LogId, shard: ShardId, draining: bool) -> Send:
        return Send(shard, Store(log, self.record._replace(batch=self.batch), draining))

    def stored_by(self, shard: ShardId, wave: int) -> bool:
        """Note that a shard has stored it. Return whether all of its copyset have."""
        self.holders.add(shard)
        if wave != self.wave:
            return False
        self.stored.add(shard)
        return not self.silent

    @property
    def silent(self) -> list[ShardId]:
        return [shard for shard in self.record.copyset if shard not in self.stored]

    def finish(self) -> None:
        self.done = True
        self.batch = b""


OFFSET_LAST: Final = OFFSET_MAX - 1  # recovery may need one more, for the bridge


@dataclass(frozen=True, slots=True)
class SequencerSettings:
    """Bounds and times of a sequencer."""

    window_records: int = 1000  # under way at once; recovery must look at this many
    window_bytes: int = 128 * MIB
    store_timeout_s: float = 0.5  # of the first wave; twice as long for each one after it
    waves_at_once: int = 2  # after this many failures the next ones wait
    retry_s: float = 0.01  # twice as long after each failure
    wait_s_max: float = 10.0  # appenders do not wait much longer
    release_s: float = 20.0  # between releases to nodes that get no records
    drain_s: float = 2.0


class SequencerState(Enum):
    """The states of a sequencer."""

    RUNNING = "running"
    DRAINING = "draining"
    OVER = "over"


class EpochSequencer:
    """Assigns LSNs in one epoch, and has records stored."""

    def __init__(
        self,
        log: LogId,
        metadata: EpochMetadata,
        epoch: Epoch,
        everybody: Collection[ShardId],
        exclusions: Exclusions,
        chance: Shuffler,
        settings: SequencerSettings | None = None,
    ) -> None:
        """`everybody`: the shards of all nodesets that the log ever had."""
        self.log = log
        self.epoch = epoch
        self.state = SequencerState.RUNNING
        self.lng: Offset = 0
        self.last_acknowledged: Lsn = make(epoch, 0)
        self._metadata = metadata
        self._settings = settings = settings or SequencerSettings()
        self._patience = Backoff(settings.store_timeout_s, settings.wait_s_max)
        self._retry = Backoff(settings.retry_s, settings.wait_s_max)
        self._exclusions = exclusions
        self._chance = chance
        self._next_offset: Offset = 1
        self._window: deque[Underway] = deque()  # above LNG, in order
        self._underway: dict[Lsn, Underway] = {}  # those that are not done
        self._bytes = 0
        self._alarms: list[tuple[float, Lsn, int]] = []  # (when, record, wave); may be out of date
        self._fenced = False
        self._held: list[Acknowledge] = []  # until it is
        self._recovered = False
        self._recovered_tail: Lsn = 0  # the last one of all earlier epochs
        self._released_to = dict.fromkeys(sorted(everybody), 0)  # what was released to each
        self._release_all_at = 0.0
        self._drained_at = 0.0

    # ---- queries

    @property
    def next_lsn(self) -> Lsn:
        """The LSN of the next append."""
        return make(self.epoch, self._next_offset)

    @property
    def _last(self) -> Lsn:
        """The last LSN that is given, in this epoch or before."""
        return self.next_lsn - 1 if self._next_offset > 1 else self._recovered_tail

    @property
    def released(self) -> Lsn:
        """The last released LSN; 0 while nothing is released, not even recovered records."""
        return make(self.epoch, self.lng) if self._recovered else 0

    @property
    def next_due(self) -> float | None:
        """The time by which `tick` has something to do."""
        times = [self._alarms[0][0]] if self._alarms else []
        if self.state is SequencerState.DRAINING:
            times.append(self._drained_at)
        if min(self._released_to.values(), default=0) < self.released:
            times.append(self._release_all_at)
        return min(times) if times and self.state is not SequencerState.OVER else None

    # ---- events

    def append(
        self,
        batch: Buffer,
        count: int,
        token: Token,
        timestamp_us: int,
        now: float,
        expected: Lsn | None = None,
    ) -> list[SequencerEffect]:
        """Take a record; if an LSN is `expected`, only if none stands behind it."""
        if self._next_offset + count - 1 > OFFSET_LAST and self.state is SequencerState.RUNNING:
            return [Reject(token, Rejection.OFFSETS_USED_UP), *self.drain(now)]
        if (why := self._why_not(len(batch))) is not None:
            return [Reject(token, why)]
        if expected is not None and not self._recovered:
            return [Reject(token, Rejection.BUSY)]
        if expected is not None and not self._last <= expected < self.next_lsn:
            is_taken = expected < self._last
            return [Reject(token, Rejection.CONFLICT if is_taken else Rejection.BEYOND)]
        record = Record(self.next_lsn, count, Kind.DATA, timestamp_us, (), 0, self.lng)
        underway = Underway(token, record, batch)
        self._next_offset += count
        self._bytes += len(batch)
        self._window.append(underway)
        self._underway[record.first] = underway
        return self._begin_wave(underway, now)

    def answered(
        self, shard: ShardId, lsn: Lsn, wave: int, answer: NodeAnswer | None, now: float
    ) -> list[SequencerEffect]:
        """Take the answer to a store or an amendment. None: the connection is lost."""
        if self.state is SequencerState.OVER:
            return []
        underway = self._underway.get(lsn)
        match answer:
            case Preempted(seal):
                return self._step_down(seal)
            case Occupied(occupied):
                return self._end(Contradicted(shard, occupied))
            case Refused(trouble):
                self._exclusions.refused(shard, trouble, now)
            case None:
                self._exclusions.lost(shard, now)
        if underway is None:
            return []
        if isinstance(answer, Stored):
            return self._done(underway) if underway.stored_by(shard, wave) else []
        if wave != underway.wave or underway.given_up:
            return []
        if isinstance(answer, NotHere):
            underway.holders.discard(shard)
            return [underway.store(self.log, shard, self._draining)]
        return self._fail_wave(underway, now)

    def tick(self, now: float) -> list[SequencerEffect]:
        """Deal with everything that is overdue `now`."""
        effects: list[SequencerEffect] = []
        if self.state is SequencerState.DRAINING and now >= self._drained_at:
            return self._end(Drained())
        while self._alarms and self.state is not SequencerState.OVER:
            due, lsn, wave = self._alarms[0]
            underway = self._underway.get(lsn)
            if underway is None or (underway.wave, underway.due) != (wave, due):
                heappop(self._alarms)  # stored in time, as most: it needs no tick of its own
            elif due <= now:
                heappop(self._alarms)
                effects += self._overdue(underway, now)
            else:
                break
        if now >= self._release_all_at:
            effects += self._release(self._released_to, now)
        return effects

    def fenced(self) -> list[SequencerEffect]:
        """Called when no older sequencer can have a record acknowledged any more."""
        if self._fenced or self.state is SequencerState.OVER:
            return []
        self._fenced = True
        held, self._held = self._held, []
        return [*(effect for each in held for effect in self._acknowledge(each)), *self._ended()]

    def recovered_up_to(self, epoch: Epoch, now: float, tail: Lsn = 0) -> list[SequencerEffect]:
        """Called when all epochs up to this one are clean in the epoch store, with `tail` the last
        LSN of them."""
        if epoch + 1 < self.epoch or self._recovered or self.state is SequencerState.OVER:
            return []
        self._recovered = True
        self._recovered_tail = tail
        return [*self._release(self._released_to, now), *self.fenced()]

    def returned(self, node: NodeId) -> list[SequencerEffect]:
        """Called when a node or its connection was restarted: it may have missed a release."""
        if self.state is SequencerState.OVER:
            return []
        shards = [shard for shard in self._released_to if node_of(shard) == node]
        self._released_to.update(dict.fromkeys(shards, 0))
        return self._release_to(shards)

    def retry(self, now: float) -> list[SequencerEffect]:
        """Retry records that wait for nodes, because some are back (`Exclusions.down`)."""
        waiting = [underway for underway in self._underway.values() if underway.given_up]
        return [effect for underway in waiting for effect in self._begin_wave(underway, now)]

    def preempted(self, seal: Epoch) -> list[SequencerEffect]:
        """Called when a node was sealed by another sequencer."""
        return self._step_down(seal) if self.state is not SequencerState.OVER else []

    def found(self, shard: ShardId, newer: Lsn) -> list[SequencerEffect]:
        """Called when a shard has copies of this epoch or a later one, up to `newer`."""
        if self.state is SequencerState.OVER or newer < self.next_lsn:
            return []
        if epoch_of(newer) > self.epoch:
            return self._step_down(epoch_of(newer) - 1)
        return self._end(Contradicted(shard, newer))

    def drain(self, now: float) -> list[SequencerEffect]:
        """Take no more appends, and finish what is under way unless that takes long."""
        if self.state is not SequencerState.RUNNING:
            return []
        self.state = SequencerState.DRAINING
        self._drained_at = now + self._settings.drain_s
        return self._ended()

    def end(self) -> list[SequencerEffect]:
        """Take no more appends and acknowledge none: what is under way is left open."""
        return self._end(Drained()) if self.state is not SequencerState.OVER else []

    # ---- waves

    def _why_not(self, size: int) -> Rejection | None:
        settings = self._settings
        if self.state is not SequencerState.RUNNING:
            return Rejection.STEPPED_DOWN
        if len(self._window) + len(self._held) >= settings.window_records:
            return Rejection.BUSY
        if self._bytes and self._bytes + size > settings.window_bytes:
            return Rejection.BUSY
        exclusions, shards = self._exclusions, self._metadata.shards
        if not (exclusions.down or exclusions.full):
            return None
        up = set(shards) - exclusions.are_down(shards)
        if not self._metadata.can_hold_a_copyset(up):
            return Rejection.UNAVAILABLE
        with_room = up - exclusions.are_full(shards)
        return None if self._metadata.can_hold_a_copyset(with_room) else Rejection.FULL

    def _begin_wave(self, underway: Underway, now: float) -> list[SequencerEffect]:
        copyset = self._exclusions.choose_copyset(
            self._metadata, underway.holders, self._chance, now
        )
        if copyset is None:
            underway.failures += 1
            return self._wait(underway, now)
        sends = underway.begin_wave(self.log, copyset, self.lng, self._draining)
        patience, waves = self._patience, underway.wave - 1
        self._wake(underway, now + (patience.delay_s(waves) if waves else patience.first_s))
        return list(sends)

    def _fail_wave(self, underway: Underway, now: float) -> list[SequencerEffect]:
        underway.failures += 1
        if underway.failures <= self._settings.waves_at_once:
            return self._begin_wave(underway, now)
        return self._wait(underway, now)

    def _wait(self, underway: Underway, now: float) -> list[SequencerEffect]:
        underway.given_up = True
        waits = max(underway.failures - self._settings.waves_at_once - 1, 0)
        self._wake(underway, now + self._retry.delay_s(waits))
        return []

    def _overdue(self, underway: Underway, now: float) -> list[SequencerEffect]:
        if not underway.given_up:
            self._exclusions.silent(underway.silent, self._metadata, now)
        return self._begin_wave(underway, now)

    def _wake(self, underway: Underway, when: float) -> None:
        underway.due = when
        heappush(self._alarms, (when, underway.record.first, underway.wave))

    @property
    def _draining(self) -> bool:
        return self.state is SequencerState.DRAINING

    # ---- ends

    def _done(self, underway: Underway) -> list[SequencerEffect]:
        record = underway.record
        del self._underway[record.first]
        self._bytes -= len(underway.batch)
        underway.finish()
        effects = self._acknowledge(
            Acknowledge(underway.token, record.first, record.last, record.timestamp_us)
        )
        holders: set[ShardId] = set()
        while self._window and self._window[0].done:
            good = self._window.popleft().record
            self.lng = offset_of(good.last)
            holders.update(good.copyset)
        return [*effects, *self._release_to(sorted(holders)), *self._ended()]

    def _acknowledge(self, acknowledgement: Acknowledge) -> list[SequencerEffect]:
        if not self._fenced:
            self._held.append(acknowledgement)
            return []
        self.last_acknowledged = max(self.last_acknowledged, acknowledgement.last)
        return [acknowledgement]

    def _ended(self) -> list[SequencerEffect]:
        """Return the effects of the end, if it drains and nothing is left to do."""
        left = self._underway or self._held
        return self._end(Drained()) if self._draining and not left else []

    def _release(self, shards: Iterable[ShardId], now: float) -> list[SequencerEffect]:
        self._release_all_at = now + self._settings.release_s
        return self._release_to(shards)

    def _release_to(self, shards: Iterable[ShardId]) -> list[SequencerEffect]:
        lsn = self.released
        behind = [shard for shard in shards if self._released_to.get(shard, 0) < lsn]
        self._released_to.update(dict.fromkeys(behind, lsn))
        return [Send(shard, Release(self.log, lsn)) for shard in behind]

    def _step_down(self, seal: Epoch) -> list[SequencerEffect]:
        return self._end(StepDown(seal)) if seal >= self.epoch else []

    def _end(self, why: StepDown | Contradicted | Drained) -> list[SequencerEffect]:
        self.state = SequencerState.OVER
        open_ends = [(held.token, held.lsn) for held in self._held]
        open_ends += [(underway.token, lsn) for lsn, underway in self._underway.items()]
        self._held.clear()
        self._underway.clear()
        self._window.clear()
        self._alarms.clear()
        return [*(LeaveOpen(token, lsn) for token, lsn in open_ends), why]

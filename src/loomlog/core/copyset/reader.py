"""A reader assembles a log from the nodes that have its records. Pure.

The driver reports events with the time, and carries out the effects that come back. Each node is
asked from where its last answer ended, for as much as there is room, one question at a time.
Answers to older questions are dropped.

    single copy delivery   of a record's copyset the first node not known as down sends it
    all send all           if that leaves the head empty, every node with a copy sends it

A node that fails, is late or may miss records is known as down; then all are asked again from the
head, for what it should have sent (a rewind). No rewind is needed when it comes back, or when the
reader returns to single copy delivery: what was sent before was only more.

Nothing is concluded from what single copy delivery does not bring. A record counts as lost only
after all nodes that count were asked for everything from its place on, and the log's state was
fetched again: records of recovered epochs may have moved to other nodes (rebuild/).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.effects import (
    AskShard,
    Deliver,
    Finished,
    GapKind,
    NeedMetadata,
    ReaderEffect,
    ReadGap,
    SetTimer,
)
from loomlog.core.copyset.messages import Delivered, LogState, Read
from loomlog.core.copyset.nodeset import Authority
from loomlog.core.copyset.reader_knowledge import Knowledge, Stretch
from loomlog.core.copyset.reader_sources import (
    Doubts,
    Finding,
    ReadSettings,
    ReadSource,
    ReadSources,
)
from loomlog.core.copyset.reader_window import ReadWindow, Room, WindowSpan
from loomlog.core.copyset.record import (
    LSN_MAX,
    OFFSET_MAX,
    Epoch,
    Kind,
    Lsn,
    epoch_of,
    last_of,
    make,
    offset_of,
    skip_zero,
)
from loomlog.types import LogId, ShardId

DEFAULTS: Final = ReadSettings()


class CopysetReader:
    """Delivers a log in order from `first` up to `until`, or to its end. Without `batches` records
    come without their contents."""

    def __init__(
        self,
        log: LogId,
        first: Lsn,
        until: Lsn = LSN_MAX,
        *,
        batches: bool = True,
        settings: ReadSettings = DEFAULTS,
    ) -> None:
        self.head = skip_zero(first)  # all before it is delivered
        self._zero = None if first == self.head else first  # where a segment may begin
        self.finished = False
        self._log = log
        self._until = until
        self._batches = batches
        self._settings = settings
        self._knowledge = Knowledge()
        self._sources = ReadSources(settings)
        self._room = Room(settings.room_bytes)
        self._window = ReadWindow(self._room)
        self._questions = 0  # asked so far
        self._suspected: Lsn | None = None  # here all were asked again, for everything
        self._doubts: Doubts = frozenset()  # at that time
        self._confirmed: Lsn | None = None  # here the state of the log was fetched again
        self._blocked_since: float | None = None  # the head is empty, and a node has passed it
        self._wanted: Epoch | None = None  # its metadata is being asked for
        self._wants_end = False  # of that epoch
        self._wanted_at: Lsn | None = None  # what was suspected at that time
        self._wanted_by: Lsn | None = None  # the head at that time
        self._known_at: Lsn | None = None  # the head when the state was asked for that is known
        self._refetch_at = 0.0  # when to ask for it again, while the head is empty
        self._want_not_before = 0.0
        self._in_vain = 0  # times that it was asked for
        self._timer: float | None = None
        self._effects: list[ReaderEffect] = []

    # ---- events

    def learn_state(self, state: LogState, now: float, *, fresh: bool = True) -> list[ReaderEffect]:
        """Take the answer to NeedMetadata, or news. Older states do no harm. Not `fresh`: it could
        not be fetched, and is the one from before."""
        self._knowledge.learn_state(state)
        if fresh and self._has_metadata():
            self._in_vain = 0
        elif self._wanted is not None:
            retry = Backoff(self._settings.retry_s, self._settings.state_s_max)
            self._want_not_before = now + retry.delay_s(self._in_vain)
            self._in_vain += 1
        if fresh and self._wanted is not None:
            self._confirmed, self._known_at = self._wanted_at, self._wanted_by
        self._refetch_at = now + self._settings.retry_s_max
        self._wanted = None
        return self._go_on(now)

    def _has_metadata(self) -> bool:
        """Return whether the metadata that was asked for is known."""
        epoch = epoch_of(self.head)
        if self._knowledge.stretch_of(epoch) is None:
            return False
        return (
            self._wanted != epoch
            or not self._wants_end
            or self._knowledge.end_of(epoch) is not None
        )

    def learn_authorities(
        self, authorities: Mapping[ShardId, Authority], now: float
    ) -> list[ReaderEffect]:
        """Take the authorities of all nodes. Nodes that are not named are fully authoritative."""
        self._sources.learn_authorities(authorities)
        return self._go_on(now)

    def learn_losses(self, lost: Mapping[ShardId, Epoch], now: float) -> list[ReaderEffect]:
        """Take which shards are gone with what they had, up to which epoch. Others are here, or
        expected back."""
        self._sources.learn_losses(lost)
        return self._go_on(now)

    def answered(
        self, shard: ShardId, question: int, answer: Delivered, now: float
    ) -> list[ReaderEffect]:
        self._knowledge.learn_answer(answer)
        source = self._sources.asked(shard, question)
        if source is not None:
            self._sources.answered(source, answer, self.head, now)
            for record in answer.records:
                self._window.add(record, shard, self.head)
        return self._go_on(now)

    def failed(self, shard: ShardId, question: int, now: float) -> list[ReaderEffect]:
        """Called when there was no answer in time, no connection, or an invalid answer."""
        source = self._sources.asked(shard, question)
        if source is not None:
            self._sources.failed(source, now)
        return self._go_on(now)

    def consumed(self, deliveries: int, now: float) -> list[ReaderEffect]:
        """Called when the consumer is done with this many more deliveries."""
        self._room.consumed(deliveries)
        return self._go_on(now)

    def woken(self, now: float) -> list[ReaderEffect]:
        """Called when the time of the timer has come."""
        self._timer = None
        return self._go_on(now)

    # ---- steps

    def _go_on(self, now: float) -> list[ReaderEffect]:
        while not self.finished and self._step(now):
            pass
        if not self.finished:
            self._ask(now)
            self._set_timer(now)
        effects, self._effects = self._effects, []
        return effects

    def _step(self, now: float) -> bool:
        """Take one step. Return whether there is more to do at once."""
        epoch = epoch_of(self.head)
        if self._zero is not None and self._can_start(epoch):
            if not self._is_trimmed:
                self._effects.append(ReadGap(self._zero, self._zero, GapKind.BRIDGE))
            self._zero = None
            return True
        if self.head > self._last_wanted:
            self._finish()
        elif (loss := self._knowledge.loss_at(self.head)) and not self._is_trimmed:
            self._gap(loss.last, loss.kind, exact=loss.exact)
            return True
        elif self._is_at_mark() and not self._is_mark_certain():
            self._want(epoch, now, end=True)
        elif (marked := self._knowledge.marked_at(self.head)).is_marked and not self._is_trimmed:
            self._gap(make(epoch, marked.last), GapKind.HOLE)
            return True
        elif (span := self._window.pop(self.head)) is not None:
            self._deliver(span, is_void=marked.is_marked is False)
            return True
        elif (stretch := self._knowledge.stretch_of(epoch)) is None:
            self._want(epoch, now)
        elif self._is_trimmed:
            self._gap(self._knowledge.trimmed, GapKind.TRIM)
            return True
        elif self._is_behind_end(exact=True):
            self._gap(last_of(epoch), GapKind.BRIDGE)
            return True
        else:
            self._enter(stretch)
            return self._unblock(now)
        return False

    def _can_start(self, epoch: Epoch) -> bool:
        """Return whether it is known whether the start is trimmed, or nothing else is wanted."""
        return self._knowledge.stretch_of(epoch) is not None or self.head > self._last_wanted

    @property
    def _is_trimmed(self) -> bool:
        return self._knowledge.trimmed >= self.head

    def _is_at_mark(self) -> bool:
        """Return whether there is no record at the head, for all that is known."""
        kind = self._window.kind_at(self.head)
        is_behind_end = kind is None and self._is_behind_end(exact=True)
        is_hole = self._knowledge.marked_at(self.head).is_marked is True
        return is_behind_end or is_hole or kind not in (None, Kind.DATA)

    def _is_mark_certain(self) -> bool:
        """Return whether a mark at the head counts: an absent node may have known better, which the
        log's state tells then."""
        is_doubtful = self._knowledge.may_be_disproved(epoch_of(self.head))
        return not is_doubtful or self._known_at == self.head or self._is_trimmed

    def _is_behind_end(self, *, exact: bool) -> bool:
        """Return whether the head is behind the end of its epoch. There never is a record if the
        end is `exact`; else nodes are asked, since copies may be back that recovery did not see."""
        end = self._knowledge.end_of(epoch_of(self.head))
        return end is not None and end.exact is exact and offset_of(self.head) > end.last

    def _finish(self) -> None:
        self.finished = True
        self._window.clear()
        self._effects.append(Finished())

    def _want(self, epoch: Epoch, now: float, *, end: bool = False) -> None:
        if self._wanted is None and self._want_not_before <= now:
            self._wanted, self._wants_end = epoch, end
            self._wanted_at = self._suspected  # what is learned says whether that is lost
            self._wanted_by = self.head
            self._effects.append(NeedMetadata(epoch))

    def _enter(self, stretch: Stretch) -> None:
        """Read from the nodes that have the epoch of the head."""
        if stretch.metadata != self._sources.metadata:
            self._sources.enter(stretch.metadata, self.head)
        elif self._sources.must_rewind():
            self._rewind()

    def _rewind(self) -> None:
        """Ask all nodes again from the head."""
        self._sources.rewind(self.head)
        self._window.clear()
        self._blocked_since = None

    def _deliver(self, span: WindowSpan, *, is_void: bool) -> None:
        """Deliver what is at the head; a mark that `is_void` is dropped."""
        if span.record.kind is Kind.DATA:
            last = min(span.last, self._last_wanted)
            self._effects.append(Deliver(span.record, span.first, last))
            self._room.delivered(span)
            self._move_to(last + 1)
            return
        self._room.give_back(span)
        if is_void:
            return
        epoch = span.record.epoch
        is_end = span.record.kind is Kind.BRIDGE and span.last == make(epoch, OFFSET_MAX)
        if is_end:
            self._gap(last_of(epoch), GapKind.BRIDGE)
        else:
            self._gap(span.last, GapKind.HOLE)  # a bridge, too, if something stands behind it

    def _gap(self, last: Lsn, kind: GapKind, *, exact: bool = True) -> None:
        last = min(last, self._last_wanted)
        self._effects.append(ReadGap(self.head, last, kind, exact))
        self._move_to(last + 1)

    def _move_to(self, head: Lsn) -> None:
        self.head = skip_zero(head)
        self._window.drop_below(self.head)
        self._sources.moved_to(self.head)
        self._blocked_since = None

    @property
    def _last_wanted(self) -> Lsn:
        end = self._knowledge.end_of_log
        return self._until if end is None else min(self._until, end)

    @property
    def is_doubtful(self) -> bool:
        """True if, as far as the nodes that were asked know, the head may be lost."""
        return self._suspected == self.head and not self._wants_end

    # ---- when the head is empty

    def _unblock(self, now: float) -> bool:
        """Try to get further at the head. Return whether anything was done."""
        is_decided = self._is_decided()
        if not is_decided or self._waits_for_consumer():
            self._blocked_since = None
            epoch = epoch_of(self.head)
            if not is_decided and now >= self._refetch_at and not self._sources.is_known(epoch):
                self._want(epoch, now)  # the log may be gone, or on other nodes by now
            return False
        if self._blocked_since is None:
            self._blocked_since = now
        is_grace_over = now >= self._blocked_since + self._settings.grace_s
        if self._sources.everybody_sends:
            return self._conclude(is_grace_over, now)
        late = self._sources.late_at(self.head)
        if not late:
            self._sources.ask_for_everything()
            self._suspect()
        elif is_grace_over:
            self._sources.list_as_down(late, now)
        return not late or is_grace_over

    def _is_decided(self) -> bool:
        """Return whether there is something at the head, or never will be."""
        is_waited_for = any(source.is_expected for source in self._sources)
        is_clean = self._knowledge.is_clean(epoch_of(self.head))
        return self._sources.is_passed(self.head) or (is_clean and not is_waited_for)

    def _waits_for_consumer(self) -> bool:
        """Return whether a node was not asked for the head because there is no room."""
        return any(
            not source.question and not self._room_for(source)
            for source in self._sources
            if not source.has_passed(self.head)
        )

    def _conclude(self, is_grace_over: bool, now: float) -> bool:
        """Decide about the head when all nodes send everything. Return whether anything follows."""
        epoch = epoch_of(self.head)
        if self._knowledge.is_outdated(epoch):
            self._want(epoch, now, end=True)
            return False
        decided = last_of(epoch) if self._knowledge.is_clean(epoch) else 0
        crashed = self._knowledge.crashed_in(epoch, self._sources.lives())
        finding = self._sources.find_nothing(self.head, decided, crashed)
        if finding is None or not (finding.at_once or is_grace_over):
            if is_grace_over and now >= self._refetch_at:
                self._want(epoch, now)  # the record may be on other nodes by now
            return False
        last = self._last_lost(finding)
        if last is None:
            self._want(epoch, now, end=True)
            return False
        if self._suspected != self.head or not self._find_doubts() <= self._doubts:
            self._suspect()
            self._rewind()
            return True
        if self._confirmed != self.head:
            self._want(epoch, now)
            return False
        if not finding.at_once:
            self._sources.missed_grace(self.head)
        self._gap(last, GapKind.DATALOSS, exact=not self._is_vague())
        return True

    def _is_vague(self) -> bool:
        """Return whether too few nodes were left in recovery to tell what was acknowledged at the
        head: then it left no marks from there on."""
        is_marked, last = self._knowledge.marked_at(self.head)
        is_open = is_marked is False and last == OFFSET_MAX
        return is_open or self._is_behind_end(exact=False)

    def _suspect(self) -> None:
        """Note that the head may be lost. What was learned before does not confirm it: while a node
        may have lost the last copy, that may have been made again on one that answered before."""
        self._suspected, self._doubts = self.head, self._find_doubts()
        self._confirmed = self._wanted_at = None

    def _find_doubts(self) -> Doubts:
        crashed = self._knowledge.crashed_in(epoch_of(self.head), self._sources.lives())
        return self._sources.doubts_at(self.head, crashed)

    def _last_lost(self, finding: Finding) -> Lsn | None:
        """Return the end of a loss: a gap inside an epoch, where recovery leaves a mark wherever
        nothing was, or one behind an end that is not exact. None: the gap reaches the end of an
        epoch, which only the epoch store knows."""
        epoch = epoch_of(self.head)
        last = finding.last
        if (marked := self._knowledge.marked_at(self.head)).is_marked is False:
            is_open = marked.last == OFFSET_MAX
            last = min(last, last_of(epoch) if is_open else make(epoch, marked.last))
        if self._window.first is not None:
            last = min(last, self._window.first - 1)
        if self._is_behind_end(exact=False):
            return min(last, last_of(epoch))
        end = self._knowledge.end_of(epoch)
        if end is not None:
            return min(last, make(epoch, end.last))
        return last if last < make(epoch, OFFSET_MAX) else None

    # ---- asking

    def _ask(self, now: float) -> None:
        until = self._asked_until()
        down = self._sources.known_down
        for source in self._sources.ready(now):
            first = max(source.next_lsn, self.head)
            bytes_max = self._room_for(source)
            if first <= until and bytes_max:
                self._questions += 1
                self._sources.put(source, self._questions, first)
                everything = self._sources.everybody_sends
                request = Read(self._log, first, until, bytes_max, down, everything, self._batches)
                self._effects.append(AskShard(source.shard, self._questions, request))

    def _room_for(self, source: ReadSource) -> int:
        return self._room.free_for(source.shard, len(self._sources))

    def _asked_until(self) -> Lsn:
        """Return how far to ask; when all send all, to the end of an epoch, to recognise a loss."""
        stretch = self._knowledge.stretch_of(epoch_of(self.head))
        if stretch is None or stretch.metadata != self._sources.metadata:
            return 0
        wanted = self._last_wanted
        if self._sources.everybody_sends:
            wanted = last_of(epoch_of(wanted))
        return min(wanted, last_of(stretch.last_epoch))

    def _set_timer(self, now: float) -> None:
        times = [self._sources.next_time(now)]
        if self._blocked_since is not None:
            times += [self._blocked_since + self._settings.grace_s, self._refetch_at]
        if self._wanted is None:
            times.append(self._want_not_before)
        at = min((time for time in times if time is not None and time > now), default=None)
        if at is not None and at != self._timer:
            self._timer = at
            self._effects.append(SetTimer(at))

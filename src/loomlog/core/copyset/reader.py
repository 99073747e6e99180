"""A reader: puts a log together again from the nodes that its records are spread over. Pure.

The driver tells what happens, with the time, and carries out the effects that come back. Reading is
asking: each node is asked from where it has answered to, for as much as there is room, and never
more than one question at a time. Whatever an older question brings is dropped.

    single copy delivery   of a record's copyset the first node not known as down sends it
    all send all           when that leaves the head empty: who has a copy sends it

A node that fails, is late or may miss records is known as down; then all are asked again from the
head, for what it should have sent (a rewind). None of that is needed when it comes back, or when
single copy delivery does: what was sent before was only more.

Nothing is concluded from what single copy delivery does not bring. That a record was lost is only
believed after all that count were asked for everything from its place on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from loomlog.core.copyset.authority import Authority
from loomlog.core.copyset.lsn import (
    LSN_MAX,
    OFFSET_MAX,
    Epoch,
    Lsn,
    epoch_of,
    last_of,
    make,
    skip_zero,
)
from loomlog.core.copyset.messages import Delivered, LogState, Read
from loomlog.core.copyset.reader_knowledge import Knowledge, Stretch
from loomlog.core.copyset.reader_source import Finding, Source
from loomlog.core.copyset.reader_sources import Sources
from loomlog.core.copyset.reader_window import Piece, Room, Window
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
from loomlog.core.copyset.record import Kind
from loomlog.types import LogId, NodeId

DEFAULTS: Final = ReadSettings()


class Reader:
    """Delivers a log from `first` on, in order, up to `until` or as far as there will be something.
    Without `batches`, records come without what is in them."""

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
        self.finished = False
        self._log = log
        self._until = until
        self._batches = batches
        self._settings = settings
        self._known = Knowledge()
        self._sources = Sources(settings)
        self._room = Room(settings.room_bytes)
        self._window = Window(self._room)
        self._questions = 0  # asked so far
        self._suspected: Lsn | None = None  # here all were asked again, for everything
        self._blocked_since: float | None = None  # the head is empty, and somebody has passed it
        self._wanted: Epoch | None = None  # its metadata is being asked for
        self._want_not_before = 0.0
        self._in_vain = 0  # times that it was
        self._timer: float | None = None
        self._effects: list[Effect] = []

    # ---- what happens

    def start(self, now: float) -> list[Effect]:
        return self._go_on(now)

    def told_state(self, state: LogState, now: float) -> list[Effect]:
        """The answer to NeedMetadata, or news; what is older than what is known does no harm."""
        self._known.learn_state(state)
        if self._known.stretch_of(epoch_of(self.head)) is not None:
            self._in_vain = 0
        elif self._wanted is not None:
            pause_s = self._settings.retry_s * 2 ** min(self._in_vain, 16)
            self._want_not_before = now + min(pause_s, self._settings.state_s_max)
            self._in_vain += 1
        self._wanted = None
        return self._go_on(now)

    def told_authorities(self, authorities: Mapping[NodeId, Authority], now: float) -> list[Effect]:
        """Of all nodes; those that are not named are fully authoritative."""
        self._sources.told_authorities(authorities)
        return self._go_on(now)

    def answered(self, node: NodeId, question: int, answer: Delivered, now: float) -> list[Effect]:
        self._known.learn_answer(answer)
        source = self._sources.asked(node, question)
        if source is not None:
            self._sources.answered(source, answer, self.head, now)
            for record in answer.records:
                self._window.add(record, node, self.head)
        return self._go_on(now)

    def failed(self, node: NodeId, question: int, now: float) -> list[Effect]:
        """No answer in time, no connection, or nothing that can be understood."""
        source = self._sources.asked(node, question)
        if source is not None:
            self._sources.failed(source, now)
        return self._go_on(now)

    def consumed(self, deliveries: int, now: float) -> list[Effect]:
        """The consumer is done with so many more of what was delivered."""
        self._room.consumed(deliveries)
        return self._go_on(now)

    def woken(self, now: float) -> list[Effect]:
        """The time of the timer has come."""
        self._timer = None
        return self._go_on(now)

    # ---- going on

    def _go_on(self, now: float) -> list[Effect]:
        while not self.finished and self._step(now):
            pass
        if not self.finished:
            self._ask(now)
            self._set_timer(now)
        effects, self._effects = self._effects, []
        return effects

    def _step(self, now: float) -> bool:
        """Whether there is something else to be done at once."""
        epoch = epoch_of(self.head)
        if self.head > self._last_wanted:
            self._finish()
        elif (piece := self._window.pop(self.head)) is not None:
            self._deliver(piece)
            return True
        elif (stretch := self._known.stretch_of(epoch)) is None:
            self._want(epoch, now)
        elif self._known.trimmed >= self.head:
            self._gap(self._known.trimmed, GapKind.TRIM)
            return True
        elif self._known.is_over(self.head):
            self._gap(last_of(epoch), GapKind.BRIDGE)
            return True
        else:
            self._enter(stretch)
            return self._unblock(now)
        return False

    def _finish(self) -> None:
        self.finished = True
        self._window.clear()
        self._effects.append(Finished())

    def _want(self, epoch: Epoch, now: float) -> None:
        if self._wanted is None and self._want_not_before <= now:
            self._wanted = epoch
            self._effects.append(NeedMetadata(epoch))

    def _enter(self, stretch: Stretch) -> None:
        """Read from the nodes that have the head's epoch."""
        if stretch.metadata != self._sources.metadata:
            self._sources.enter(stretch.metadata, self.head)
        elif self._sources.must_rewind():
            self._rewind()

    def _rewind(self) -> None:
        """Ask all again from the head."""
        self._sources.rewind(self.head)
        self._window.clear()
        self._blocked_since = None

    def _deliver(self, piece: Piece) -> None:
        if piece.record.kind is Kind.DATA:
            last = min(piece.last, self._last_wanted)
            self._effects.append(Deliver(piece.record, piece.first, last))
            self._room.delivered(piece)
            self._move_to(last + 1)
            return
        self._room.give_back(piece)
        epoch = piece.record.epoch
        is_end = piece.record.kind is Kind.BRIDGE and piece.last == make(epoch, OFFSET_MAX)
        if is_end:
            self._gap(last_of(epoch), GapKind.BRIDGE)
        else:
            self._gap(piece.last, GapKind.HOLE)  # a bridge, too, if something stands behind it

    def _gap(self, last: Lsn, kind: GapKind) -> None:
        last = min(last, self._last_wanted)
        self._effects.append(Gap(self.head, last, kind))
        self._move_to(last + 1)

    def _move_to(self, head: Lsn) -> None:
        self.head = skip_zero(head)
        self._window.drop_below(self.head)
        self._known.forget_below(epoch_of(self.head))
        self._sources.moved_on()
        self._blocked_since = None

    @property
    def _last_wanted(self) -> Lsn:
        end = self._known.end_of_log
        return self._until if end is None else min(self._until, end)

    # ---- when the head is empty

    def _unblock(self, now: float) -> bool:
        """Whether something was done about it."""
        if not self._is_decided() or self._waits_for_consumer():
            self._blocked_since = None
            return False
        if self._blocked_since is None:
            self._blocked_since = now
        is_grace_over = now >= self._blocked_since + self._settings.grace_s
        if self._sources.everybody_sends:
            return self._conclude(is_grace_over)
        late = self._sources.late_at(self.head)
        if not late:
            self._sources.ask_for_everything()
            self._suspected = self.head
        elif is_grace_over:
            self._sources.list_as_down(late, now)
        return not late or is_grace_over

    def _is_decided(self) -> bool:
        """Whether there is something at the head, or never will be."""
        is_waited_for = any(source.counts_at(self.head) for source in self._sources)
        is_clean = self._known.is_clean(epoch_of(self.head))
        return self._sources.is_passed(self.head) or (is_clean and not is_waited_for)

    def _waits_for_consumer(self) -> bool:
        """Somebody was not asked for the head, for want of room."""
        return any(
            not source.question and not self._room_for(source)
            for source in self._sources
            if not source.has_passed(self.head)
        )

    def _conclude(self, is_grace_over: bool) -> bool:
        """Everybody sends all that it has. Whether anything follows from it for the head."""
        epoch = epoch_of(self.head)
        decided = last_of(epoch) if self._known.is_clean(epoch) else 0
        finding = self._sources.find_nothing(self.head, decided)
        if finding is None or not (finding.at_once or is_grace_over):
            return False
        gap = self._gap_of(finding)
        if gap.kind is GapKind.DATALOSS and self._suspected != self.head:
            self._suspected = self.head
            self._rewind()
            return True
        if not finding.at_once:
            self._sources.missed_grace(self.head)
        self._gap(gap.last, gap.kind)
        return True

    def _gap_of(self, finding: Finding) -> Gap:
        """A gap inside an epoch is a loss: recovery leaves a mark wherever nothing was. One that
        reaches its end is none, unless somebody knows that the epoch ended later."""
        epoch = epoch_of(self.head)
        last = finding.last
        if self._window.first is not None:
            last = min(last, self._window.first - 1)
        end = self._known.end_of(epoch)
        if end is not None:
            return Gap(self.head, min(last, make(epoch, end)), GapKind.DATALOSS)
        if last < make(epoch, OFFSET_MAX):
            return Gap(self.head, last, GapKind.DATALOSS)
        kind = GapKind.DATALOSS if finding.is_from_nobody else GapKind.BRIDGE
        return Gap(self.head, last_of(epoch), kind)

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
                self._effects.append(Ask(source.node, self._questions, request))

    def _room_for(self, source: Source) -> int:
        return self._room.free_for(source.node, len(self._sources))

    def _asked_until(self) -> Lsn:
        """Where everybody sends all, up to the end of an epoch: to know a loss from the end."""
        stretch = self._known.stretch_of(epoch_of(self.head))
        if stretch is None or stretch.metadata != self._sources.metadata:
            return 0
        wanted = self._last_wanted
        if self._sources.everybody_sends:
            wanted = last_of(epoch_of(wanted))
        return min(wanted, last_of(stretch.last_epoch))

    def _set_timer(self, now: float) -> None:
        times = [self._sources.next_time(now)]
        if self._blocked_since is not None:
            times.append(self._blocked_since + self._settings.grace_s)
        if self._wanted is None:
            times.append(self._want_not_before)
        at = min((time for time in times if time is not None and time > now), default=None)
        if at is not None and at != self._timer:
            self._timer = at
            self._effects.append(SetTimer(at))

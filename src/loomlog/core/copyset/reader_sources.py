"""The nodes that are read: what each has to send, and what it means if none has anything. Pure.

A record is sent by the first node of its shuffled copyset that is not known as down. If all are
known as down, every node sends all that it has.

The more nodes are known as down, the more the others send. So nothing is missed when one is taken
off the list; but when one is put on it, all must be asked again from the head.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.messages import Delivered
from loomlog.core.copyset.nodeset import Authority, EpochMetadata
from loomlog.core.copyset.record import Epoch, Lsn, epoch_of
from loomlog.limits import MIB
from loomlog.types import ShardId

Doubts: TypeAlias = frozenset[tuple[ShardId, Epoch, int]]  # shards, what they lost, their lives


class ReadSettings(NamedTuple):
    """Settings of a reader. Times are in seconds."""

    room_bytes: int = 8 * MIB  # for what is asked for, put in order, or waits for the consumer
    grace_s: float = 0.1  # for nodes that are late, when the others have answered
    graces: int = 2  # times that a late node is waited for
    listed_s: float = 1.0  # a node that failed stays known as down this long; doubles each time
    listed_s_max: float = 60.0
    answers_until_well: int = 16  # after this many in a row it begins with listed_s again
    retry_s: float = 0.05  # before a node without an answer or news is asked again; doubles
    retry_s_max: float = 5.0
    state_s_max: float = 1.0  # between questions for a log's state that has no epoch to read yet
    all_send_all: int = 256  # records, before single copy delivery is tried again


@dataclass
class ReadSource:
    """A shard of the nodeset, as the reader sees it."""

    shard: ShardId
    next_lsn: Lsn  # it has nothing (more) to send below
    authority: Authority = Authority.FULL
    question: int = 0  # the one that it has not answered; 0: none
    asked_from: Lsn = 0  # where the last question began
    released: Lsn = 0  # there, if it answered the last question
    not_before: float = 0.0  # when it may be asked again
    failures: int = 0  # in a row
    listed: bool = False  # known as down: the others send what it should
    listed_until: float = 0.0
    times_listed: int = 0  # since it was last well for a while
    answers: int = 0  # in a row since it was listed last
    graces_missed: int = 0  # in a row
    lost_through: Epoch = 0  # of epochs up to this one it may have lost records, it says
    life: int = 0  # of its node, it says
    gone: bool = False  # with all that it had of the epoch of the head
    damaged: tuple[tuple[Lsn, Lsn], ...] = ()  # ranges where it cannot read what it has

    def may_miss_records(self, lsn: Lsn) -> bool:
        return self._has_lost(lsn) or self.authority is not Authority.FULL

    def _has_lost(self, lsn: Lsn) -> bool:
        return epoch_of(lsn) <= self.lost_through

    def has_passed(self, lsn: Lsn) -> bool:
        return self.next_lsn > lsn

    @property
    def is_expected(self) -> bool:
        """True if readers wait for it while it is away: it may return until it is given up."""
        return not self.gone and self.authority in (Authority.FULL, Authority.UNAVAILABLE)

    def counts_at(self, lsn: Lsn) -> bool:
        """Return whether a record that it does not have there was never stored there."""
        return (
            self.is_expected
            and not self._has_lost(lsn)
            and not any(first <= lsn <= last for first, last in self.damaged)
        )

    def rewind(self, head: Lsn) -> None:
        self.next_lsn = head
        self.question = 0
        self.damaged = ()

    def answered(self, answer: Delivered, head: Lsn) -> None:
        self.question = 0
        self.failures = 0
        self.answers += 1
        self.next_lsn = max(self.next_lsn, answer.next_lsn)
        self.released = answer.released
        self.lost_through = answer.lost_through
        self.life = answer.life
        self.damaged = tuple(
            (first, last) for first, last in (*self.damaged, *answer.damaged) if last >= head
        )
        if self.has_passed(head):
            self.graces_missed = 0

    def failed(self, now: float, settings: ReadSettings) -> None:
        self.question = 0
        self.released = 0
        retry = Backoff(settings.retry_s, settings.retry_s_max)
        self.not_before = now + retry.delay_s(self.failures)
        self.failures += 1

    def list_as_down(self, now: float, settings: ReadSettings) -> None:
        if self.answers >= settings.answers_until_well:
            self.times_listed = 0
        self.listed = True
        self.answers = 0
        listed = Backoff(settings.listed_s, settings.listed_s_max)
        self.listed_until = now + listed.delay_s(self.times_listed)
        self.times_listed += 1


class Finding(NamedTuple):
    """No record that was fully stored is in the range from the head to `last`."""

    last: Lsn
    at_once: bool  # False: after a grace for those that have not answered


def find_nothing(
    head: Lsn,
    decided: Lsn,
    metadata: EpochMetadata,
    sources: Collection[ReadSource],
    graces: int,
    crashed: Collection[ShardId] = (),
) -> Finding | None:
    """Decide what it means that no node has a record for the head while every node sends all that
    it has. Up to `decided` nothing will change, whatever nodes know. None: wait for more answers.
    `crashed`: may have forgotten the record."""
    past = [source for source in sources if source.has_passed(head)]
    late = [source for source in sources if not source.has_passed(head)]
    if not past and (head > decided or any(source.is_expected for source in sources)):
        return None
    last = min((source.next_lsn - 1 for source in past), default=decided)
    empty = {source.shard for source in sources if source.authority is Authority.EMPTY}
    lacking = {source.shard for source in past if source.counts_at(head)}.difference(crashed)
    if metadata.is_f_majority(lacking, empty):
        counting = [source for source in late if source.counts_at(head)]
        return Finding(last, at_once=all(source.graces_missed > graces for source in counting))
    if any(source.is_expected for source in late):
        return None
    # Too few to be sure, but there is no other node to ask, unless one of the rest still answers.
    is_nobody_left = len(empty) == len(sources)
    rest = [source for source in late if is_nobody_left or source.shard not in empty]
    return Finding(last, at_once=not rest)


class ReadSources:
    """The nodes of the epochs that are being read."""

    def __init__(self, settings: ReadSettings) -> None:
        self.metadata: EpochMetadata | None = None
        self._settings = settings
        self._by_shard: dict[ShardId, ReadSource] = {}
        self._authorities: Mapping[ShardId, Authority] = {}
        self._lost: Mapping[ShardId, Epoch] = {}
        self._asked_with: frozenset[ShardId] = frozenset()  # down in all questions since a rewind
        self._answers_are_stale = False
        self._all_send_all = 0  # for this many more records; 0: single copy delivery
        self._head: Lsn = 0

    def __iter__(self) -> Iterator[ReadSource]:
        return iter(self._by_shard.values())

    def __len__(self) -> int:
        return len(self._by_shard)

    # ---- events

    def enter(self, metadata: EpochMetadata, head: Lsn) -> None:
        """Read from these nodes from now on. What is known of those that stay is kept."""
        before = self._by_shard
        self.metadata = metadata
        self._head = head
        self._by_shard = {
            shard: before.get(shard) or ReadSource(shard, head) for shard in metadata.shards
        }
        self.learn_authorities(self._authorities)
        self._note_gone()
        self.rewind(head)

    def learn_authorities(self, authorities: Mapping[ShardId, Authority]) -> None:
        """Take the authorities. What a node that is empty now had was copied to others, perhaps
        after they answered."""
        self._authorities = authorities
        for source in self:
            authority = authorities.get(source.shard, Authority.FULL)
            self._answers_are_stale |= authority is not source.authority
            source.authority = authority

    def learn_losses(self, lost: Mapping[ShardId, Epoch]) -> None:
        """Take which nodes are gone with what they had, and up to which epoch."""
        self._lost = lost
        self._note_gone()

    def _note_gone(self) -> None:
        for source in self:
            source.gone = epoch_of(self._head) <= self._lost.get(source.shard, 0)

    def asked(self, shard: ShardId, question: int) -> ReadSource | None:
        """Return the source that was asked this; None if the question no longer matters."""
        source = self._by_shard.get(shard)
        return source if source is not None and source.question == question else None

    def answered(self, source: ReadSource, answer: Delivered, head: Lsn, now: float) -> None:
        is_news = bool(answer.records) or answer.next_lsn > source.asked_from
        source.answered(answer, head)
        source.not_before = now if is_news else now + self._settings.retry_s
        if source.damaged:
            self.list_as_down([source], now)
        elif source.listed and now >= source.listed_until:
            source.listed = not source.has_passed(head) and self.is_passed(head)

    def failed(self, source: ReadSource, now: float) -> None:
        source.failed(now, self._settings)
        self.list_as_down([source], now)

    def list_as_down(self, sources: Collection[ReadSource], now: float) -> None:
        for source in sources:
            if not source.listed:
                source.list_as_down(now, self._settings)

    def ask_for_everything(self) -> None:
        self._all_send_all = self._settings.all_send_all

    def moved_to(self, head: Lsn) -> None:
        is_other_epoch = epoch_of(head) != epoch_of(self._head)
        self._head = head
        if is_other_epoch and self._lost:
            self._note_gone()
        self._all_send_all = max(0, self._all_send_all - 1)

    def missed_grace(self, head: Lsn) -> None:
        """Called when the head was decided without the nodes that are late."""
        for source in self:
            if not source.has_passed(head):
                source.graces_missed += 1

    def rewind(self, head: Lsn) -> None:
        self._asked_with = self.known_down
        self._answers_are_stale = False
        for source in self:
            source.rewind(head)

    # ---- queries

    @property
    def known_down(self) -> frozenset[ShardId]:
        return frozenset(
            source.shard
            for source in self
            if self._all_send_all or source.listed or source.may_miss_records(self._head)
        )

    @property
    def everybody_sends(self) -> bool:
        return len(self.known_down) == len(self)

    def is_passed(self, head: Lsn) -> bool:
        """Return whether a node says that there is something at the head, or never will be."""
        return any(source.has_passed(head) for source in self)

    def is_known(self, epoch: Epoch) -> bool:
        """Return whether a node that answers knows that this epoch began. None does if the log is
        gone: nodes that forgot it answer like those that wait for its first record."""
        return any(epoch_of(source.released) >= epoch for source in self)

    def late_at(self, head: Lsn) -> list[ReadSource]:
        """Return the nodes that may still have to send what is at the head."""
        down = self.known_down
        return [s for s in self if s.shard not in down and not s.has_passed(head)]

    def find_nothing(self, head: Lsn, decided: Lsn, crashed: Collection[ShardId]) -> Finding | None:
        assert self.metadata is not None
        sources = self._by_shard.values()
        return find_nothing(head, decided, self.metadata, sources, self._settings.graces, crashed)

    def doubts_at(self, head: Lsn, crashed: Collection[ShardId]) -> Doubts:
        """Return the nodes that may have lost what is at the head, and since when."""
        return frozenset(
            (source.shard, source.lost_through, source.life)
            for source in self
            if source.shard in crashed or not source.counts_at(head)
        )

    def lives(self) -> dict[ShardId, int]:
        """Return the lives of the nodes that said so."""
        return {source.shard: source.life for source in self if source.life}

    # ---- questions

    def must_rewind(self) -> bool:
        """Return whether a node has to send what it was not asked for, or may have more by now."""
        return self._answers_are_stale or not self.known_down <= self._asked_with

    def ready(self, now: float) -> list[ReadSource]:
        """Return the nodes that may be asked something."""
        return [source for source in self if not source.question and source.not_before <= now]

    def put(self, source: ReadSource, question: int, first: Lsn) -> None:
        """Note that a node is being asked, with the nodes that are `known_down` now."""
        source.question, source.asked_from = question, first
        self._asked_with &= self.known_down

    def next_time(self, now: float) -> float | None:
        """Return when a node may be asked again that may not be asked now."""
        times = [source.not_before for source in self if not source.question]
        return min((time for time in times if time > now), default=None)

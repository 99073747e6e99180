"""A reader's view of one node, and the conclusions when nodes have nothing to send. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.epoch_metadata import Authority, EpochMetadata
from loomlog.core.copyset.lsn import Epoch, Lsn, epoch_of
from loomlog.core.copyset.messages import Delivered
from loomlog.core.copyset.reader_words import ReadSettings
from loomlog.types import NodeId


@dataclass
class Source:
    """A node of the nodeset, as the reader sees it."""

    node: NodeId
    next_lsn: Lsn  # it has nothing (more) to send below
    authority: Authority = Authority.FULL
    question: int = 0  # the one that it has not answered; 0: none
    asked_from: Lsn = 0  # where the last question began
    not_before: float = 0.0  # when it may be asked again
    failures: int = 0  # in a row
    listed: bool = False  # known as down: the others send what it should
    listed_until: float = 0.0
    times_listed: int = 0  # since it was last well for a while
    answers: int = 0  # in a row since it was listed last
    graces_missed: int = 0  # in a row
    lost_through: Epoch = 0  # of epochs up to this one it may have lost records, it says
    damaged: tuple[tuple[Lsn, Lsn], ...] = ()  # ranges where it cannot read what it has

    def may_miss_records(self, lsn: Lsn) -> bool:
        return self._has_lost(lsn) or self.authority is not Authority.FULL

    def _has_lost(self, lsn: Lsn) -> bool:
        return epoch_of(lsn) <= self.lost_through

    def has_passed(self, lsn: Lsn) -> bool:
        return self.next_lsn > lsn

    @property
    def is_expected(self) -> bool:
        """Whether readers wait for it while it is away: it may return until it is given up."""
        return self.authority in (Authority.FULL, Authority.UNAVAILABLE)

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
        self.lost_through = answer.lost_through
        self.damaged = tuple(
            (first, last) for first, last in (*self.damaged, *answer.damaged) if last >= head
        )
        if self.has_passed(head):
            self.graces_missed = 0

    def failed(self, now: float, settings: ReadSettings) -> None:
        self.question = 0
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
    head: Lsn, decided: Lsn, metadata: EpochMetadata, sources: Collection[Source], graces: int
) -> Finding | None:
    """Decide what it means that no node has a record for the head while every node sends all that
    it has. Up to `decided` nothing will change, whatever nodes know. None: wait for more
    answers."""
    past = [source for source in sources if source.has_passed(head)]
    late = [source for source in sources if not source.has_passed(head)]
    if not past and (head > decided or any(source.is_expected for source in sources)):
        return None
    last = min((source.next_lsn - 1 for source in past), default=decided)
    empty = {source.node for source in sources if source.authority is Authority.EMPTY}
    lacking = {source.node for source in past if source.counts_at(head)}
    if metadata.is_f_majority(lacking, empty):
        counting = [source for source in late if source.counts_at(head)]
        return Finding(last, at_once=all(source.graces_missed > graces for source in counting))
    if any(source.is_expected for source in late):
        return None
    # Too few to be sure, but there is no other node to ask, unless one of the rest still answers.
    is_nobody_left = len(empty) == len(sources)
    rest = [source for source in late if is_nobody_left or source.node not in empty]
    return Finding(last, at_once=not rest)

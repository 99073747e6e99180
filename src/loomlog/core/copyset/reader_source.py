"""What a reader knows of a node, and what it means that nodes have nothing to send. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from loomlog.core.copyset.authority import Authority
from loomlog.core.copyset.epoch_metadata import EpochMetadata
from loomlog.core.copyset.lsn import Lsn
from loomlog.core.copyset.messages import Delivered
from loomlog.core.copyset.reader_words import ReadSettings
from loomlog.types import NodeId


@dataclass
class Source:
    """A node of the nodeset."""

    node: NodeId
    next_lsn: Lsn  # it has nothing (more) to send below
    authority: Authority = Authority.FULL
    question: int = 0  # the one that it has not answered; 0: none
    asked_from: Lsn = 0  # what it was asked for last begins here
    not_before: float = 0.0  # then it may be asked again
    failures: int = 0  # in a row
    listed: bool = False  # known as down: the others send what it should
    listed_until: float = 0.0
    times_listed: int = 0  # without a while in between in which all was well
    answers: int = 0  # in a row since it was listed last
    graces_missed: int = 0  # in a row
    underreplicated: bool = False  # says the node itself
    damaged: tuple[tuple[Lsn, Lsn], ...] = ()  # ranges where it cannot read what it has

    @property
    def may_miss_records(self) -> bool:
        return self.underreplicated or self.authority is not Authority.FULL

    def has_passed(self, lsn: Lsn) -> bool:
        return self.next_lsn > lsn

    def counts_at(self, lsn: Lsn) -> bool:
        """What it does not have there it never had, so it is waited for. One that is away with all
        its records is, too: it may come back with them, until somebody gives it up."""
        return (
            self.authority in (Authority.FULL, Authority.UNAVAILABLE)
            and not self.underreplicated
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
        self.underreplicated = answer.underreplicated
        self.damaged = tuple(
            (first, last) for first, last in (*self.damaged, *answer.damaged) if last >= head
        )
        if self.has_passed(head):
            self.graces_missed = 0

    def failed(self, now: float, settings: ReadSettings) -> None:
        self.question = 0
        pause_s = settings.retry_s * 2 ** min(self.failures, 16)
        self.not_before = now + min(pause_s, settings.retry_s_max)
        self.failures += 1

    def list_as_down(self, now: float, settings: ReadSettings) -> None:
        if self.answers >= settings.answers_until_well:
            self.times_listed = 0
        self.listed = True
        self.answers = 0
        listed_s = settings.listed_s * 2 ** min(self.times_listed, 16)
        self.listed_until = now + min(listed_s, settings.listed_s_max)
        self.times_listed += 1


class Finding(NamedTuple):
    """No record that was fully stored is in the range that begins at the head."""

    last: Lsn
    at_once: bool  # False: after a grace for those that have not answered
    is_from_nobody: bool = False  # there is no node any more that could know


def find_nothing(
    head: Lsn, decided: Lsn, metadata: EpochMetadata, sources: Collection[Source], graces: int
) -> Finding | None:
    """What it means that nobody has a record for the head, while everybody sends all that it has.
    `decided`: nothing up to here will change, whatever nodes know of it. None: wait for more."""
    past = [source for source in sources if source.has_passed(head)]
    counting = [source for source in sources if source.counts_at(head)]
    if not past and (counting or head > decided):
        return None
    last = min((source.next_lsn - 1 for source in past), default=decided)
    late = [source for source in counting if not source.has_passed(head)]
    lacking = {source.node for source in counting if source.has_passed(head)}
    empty = {source.node for source in sources if source.authority is Authority.EMPTY}
    if metadata.is_f_majority(lacking, empty):
        return Finding(last, at_once=all(source.graces_missed > graces for source in late))
    if late:
        return None
    # Too few to be sure; but there is nobody else to ask, unless one of the others still answers.
    others = [source for source in sources if source.node not in empty]
    at_once = all(source.has_passed(head) for source in others or sources)
    return Finding(last, at_once, is_from_nobody=not counting)

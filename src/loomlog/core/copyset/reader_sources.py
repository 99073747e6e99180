"""The nodes that are read, and what each of them has to send. Pure.

A record is sent by the first node of its shuffled copyset that is not known as down. If all are
known as down, every node sends all that it has.

The more nodes are known as down, the more the others send. So nothing is missed when one is taken
off the list; but when one is put on it, all must be asked again from the head.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from loomlog.core.copyset.epoch_metadata import Authority, EpochMetadata
from loomlog.core.copyset.lsn import Lsn
from loomlog.core.copyset.messages import Delivered
from loomlog.core.copyset.reader_source import Finding, Source, find_nothing
from loomlog.core.copyset.reader_words import ReadSettings
from loomlog.types import NodeId


class Sources:
    """The nodes of the epochs that are being read."""

    def __init__(self, settings: ReadSettings) -> None:
        self.metadata: EpochMetadata | None = None
        self._settings = settings
        self._by_node: dict[NodeId, Source] = {}
        self._authorities: Mapping[NodeId, Authority] = {}
        self._asked_with: frozenset[NodeId] = frozenset()  # down in all questions since a rewind
        self._answers_are_stale = False
        self._all_send_all = 0  # for this many more records; 0: single copy delivery
        self._head: Lsn = 0

    def __iter__(self) -> Iterator[Source]:
        return iter(self._by_node.values())

    def __len__(self) -> int:
        return len(self._by_node)

    # ---- events

    def enter(self, metadata: EpochMetadata, head: Lsn) -> None:
        """Read from these nodes from now on. What is known of those that stay is kept."""
        known = self._by_node
        self.metadata = metadata
        self._head = head
        self._by_node = {node: known.get(node) or Source(node, head) for node in metadata.nodes}
        self.told_authorities(self._authorities)
        self.rewind(head)

    def told_authorities(self, authorities: Mapping[NodeId, Authority]) -> None:
        """Take the authorities. What a node that is empty now had was copied to others, perhaps
        after they answered."""
        self._authorities = authorities
        for source in self:
            authority = authorities.get(source.node, Authority.FULL)
            self._answers_are_stale |= authority is not source.authority
            source.authority = authority

    def asked(self, node: NodeId, question: int) -> Source | None:
        """Return the node that was asked this; None if the question no longer matters."""
        source = self._by_node.get(node)
        return source if source is not None and source.question == question else None

    def answered(self, source: Source, answer: Delivered, head: Lsn, now: float) -> None:
        is_news = bool(answer.records) or answer.next_lsn > source.asked_from
        source.answered(answer, head)
        source.not_before = now if is_news else now + self._settings.retry_s
        if source.damaged:
            self.list_as_down([source], now)
        elif source.listed and now >= source.listed_until:
            source.listed = not source.has_passed(head) and self.is_passed(head)

    def failed(self, source: Source, now: float) -> None:
        source.failed(now, self._settings)
        self.list_as_down([source], now)

    def list_as_down(self, sources: Collection[Source], now: float) -> None:
        for source in sources:
            if not source.listed:
                source.list_as_down(now, self._settings)

    def ask_for_everything(self) -> None:
        self._all_send_all = self._settings.all_send_all

    def moved_to(self, head: Lsn) -> None:
        self._head = head
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
    def known_down(self) -> frozenset[NodeId]:
        return frozenset(
            source.node
            for source in self
            if self._all_send_all or source.listed or source.may_miss_records(self._head)
        )

    @property
    def everybody_sends(self) -> bool:
        return len(self.known_down) == len(self)

    def is_passed(self, head: Lsn) -> bool:
        """Return whether a node says that there is something at the head, or never will be."""
        return any(source.has_passed(head) for source in self)

    def late_at(self, head: Lsn) -> list[Source]:
        """Return the nodes that may still have to send what is at the head."""
        down = self.known_down
        return [s for s in self if s.node not in down and not s.has_passed(head)]

    def find_nothing(self, head: Lsn, decided: Lsn) -> Finding | None:
        assert self.metadata is not None
        sources = self._by_node.values()
        return find_nothing(head, decided, self.metadata, sources, self._settings.graces)

    # ---- questions

    def must_rewind(self) -> bool:
        """Return whether a node has to send what it was not asked for, or may have more by now."""
        return self._answers_are_stale or not self.known_down <= self._asked_with

    def ready(self, now: float) -> list[Source]:
        """Return the nodes that may be asked something."""
        return [source for source in self if not source.question and source.not_before <= now]

    def put(self, source: Source, question: int, first: Lsn) -> None:
        """Note that a node is being asked, with the nodes that are `known_down` now."""
        source.question, source.asked_from = question, first
        self._asked_with &= self.known_down

    def next_time(self, now: float) -> float | None:
        """Return when a node may be asked again that may not be asked now."""
        times = [source.not_before for source in self if not source.question]
        return min((time for time in times if time > now), default=None)

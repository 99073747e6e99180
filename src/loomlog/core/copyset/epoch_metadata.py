"""Where the records of an epoch may be, and on how many nodes each of them is. Pure.

Fixed when an epoch begins, and never changed. Every copyset has `replication` nodes of the nodeset,
if possible in as many failure domains as there are, up to one for each copy. One of the domains may
be missing: else the loss of a rack would end all appends, and all recoveries, until it is back.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from loomlog.types import NodeId


class Member(NamedTuple):
    """A node of a nodeset. Its location is a failure domain; without one it is its own."""

    node_id: NodeId
    location: str = ""

    @property
    def domain(self) -> str:
        return self.location or f"node {self.node_id}"


class EpochMetadata(NamedTuple):
    since: int  # the first epoch that it holds for; until the next one in the history
    nodeset: tuple[Member, ...]
    replication: int

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(member.node_id for member in self.nodeset)

    @property
    def domains_wanted(self) -> int:
        """In how many failure domains a copyset lies if it can."""
        return min(self.replication, self._domains)

    @property
    def domains_spanned(self) -> int:
        """In how many failure domains every copyset lies at least."""
        return min(self.replication, max(1, self._domains - 1))

    @property
    def _domains(self) -> int:
        return len({member.domain for member in self.nodeset})

    def can_hold_a_copyset(self, nodes: Collection[NodeId]) -> bool:
        """Whether a record can have all its copies among these."""
        members = [member for member in self.nodeset if member.node_id in nodes]
        domains = {member.domain for member in members}
        return len(members) >= self.replication and len(domains) >= self.domains_spanned

    def is_f_majority(self, nodes: Collection[NodeId], empty: Collection[NodeId] = ()) -> bool:
        """Every record that is fully stored has a copy on one of these. What was on nodes that are
        `empty` by now was copied to the rest; if the rest is too small to hold all copies of a
        record, no part of it will do."""
        rest = set(self.nodes).difference(empty)
        is_rest_enough = not empty or self.can_hold_a_copyset(rest)
        return is_rest_enough and not self.can_hold_a_copyset(rest.difference(nodes))

"""Nodesets: which nodes may have the records of an epoch, and how many copies each has. Pure.

A nodeset is fixed when its epoch begins. Every copyset has `replication` of its nodes, if possible
in as many failure domains as there are, up to one for each copy. One domain may be missing, or the
loss of a rack would block all appends and recoveries until it is back.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from loomlog.types import NodeId


class Member(NamedTuple):
    """A node of a nodeset. Its location is a failure domain; without one it is its own."""

    node_id: NodeId
    location: str = ""

    @property
    def domain(self) -> str:
        return self.location or f"node {self.node_id}"


class Authority(StrEnum):
    """The meaning of a node's not having a record."""

    FULL = "fully authoritative"  # it has everything that it was given
    UNDERREPLICATED = "underreplicated"  # what it has counts, what it lacks does not
    EMPTY = "authoritatively empty"  # what it had was copied to other nodes
    UNAVAILABLE = "unavailable"  # away for long, perhaps for good, and perhaps with the only copy
    # of a record: readers wait for it, writers and recovery do not


class EpochMetadata(NamedTuple):
    """The nodeset and replication of epochs."""

    since: int  # the first epoch that it holds for; until the next one in the history
    nodeset: tuple[Member, ...]
    replication: int

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(member.node_id for member in self.nodeset)

    @property
    def domains_wanted(self) -> int:
        """The number of failure domains that a copyset spans if possible."""
        return min(self.replication, self._domains)

    @property
    def domains_spanned(self) -> int:
        """The least number of failure domains that a copyset spans."""
        return min(self.replication, max(1, self._domains - 1))

    @property
    def _domains(self) -> int:
        return len({member.domain for member in self.nodeset})

    def can_hold_a_copyset(self, nodes: Collection[NodeId]) -> bool:
        """Return whether a record can have all its copies on these nodes."""
        members = [member for member in self.nodeset if member.node_id in nodes]
        domains = {member.domain for member in members}
        return len(members) >= self.replication and len(domains) >= self.domains_spanned

    def is_f_majority(self, nodes: Collection[NodeId], empty: Collection[NodeId] = ()) -> bool:
        """Return whether every record that is fully stored has a copy on one of these nodes. What
        `empty` nodes had was copied to the rest; if the rest cannot hold a copyset, no part of it
        is enough."""
        rest = set(self.nodes).difference(empty)
        is_rest_enough = not empty or self.can_hold_a_copyset(rest)
        return is_rest_enough and not self.can_hold_a_copyset(rest.difference(nodes))

"""Who must agree. Pure.

While members change, those before and those after the change count, each for themselves: what
holds then is known to a majority of both, whichever of the two a later leader asks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeAlias

MemberId: TypeAlias = int


class Configuration(NamedTuple):
    """The members of a round log; `previous` only while they change."""

    members: frozenset[MemberId]
    previous: frozenset[MemberId] = frozenset()

    @property
    def everybody(self) -> list[MemberId]:
        return sorted(self.members | self.previous)

    def has_majority(self, agreeing: Collection[MemberId]) -> bool:
        return all(
            2 * len(voters.intersection(agreeing)) > len(voters) for voters in self._voters()
        )

    def agreed(self, reached: Mapping[MemberId, int]) -> int:
        """How far a majority has come, if each has come as far as `reached` says; else 0."""
        return min(_reached_by_majority(voters, reached) for voters in self._voters())

    def _voters(self) -> list[frozenset[MemberId]]:
        return [self.members, self.previous] if self.previous else [self.members]


def _reached_by_majority(voters: frozenset[MemberId], reached: Mapping[MemberId, int]) -> int:
    ranked = sorted((reached.get(member, 0) for member in voters), reverse=True)
    return ranked[len(voters) // 2]

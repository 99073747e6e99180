"""The majorities that must agree. Pure.

While members change, the old and the new members count separately: a decision needs a majority of
both, so a later leader finds it whichever of the two it asks.
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
        """Return how far a majority has come, given how far each has; else 0."""
        return min(_reached_by_majority(voters, reached) for voters in self._voters())

    def _voters(self) -> list[frozenset[MemberId]]:
        return [self.members, self.previous] if self.previous else [self.members]


def _reached_by_majority(voters: frozenset[MemberId], reached: Mapping[MemberId, int]) -> int:
    ranked = sorted((reached.get(member, 0) for member in voters), reverse=True)
    return ranked[len(voters) // 2]

"""Learn, as a new leader, what was decided. Pure.

It seals a majority, takes the tail of the member that knows most, and installs that on a majority
under its own epoch. What an older leader got acknowledged is in one of the files it asked, of that
leader's epoch or of a newer one that began with it; so the newest epoch decides, and then the
length.

It installs only on members whose answer it took into account. A member that answers late may know
more than what was chosen. That was never acknowledged, and it is overwritten, but not before the
log is open, so that it never stands in for those that were asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from loomlog.core.quorum.majority import Configuration, MemberId


class Sealed(NamedTuple):
    """The answer of a member that was sealed."""

    file_epoch: int
    last_index: int
    lost: bool = False

    @property
    def knows(self) -> tuple[int, int]:
        return self.file_epoch, self.last_index


class Choice(NamedTuple):
    member: MemberId
    knows: tuple[int, int]


def choose(configuration: Configuration, answers: Mapping[MemberId, Sealed]) -> Choice | None:
    """Return the member whose tail to take, once a majority, without lost members, has answered."""
    counting = {member: answer for member, answer in answers.items() if not answer.lost}
    if not configuration.has_majority(counting):
        return None
    best = max(sorted(counting), key=lambda member: counting[member].knows)
    return Choice(best, counting[best].knows)

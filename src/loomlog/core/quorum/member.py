"""Members of the round log: which majorities must agree, and what a member takes. Pure.

While members change, the old and the new members count separately: a decision needs a majority of
both, so a later leader finds it whichever of the two it asks.

A member has a promise (the newest leader that sealed it) and one file: the epoch of the leader
that installed it, and the records up to an index. Each function returns the state after a request;
it must be durable before the request is answered.

    seal        by a newer leader: nothing of an older one is taken from now on
    install     by the leader it is promised to: replaces all that it has
    append      by that leader: if it follows on what it installed
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeAlias

from loomlog.errors import NotLeader, Unavailable

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


class Leader(NamedTuple):
    """A leader: which member, since which epoch, and where clients and nodes reach it."""

    epoch: int
    member: MemberId
    address: str


NOBODY = Leader(0, 0, "")


class MemberState(NamedTuple):
    promised: Leader = NOBODY
    file_epoch: int = 0  # of the leader that installed the file; 0: never
    last_index: int = 0
    lost: bool = False  # it may have had more: it is no evidence of what was decided


def seal(state: MemberState, leader: Leader) -> MemberState:
    if leader.epoch < state.promised.epoch:
        raise _replaced(state, leader.epoch)
    return state._replace(promised=leader)


def check_leader(state: MemberState, epoch: int) -> None:
    """Raise unless a request of this epoch may be looked at. A leader seals before anything else: a
    member that does not remember it has lost its disk since then, and must be asked again."""
    if epoch < state.promised.epoch:
        raise _replaced(state, epoch)
    if epoch > state.promised.epoch:
        raise Unavailable(f"not sealed for epoch {epoch}: seal this member first")


def install(state: MemberState, epoch: int, last_index: int) -> MemberState:
    """Return the state after an installation: the same state if the member has more of this leader,
    because the request came late over an abandoned connection."""
    check_leader(state, epoch)
    if last_index < stored_index(state, epoch):
        return state
    return MemberState(state.promised, epoch, last_index)


def append(state: MemberState, epoch: int, first_index: int, count: int) -> MemberState:
    """Return the state after an append; unchanged if records are missing: it must be installed."""
    check_leader(state, epoch)
    if state.lost or state.file_epoch != epoch or first_index != state.last_index + 1:
        return state
    return state._replace(last_index=state.last_index + count)


def stored_index(state: MemberState, epoch: int) -> int:
    """Return how far the member has what this epoch's leader decided; 0: it must be installed."""
    return 0 if state.lost or state.file_epoch != epoch else state.last_index


def _replaced(state: MemberState, epoch: int) -> NotLeader:
    newer, member, address = state.promised
    return NotLeader(
        f"epoch {epoch} is over: member {member} at {address} leads, or tries to, in epoch {newer}",
        address,
    )

"""Members of the round log: which majorities must agree, and which requests a member accepts. Pure.

While the configuration changes, a decision needs a majority of the old members and a majority of
the new ones, so a later leader finds it whichever of the two it asks.

A member has a promise (the newest leader that sealed it) and one file, with the epoch of the leader
that installed it and the records up to an index. Each function returns the state after a request,
which must be durable before the request is answered.

    seal        by a newer leader: requests of older leaders are refused from now on
    install     by the promised leader: replaces the file
    append      by the promised leader, if the records directly follow those in its file
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeAlias

from loomlog.errors import NotLeader, Unavailable

MemberId: TypeAlias = int


class Configuration(NamedTuple):
    """The members of a round log. `previous` is set only while they change."""

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
        """Return the highest index that a majority has reached, given that of each member."""
        return min(_reached_by_majority(voters, reached) for voters in self._voters())

    def _voters(self) -> list[frozenset[MemberId]]:
        return [self.members, self.previous] if self.previous else [self.members]


def _reached_by_majority(voters: frozenset[MemberId], reached: Mapping[MemberId, int]) -> int:
    ranked = sorted((reached.get(member, 0) for member in voters), reverse=True)
    return ranked[len(voters) // 2]


class Leader(NamedTuple):
    """A leader: its epoch, its member id, and its address for clients and nodes."""

    epoch: int
    member: MemberId
    address: str


NOBODY = Leader(0, 0, "")


class MemberState(NamedTuple):
    promised: Leader = NOBODY
    file_epoch: int = 0  # of the leader that installed the file; 0: there is none
    last_index: int = 0
    lost: bool = False  # it may have lost records: it proves nothing about earlier decisions


def seal(state: MemberState, leader: Leader) -> MemberState:
    if leader.epoch < state.promised.epoch:
        raise _replaced(state, leader.epoch)
    return state._replace(promised=leader)


def check_leader(state: MemberState, epoch: int) -> None:
    """Raise unless this member is sealed for this epoch. A leader seals every member first, so a
    member that does not remember the seal has lost its disk since, and must be sealed again."""
    if epoch < state.promised.epoch:
        raise _replaced(state, epoch)
    if epoch > state.promised.epoch:
        raise Unavailable(f"not sealed for epoch {epoch}: seal this member first")


def install(state: MemberState, epoch: int, last_index: int) -> MemberState:
    """Return the state after an installation. It is unchanged if the member already has more from
    this leader: then the request came late, over an abandoned connection."""
    check_leader(state, epoch)
    if last_index < stored_index(state, epoch):
        return state
    return MemberState(state.promised, epoch, last_index)


def append(state: MemberState, epoch: int, first_index: int, count: int) -> MemberState:
    """Return the state after an append. It is unchanged if records in between are missing: the
    leader then has to install again."""
    check_leader(state, epoch)
    if state.lost or state.file_epoch != epoch or first_index != state.last_index + 1:
        return state
    return state._replace(last_index=state.last_index + count)


def stored_index(state: MemberState, epoch: int) -> int:
    """Return the last index that the member has from this epoch's leader; 0: it has to be
    installed."""
    return 0 if state.lost or state.file_epoch != epoch else state.last_index


def _replaced(state: MemberState, epoch: int) -> NotLeader:
    newer, member, address = state.promised
    return NotLeader(
        f"epoch {epoch} is over: member {member} at {address} leads, or tries to, in epoch {newer}",
        address,
    )

"""The state of a consumer group: its members, the owner of each shard, and committed positions.

It is the value of one register, and every change is one compare-and-swap of the whole value, so no
clock is trusted: a member that was replaced finds itself missing and cannot commit. The id of a
member is the number of its lease and the epoch in which it holds it, such as `3.17`. No two members
ever have the same id.

A shard changes hands when its owner releases it, leaves, or is removed because its lease has
expired. The next owner continues after the position that was committed last.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from loomlog.core.groups.assignment import NOBODY, assign
from loomlog.errors import Corrupt, Fenced, VersionMismatch
from loomlog.types import Glsn, LogId

VERSION: Final = 1


def member_id(slot: int, epoch: int) -> str:
    """Return the id of the member that holds this lease in this epoch."""
    return f"{slot}.{epoch}"


def slot_of(member: str) -> int:
    """Return the number of a member's lease."""
    return int(member.partition(".")[0])


class GroupShard(NamedTuple):
    """A shard: its owner, and the position up to which it was processed."""

    owner: str  # "" while the group has no members
    position: Glsn


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group at one version of its register. Without members, nobody owns a shard."""

    log_id: LogId
    shards: tuple[GroupShard, ...]
    members: Mapping[str, str] = field(default_factory=dict)  # id to the name for people

    @classmethod
    def create(cls, log_id: LogId, shards: int, position: Glsn) -> GroupState:
        """Return a group without members that begins after `position`."""
        return cls(log_id, (GroupShard(NOBODY, position),) * shards)

    def owned_by(self, member: str) -> set[int]:
        return {number for number, shard in enumerate(self.shards) if shard.owner == member}

    def moving_from(self, member: str) -> set[int]:
        """Return the shards that a member has to release."""
        wanted = assign([shard.owner for shard in self.shards], self.members)
        return {number for number in self.owned_by(member) if wanted[number] != member}

    # ---- changes: each returns the next state

    def join(self, member: str, name: str) -> GroupState:
        """Add a member; the former holder of its lease is removed."""
        slot = slot_of(member)
        left = self.remove(former for former in self.members if slot_of(former) == slot)
        return replace(left, members={**left.members, member: name})._settled()

    def remove(self, members: Iterable[str]) -> GroupState:
        """Remove members that left or whose leases have expired."""
        gone = set(members)
        kept = {member: name for member, name in self.members.items() if member not in gone}
        shards = tuple(s._replace(owner=NOBODY) if s.owner in gone else s for s in self.shards)
        return replace(self, members=kept, shards=shards)._settled()

    def commit(
        self, member: str, positions: Mapping[int, Glsn], release: Collection[int] = ()
    ) -> GroupState:
        """Record how far a member has processed its shards, and let it `release` some."""
        shards = list(self.shards)
        for number, position in positions.items():
            if self.shards[number].owner != member:
                raise fenced(member)
            owner = NOBODY if number in release else member
            shards[number] = GroupShard(owner, max(position, self.shards[number].position))
        return replace(self, shards=tuple(shards))._settled()

    def reset(self, position: Glsn) -> GroupState:
        """Let every shard continue after `position`, and remove all members."""
        return GroupState.create(self.log_id, len(self.shards), position)

    def _settled(self) -> GroupState:
        """Assign shards without an owner."""
        if not self.members:
            return self
        wanted = assign([shard.owner for shard in self.shards], self.members)
        shards = zip(self.shards, wanted, strict=True)
        return replace(self, shards=tuple(s if s.owner else s._replace(owner=w) for s, w in shards))

    # ---- as a value

    def encode(self) -> bytes:
        fields = {
            "version": VERSION,
            "log": self.log_id,
            "members": dict(self.members),
            "shards": self.shards,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> GroupState:
        try:
            fields = json.loads(value)
            version = fields["version"]
            if version == VERSION:
                shards = tuple(GroupShard(str(o), int(p)) for o, p in fields["shards"])
                return cls(int(fields["log"]), shards, dict(fields["members"]))
        except (ValueError, KeyError, TypeError):
            raise Corrupt(
                "the register does not hold a consumer group: did another program write it?"
            ) from None
        raise VersionMismatch(
            f"the consumer group is of version {version}, this program knows {VERSION}: update it"
        )


def fenced(member: str, why: str = "it was silent for too long or its group was reset") -> Fenced:
    return Fenced(
        f"member {member} was replaced, because {why}: join it again; what was not committed is "
        "handed out again"
    )

"""The members and the leader of the metadata repository, as recorded in the MetaStore.

leader              the newest epoch and its leader; the fence of all that a leader writes
metadata/members    the members of the round log, and during a change the previous ones
metadata/started/N  written before member N creates its first file: if the file is missing later,
                    it was lost
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from loomlog.core.quorum.member import NOBODY, Configuration, Leader, MemberId
from loomlog.errors import (
    AlreadyExists,
    Busy,
    Conflict,
    InvalidArgument,
    NotFound,
    NotLeader,
    Unavailable,
)
from loomlog.metadata.catalog.records import (
    LeaderRecord,
    MembersRecord,
    StartedRecord,
    decode,
    encode,
)
from loomlog.metadata.store.contract import MetaStore
from loomlog.net.address import split_address
from loomlog.wire import loomlog_pb2 as pb

LEADER: Final = "leader"
_MEMBERS: Final = "metadata/members"
_STARTED: Final = "metadata/started/"


@dataclass(frozen=True, slots=True)
class Membership:
    """The members by id and address; `previous` only while they change."""

    members: Mapping[MemberId, str]
    previous: Mapping[MemberId, str]
    version: int

    @property
    def configuration(self) -> Configuration:
        return Configuration(frozenset(self.members), frozenset(self.previous))

    @property
    def addresses(self) -> dict[MemberId, str]:
        return {**self.previous, **self.members}


async def read_leader(store: MetaStore) -> tuple[Leader, int]:
    """Return the newest leader and the version of its record; NOBODY and 0 if there was none."""
    item = await store.get(LEADER)
    if item is None:
        return NOBODY, 0
    record = decode(LeaderRecord, LEADER, item.value)
    return Leader(record.epoch, record.member, record.address), item.version


async def check_granted(store: MetaStore, leader: Leader) -> None:
    """Raise unless this leader is in the MetaStore: no other may replace a member's leader. Raise
    NotLeader if it led, but a newer one leads now."""
    newest, _ = await read_leader(store)
    if leader.epoch < newest.epoch:
        raise NotLeader(f"epoch {leader.epoch} is over: {newest.epoch} has begun", newest.address)
    if leader != newest:
        raise Unavailable(
            f"the MetaStore knows no leader of epoch {leader.epoch} at {leader.address}: "
            f"the newest epoch is {newest.epoch}"
        )


async def take_epoch(store: MetaStore, leader: Leader, version: int) -> int:
    """Write a new leader and return the version; Conflict if another process was faster."""
    record = LeaderRecord(leader.epoch, leader.member, leader.address)
    return await store.compare_and_swap(LEADER, version, encode(record))


async def read_membership(store: MetaStore, peers: Mapping[MemberId, str]) -> Membership:
    """Return the members; in a new cluster, the `peers` of their command lines."""
    while True:
        item = await store.get(_MEMBERS)
        if item is not None:
            record = decode(MembersRecord, _MEMBERS, item.value)
            return Membership(dict(record.members), dict(record.previous), item.version)
        try:
            await _write(store, Membership(peers, {}, 0))
        except Conflict:
            pass  # another member was faster


async def change_is_over(store: MetaStore, membership: Membership) -> Membership:
    """Record that the previous members no longer count."""
    settled = Membership(membership.members, {}, membership.version)
    return Membership(settled.members, {}, await _write(store, settled))


async def change_members(
    store: MetaStore, membership: Membership, request: pb.ChangeMetadata
) -> Membership:
    """Write new members. From then on majorities of both the old and the new ones are needed."""
    if membership.previous:
        raise Busy("the metadata repositories are just being changed: try again")
    members = _changed(dict(membership.members), request)
    changed = Membership(members, membership.members, membership.version)
    return Membership(members, membership.members, await _write(store, changed))


def _changed(members: dict[MemberId, str], request: pb.ChangeMetadata) -> dict[MemberId, str]:
    member = request.member_id
    if request.action == pb.ChangeMetadata.ADD:
        split_address(request.address)
        if not member:
            raise InvalidArgument("a metadata repository has an id above 0")
        if member in members:
            raise AlreadyExists(f"metadata repository {member} is at {members[member]} already")
        return members | {member: request.address}
    if request.action == pb.ChangeMetadata.REMOVE:
        if member not in members:
            raise NotFound(f"there is no metadata repository {member}: look at `loom status`")
        if len(members) == 1:
            raise InvalidArgument("the last metadata repository cannot be removed")
        return {other: address for other, address in members.items() if other != member}
    raise InvalidArgument("add or remove a metadata repository")


def beginning(epoch: int, peers: Mapping[MemberId, str]) -> dict[str, bytes]:
    """Return the initial items of a store for these members, whose last leader had this epoch."""
    members = MembersRecord(tuple(sorted(peers.items())))
    return {LEADER: encode(LeaderRecord(epoch, *NOBODY[1:])), _MEMBERS: encode(members)}


async def known_membership(store: MetaStore) -> Membership:
    """Return the members, or raise NotFound if there never were any."""
    if await store.get(_MEMBERS) is None:
        raise NotFound("no metadata repository was ever started on this etcd and prefix")
    return await read_membership(store, {})


async def raise_epoch(store: MetaStore, epoch: int) -> None:
    """Let the next leader have a higher epoch than this."""
    newest, version = await read_leader(store)
    if newest.epoch < epoch:
        await take_epoch(store, Leader(epoch, *NOBODY[1:]), version)


async def forget_starts(store: MetaStore) -> None:
    """Let all members begin as new ones, because their data is lost."""
    for key, item in (await store.list(_STARTED)).items():
        await store.compare_and_swap(key, item.version, None)


async def _write(store: MetaStore, membership: Membership) -> int:
    members, previous = membership.members.items(), membership.previous.items()
    record = MembersRecord(tuple(sorted(members)), tuple(sorted(previous)))
    return await store.compare_and_swap(_MEMBERS, membership.version, encode(record))


async def has_lost_nothing(store: MetaStore, member: MemberId) -> bool:
    """Return whether a member without files never had any that count."""
    key = f"{_STARTED}{member}"
    try:
        await store.compare_and_swap(key, 0, encode(StartedRecord(member)))
    except Conflict:
        leader, _ = await read_leader(store)
        return leader == NOBODY  # without a leader nothing was ever decided
    return True

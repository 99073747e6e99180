"""Which metadata repositories there are, and who leads: what the MetaStore has of it.

leader              the newest epoch and who took it; the fence of all that a leader writes
metadata/members    the members of the round log, and those before a change until it is over
metadata/started/N  written before member N makes its first file: if the file is missing later, it
                    was lost
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from loomlog.core.quorum.majority import Configuration, MemberId
from loomlog.core.quorum.member import NOBODY, Leader
from loomlog.errors import AlreadyExists, Busy, Conflict, InvalidArgument, NotFound
from loomlog.metadata.records import LeaderRecord, MembersRecord, StartedRecord, decode, encode
from loomlog.metadata.store import MetaStore
from loomlog.net.address import split_address
from loomlog.wire import loomlog_pb2 as pb

LEADER: Final = "leader"
_MEMBERS: Final = "metadata/members"
_STARTED: Final = "metadata/started/"


@dataclass(frozen=True, slots=True)
class Membership:
    """Who is a member, by id and address; `previous` only while that changes."""

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
    """The newest one, and the version of its record; NOBODY and 0 if there never was one."""
    item = await store.get(LEADER)
    if item is None:
        return NOBODY, 0
    record = decode(LeaderRecord, LEADER, item.value)
    return Leader(record.epoch, record.member, record.address), item.version


async def take_epoch(store: MetaStore, leader: Leader, version: int) -> int:
    """The new version of the leader's record; Conflict if somebody else was faster."""
    record = LeaderRecord(leader.epoch, leader.member, leader.address)
    return await store.compare_and_swap(LEADER, version, encode(record))


async def read_membership(store: MetaStore, peers: Mapping[MemberId, str]) -> Membership:
    """As it is; in a new cluster the `peers` that its members were started with."""
    while True:
        item = await store.get(_MEMBERS)
        if item is not None:
            record = decode(MembersRecord, _MEMBERS, item.value)
            return Membership(dict(record.members), dict(record.previous), item.version)
        try:
            await _write(store, Membership(peers, {}, 0))
        except Conflict:
            pass  # another one was as fast


async def change_is_over(store: MetaStore, membership: Membership) -> Membership:
    """The members of before do not count any more."""
    settled = Membership(membership.members, {}, membership.version)
    return Membership(settled.members, {}, await _write(store, settled))


async def change_members(
    store: MetaStore, membership: Membership, request: pb.ChangeMetadata
) -> Membership:
    """From the write on, both those before and those after have to agree to everything."""
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
    """What a store needs for these to lead a cluster whose last leader had this epoch."""
    members = MembersRecord(tuple(sorted(peers.items())))
    return {LEADER: encode(LeaderRecord(epoch, *NOBODY[1:])), _MEMBERS: encode(members)}


async def known_membership(store: MetaStore) -> Membership:
    """As it is; NotFound if there never was one."""
    if await store.get(_MEMBERS) is None:
        raise NotFound("no metadata repository was ever started on this etcd and prefix")
    return await read_membership(store, {})


async def forget_starts(store: MetaStore) -> None:
    """All members begin as new ones: what they had is lost, and not missed any more."""
    for key, item in (await store.list(_STARTED)).items():
        await store.compare_and_swap(key, item.version, None)


async def _write(store: MetaStore, membership: Membership) -> int:
    members, previous = membership.members.items(), membership.previous.items()
    record = MembersRecord(tuple(sorted(members)), tuple(sorted(previous)))
    return await store.compare_and_swap(_MEMBERS, membership.version, encode(record))


async def has_lost_nothing(store: MetaStore, member: MemberId) -> bool:
    """For a member that finds no files: whether it never had any that count."""
    key = f"{_STARTED}{member}"
    try:
        await store.compare_and_swap(key, 0, encode(StartedRecord(member)))
    except Conflict:
        leader, _ = await read_leader(store)
        return leader == NOBODY  # without a leader nothing was ever decided
    return True

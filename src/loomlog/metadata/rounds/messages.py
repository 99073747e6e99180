"""Records of the round log in messages: sizes and a checksum in the header, bytes as payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from crc32c import crc32c

from loomlog.core.quorum.majority import MemberId
from loomlog.core.quorum.member import Leader
from loomlog.core.quorum.progress import Append, Install, Message, Read, Seal
from loomlog.errors import Corrupt
from loomlog.wire import loomlog_pb2 as pb


class Described(TypedDict):
    """A header's description of the records in its payload."""

    sizes: list[int]
    crc: int


def describe(records: Sequence[bytes]) -> Described:
    """Return the sizes and the checksum of records."""
    crc = 0
    for record in records:
        crc = int(crc32c(record, crc))
    return {"sizes": [len(record) for record in records], "crc": crc}


def records_in(
    described: pb.RoundTail | pb.RoundInstall | pb.RoundAppend, payload: memoryview
) -> list[bytes]:
    if sum(described.sizes) != len(payload) or int(crc32c(payload)) != described.crc:
        raise Corrupt("records of the round log do not match their checksum: send them again")
    records = []
    at = 0
    for size in described.sizes:
        records.append(bytes(payload[at : at + size]))
        at += size
    return records


def frame_of(message: Message, leader: Leader, member: MemberId) -> tuple[pb.Frame, list[bytes]]:
    """Return what a leader sends to a member, as a frame."""
    epoch, number, address = leader
    match message:
        case Seal():
            seal = pb.RoundSeal(epoch=epoch, leader=number, address=address, member=member)
            return pb.Frame(round_seal=seal), []
        case Read():
            return pb.Frame(round_read=pb.RoundRead(epoch=epoch)), []
        case Install(last_index, records):
            install = pb.RoundInstall(epoch=epoch, last_index=last_index, **describe(records))
            return pb.Frame(round_install=install), records
        case Append(first_index, records):
            append = pb.RoundAppend(epoch=epoch, first_index=first_index, **describe(records))
            return pb.Frame(round_append=append), records


def leader_in(seal: pb.RoundSeal) -> Leader:
    member: MemberId = seal.leader
    return Leader(seal.epoch, member, seal.address)

"""Requests of epochs that nobody was granted change nothing on a node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from copyset_rig import LOG, STAMP, CopysetRig
from node_services import shard_on

from loomlog import columns
from loomlog.batch import assign_llsn, assign_position
from loomlog.core.copyset.messages import Clean, EpochEnd, NodeRequest, Release, Seal, Store
from loomlog.core.copyset.record import EPOCH_MAX, LSN_MAX, Kind, Record, make
from loomlog.errors import LoomError, Unavailable
from loomlog.net.endpoints import connect
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.copyset import request_to_wire
from loomlog.wire.link import OnlyAnswers


def store(epoch: int) -> Store:
    first = make(epoch, 1)
    batch = bytearray(columns.encode([b"forged"], timestamps_us=1))
    assign_llsn(batch, 3, epoch, first)
    assign_position(batch, first)
    return Store(LOG, Record(first, 1, Kind.DATA, 1, (1, 2), 1, 0, 0, bytes(batch)))


FORGED = [
    Seal(LOG, 7),
    Seal(LOG, EPOCH_MAX - 1),
    Clean(LOG, 7, EpochEnd(7, 0, 0, 7, 1)),
    store(2),
    store(EPOCH_MAX),
]


@pytest.mark.parametrize("forged", FORGED, ids=lambda forged: type(forged).__name__)
async def test_an_epoch_that_was_not_granted_is_refused(
    tmp_path: Path, forged: NodeRequest
) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        placed = [await rig.append(first)]
        for node in rig.nodes.values():
            peer = await connect(node.address, Codec("client", cluster_id="test"), OnlyAnswers())
            message, batch = request_to_wire(0, forged, STAMP)
            with pytest.raises(Unavailable, match="never granted"):
                await peer.request(pb.Frame(copyset_request=message), (batch,) if batch else ())
            release, _ = request_to_wire(0, Release(LOG, LSN_MAX), STAMP)
            peer.send(pb.Frame(copyset_request=release))
            peer.close()
        placed.append(await rig.append(first))
        rig.epochs.dead.add(first)
        placed.append(await rig.append(second))
        assert placed == [make(1, 1), make(1, 2), make(2, 1)]
        await rig.shows(placed)
        standing = [shard_on(node).copies.standing(LOG) for node in rig.nodes.values()]
        assert all(found.seal < 3 and found.released <= make(2, 1) for found in standing)


@pytest.mark.parametrize(
    "message",
    [
        pb.CopysetRequest(kind=pb.CopysetRequest.SEAL, loglet_id=LOG, epoch=(1 << 64) - 1),
        pb.CopysetRequest(kind=pb.CopysetRequest.RELEASE, loglet_id=LOG, lsn=(1 << 64) - 1),
        pb.CopysetRequest(
            kind=pb.CopysetRequest.CLEAN,
            loglet_id=LOG,
            seal=(1 << 64) - 1,
            end=pb.CopysetEnd(epoch=(1 << 64) - 1, last=(1 << 64) - 1),
        ),
    ],
    ids=["seal", "release", "clean"],
)
async def test_numbers_that_no_epoch_can_have_are_refused(
    tmp_path: Path, message: pb.CopysetRequest
) -> None:
    async with CopysetRig(tmp_path) as rig:
        placed = [await rig.append()]
        node = rig.nodes[1]
        peer = await connect(node.address, Codec("client", cluster_id="test"), OnlyAnswers())
        with pytest.raises(LoomError, match="never granted"):
            await peer.request(pb.Frame(copyset_request=message))
        peer.close()
        placed.append(await rig.append())
        await rig.shows(placed)


async def test_a_release_is_taken_as_soon_as_its_epoch_can_be_asked_about(tmp_path: Path) -> None:
    """A sequencer sends it once, and nothing more is appended."""
    async with CopysetRig(tmp_path, nodes=3, replication=2) as rig:
        first, _, third = rig.favourites
        await rig.append(first)
        await rig.stop(first)
        await rig.start(first)
        rig.epochs.unanswered[third] = asyncio.Event()
        assert await rig.append(first) == make(2, 1)
        while not (await rig.tail(first)).released:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        await asyncio.wait_for(rig.epochs.unanswered[third].wait(), 10)
        copies = shard_on(rig.nodes[third]).copies
        assert copies.standing(LOG).released < make(2, 0)
        del rig.epochs.unanswered[third]
        async with asyncio.timeout(10):  # less than the time between two releases to all nodes
            while copies.standing(LOG).released < make(2, 0):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)

"""Replicas that may have forgotten blocks in a crash, as the metadata repository says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chained_node_rig import EPOCH, LOGLET, ChainNodes, block, replica
from node_rig import PATIENCE_S

from loomlog.core.chained.messages import Fetch, Found, Read, Seal, SealedAt, Stored, Write
from loomlog.core.chained.replica import FORGETFUL, Standing
from loomlog.node.chained.forgetful import ForgetfulReplicas
from loomlog.wire import loomlog_pb2 as pb

FORGOTTEN = pb.ChainReplicaRef(loglet_id=LOGLET, chain=0, birth=1)


async def test_a_node_that_registered_before_its_epoch_was_in_force_asks_again(
    tmp_path: Path,
) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        assert await nodes.ask(Write(EPOCH, block(1))) == Stored()
        nodes.metadata.forgetful = [FORGOTTEN]
        await nodes.restart(1)
        assert await nodes.ask(Read(EPOCH, 1)) == FORGETFUL
        nodes.metadata.forgetful = []  # the epoch is in force now
        async with asyncio.timeout(PATIENCE_S):
            while (answer := await nodes.ask(Read(EPOCH, 1))) == FORGETFUL:
                pass
        assert answer == Found(block(1))


async def test_a_replica_serves_again_once_it_is_sealed(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        nodes.metadata.forgetful = [FORGOTTEN]
        await nodes.restart(1)
        assert await nodes.ask(Write(EPOCH, block(1))) == FORGETFUL
        assert await nodes.order_when_connected(Seal(EPOCH + 1)) == SealedAt(0, 0)
        assert await nodes.ask(Write(EPOCH + 1, block(1))) == Stored()


@pytest.mark.parametrize(
    ("epoch", "sealed_at", "asks"),
    [(EPOCH, EPOCH, True), (EPOCH, EPOCH + 1, False), (EPOCH + 1, EPOCH, False), (0, 0, False)],
)
async def test_only_requests_of_the_epoch_of_a_replica_are_a_reason_to_ask(
    monkeypatch: pytest.MonkeyPatch, epoch: int, sealed_at: int, asks: bool
) -> None:
    asked: list[bool] = []
    forgetful = ForgetfulReplicas(lambda: asked.append(True))
    forgetful.registered([replica()])
    request, standing = Fetch(epoch, 1, 100), Standing(sealed_at)
    forgetful.refused(replica(), request, standing)
    assert not asked  # it has just been told
    monkeypatch.setattr("loomlog.node.chained.forgetful.ASK_AGAIN_S", 0.0)
    forgetful.refused(replica(), request, standing)
    forgetful.refused(replica(chain=1), request, standing)
    assert bool(asked) == asks
    forgetful.sealed(replica())
    assert not forgetful.replicas

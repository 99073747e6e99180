"""A node ends all that it still did for a log that is deleted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from copyset_rig import LOG, PATIENCE_S, STAMP, CopysetRig
from node_services import copyset_on

from loomlog.core.copyset.messages import FindBatch, Forget
from loomlog.core.copyset.record import make
from loomlog.errors import NotLeader, Sealed
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import request_to_wire


async def test_nobody_tries_to_learn_how_epochs_of_a_deleted_log_ended(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path, nodes=2) as rig:
        node = rig.favourites[-1]
        await rig.append()
        service = copyset_on(rig.nodes[node])
        service._shards.get(0).catch_up.missed(LOG, make(5, 0))
        await forget(rig, node)
        async with asyncio.timeout(PATIENCE_S):
            while any("_purge" in repr(task) for task in service._tasks):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_one_task_asks_who_is_alive_however_often_logs_come_and_go(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path, nodes=2) as rig:
        service = copyset_on(rig.nodes[rig.favourites[0]])
        for _ in range(3):
            await rig.append()
            await forget(rig, rig.favourites[0])
        assert sum("_refresh" in repr(task) for task in service._tasks) == 1


async def test_nobody_recovers_a_deleted_log(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path, nodes=3) as rig:
        first, second, third = rig.favourites
        await rig.append()
        await rig.stop(first)
        await rig.stop(third)
        rig.epochs.state = replace(rig.epochs.state, epoch=2, sequencer=second, closed=True)
        order = pb.Frame(recover_copyset=pb.RecoverCopyset(state=rig.epochs.to_wire()))
        recovering = asyncio.ensure_future(rig.epochs.connections[second].request(order))
        service = copyset_on(rig.nodes[second])
        async with asyncio.timeout(PATIENCE_S):
            while not service._recoveries._running:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            await forget(rig, second)
            with pytest.raises(Sealed):
                await recovering
        assert not service._recoveries._running


async def test_what_was_asked_of_logs_that_are_not_sequenced_here_is_not_kept(
    tmp_path: Path,
) -> None:
    async with CopysetRig(tmp_path, nodes=2) as rig:
        first, second = rig.favourites
        await rig.append(first)
        with pytest.raises(NotLeader):
            await rig.append(second)
        await rig.copies(second, FindBatch(LOG + 1, producer_id=1, sequence=1))
        service = copyset_on(rig.nodes[second])
        assert LOG + 1 not in service._shards.get(0).copies.marks._logs
        async with asyncio.timeout(PATIENCE_S):
            while service._sequencers._slots:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        assert copyset_on(rig.nodes[first]).tails() == {LOG: make(1, 1)}


async def forget(rig: CopysetRig, node: int) -> None:
    message, _ = request_to_wire(0, Forget(LOG), STAMP)
    await rig.epochs.connections[node].request(pb.Frame(copyset_request=message))

"""What a node still did for a log that is deleted comes to an end."""

from __future__ import annotations

import asyncio
from pathlib import Path

from copyset_rig import LOG, PATIENCE_S, CopysetRig

from loomlog.core.copyset.lsn import make
from loomlog.core.copyset.messages import Forget
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import request_to_wire


async def test_nobody_tries_to_learn_how_epochs_of_a_deleted_log_ended(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path, nodes=2) as rig:
        node = rig.favourites[-1]
        await rig.append()
        catching_up = rig.nodes[node]._copysets._catching_up
        catching_up.missed(LOG, make(5, 0))
        await forget(rig, node)
        async with asyncio.timeout(PATIENCE_S):
            while any("_purge" in repr(task) for task in rig.nodes[node]._copysets._tasks):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_one_task_asks_who_is_alive_however_often_logs_come_and_go(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path, nodes=2) as rig:
        copysets = rig.nodes[rig.favourites[0]]._copysets
        for _ in range(3):
            await rig.append()
            await forget(rig, rig.favourites[0])
        assert sum("_refresh" in repr(task) for task in copysets._tasks) == 1


async def forget(rig: CopysetRig, node: int) -> None:
    message, _ = request_to_wire(Forget(LOG))
    await rig.epochs.connections[node].request(pb.Frame(copyset_request=message))

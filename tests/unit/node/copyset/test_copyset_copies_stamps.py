"""Copies of a log are shown, changed and deleted only for who names the stamp of its creation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from copyset_rig import LOG, STAMP, CopysetRig

from loomlog.core.copyset.messages import (
    Delivered,
    Done,
    Forget,
    NodeAnswer,
    NotHere,
    Read,
    Refused,
    Seal,
    Trim,
)
from loomlog.core.copyset.record import LSN_MAX
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import answer_from_wire, request_to_wire

READ = Read(LOG, 1, LSN_MAX, 1 << 24, everything=True)


async def order(rig: CopysetRig, node: int, request: Forget | Trim, stamp: int) -> NodeAnswer:
    """Ask as the metadata repository."""
    message, _ = request_to_wire(0, request, stamp)
    frame = pb.Frame(copyset_request=message)
    answer, payload = await rig.epochs.connections[node].request(frame)
    return answer_from_wire(answer.copyset_answer, payload)


async def test_another_log_of_the_same_number_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with CopysetRig(tmp_path, nodes=2) as rig:
        lsn = await rig.append()
        await rig.shows([lsn])
        for node in (1, 2):
            assert await order(rig, node, Forget(LOG), 7) == NotHere()
            await rig.stop(node)
            await rig.start(node)
            assert rig.epochs.registrations[node].highest_log_id == LOG
            assert await order(rig, node, Forget(LOG), 7) == NotHere()
            assert await order(rig, node, Trim(LOG, LSN_MAX), 7) == NotHere()
            for request in (READ, Seal(LOG, 0)):
                refused = await rig.copies(node, request, stamp=7)
                assert isinstance(refused, Refused)
                assert "stamp 0000000000005eed, the request is for 00" in refused.reason
        await rig.shows([lsn])
        assert caplog.text.count("nothing is deleted: loglet 7 is kept here") == 6
        for node in (1, 2):
            assert await order(rig, node, Forget(LOG), STAMP) == Done()
            assert await order(rig, node, Forget(LOG), STAMP) == Done()
            answer = await rig.copies(node, READ, stamp=7)
            assert isinstance(answer, Delivered), "the number is free again"


@pytest.mark.parametrize("owner", ["of another node", "unknown"])
async def test_copies_that_were_not_made_here_are_not_opened(tmp_path: Path, owner: str) -> None:
    async with CopysetRig(tmp_path, nodes=2) as rig:
        lsn = await rig.append()
        await rig.shows([lsn])
        await rig.stop(1)
        await rig.stop(2)
        logs = next(rig.path(1).rglob("logs"))
        if owner == "unknown":
            (logs / "owner").unlink()
        else:
            shutil.rmtree(logs)
            shutil.copytree(next(rig.path(2).rglob("logs")), logs)
        await rig.start(1)
        refused = await rig.copies(1, READ)
        assert isinstance(refused, Refused)
        assert ("storage node 2, not to" if owner != "unknown" else "no file") in refused.reason
        (condition,) = rig.epochs.registrations[1].conditions.conditions
        assert str(logs) in condition.text

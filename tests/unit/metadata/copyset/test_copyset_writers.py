"""Writers report acknowledged entries that all nodes have forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_cluster import SmallCluster

from loomlog.core.copyset.late_losses import FORGOTTEN_MAX
from loomlog.core.copyset.record import Lsn, make
from loomlog.errors import InvalidArgument, NotFound, Unavailable
from loomlog.wire import loomlog_pb2 as pb


def report(loglet: int, *ranges: tuple[Lsn, Lsn]) -> pb.Frame:
    claimed = [pb.CopysetRange(first=first, last=last) for first, last in ranges]
    return pb.Frame(report_forgotten=pb.ReportForgotten(loglet_id=loglet, ranges=claimed))


async def test_it_is_recorded_once_the_epoch_is_recovered(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        one, two = cluster.vsn(1), cluster.vsn(2)
        await one.activate(loglet, 0)
        mine = report(loglet, (make(1, 2), make(1, 3)))
        with pytest.raises(Unavailable, match=r"epoch 1 .* is not recovered"):
            await cluster.client.ask(mine)
        await two.activate(loglet, 1)
        await two.set_clean(loglet, 2, 1, make(1, 5))  # and nothing was found in it
        for _ in range(2):
            await cluster.client.ask(mine)
            [end] = (await one.get(loglet)).ends
            assert [(lost.first, lost.last) for lost in end.lost] == [(2, 3)]
            assert end.uncertain


async def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path, scripted=3) as cluster:
        loglet = (await cluster.create_copyset()).log_id
        with pytest.raises(InvalidArgument, match="too many at a time"):
            await cluster.client.ask(report(loglet, *[(1, 1)] * (FORGOTTEN_MAX + 1)))
        with pytest.raises(NotFound):
            await cluster.client.ask(report(loglet + 1, (make(1, 1), make(1, 1))))

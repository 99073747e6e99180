"""A node reports entries as lost only if all shards that may have them lack them."""

from __future__ import annotations

from pathlib import Path

import pytest
from copyset_rig import LOG, CopysetRig

from loomlog.wire import loomlog_pb2 as pb


@pytest.mark.parametrize(
    ("is_lost", "left", "lost"),
    [(False, 1, []), (True, 0, [1])],
    ids=["drained, or expected back", "given up"],
)
async def test_a_silent_node_whose_copies_are_rebuilt_may_have_the_only_ones(
    tmp_path: Path, is_lost: bool, left: int, lost: list[int]
) -> None:
    async with CopysetRig(tmp_path, nodes=2, replication=1) as rig:
        first, second = rig.favourites
        placed = [await rig.append() for _ in range(20)]
        await rig.shows(placed)
        await rig.stop(first)
        await rig.start(first)  # it takes epoch 2, and recovers epoch 1
        placed.append(await rig.append())
        await rig.shows(placed)
        assert (await rig.shown(second)).records, "some are only there"
        rig.epochs.rebuilt = [pb.CopysetThrough(shard=second, epoch=2, lost=is_lost)]
        await rig.stop(second)
        order = pb.CheckCopyset(loglet_id=LOG, shard=first, epochs=[1])
        checked = (await rig.ordered(first, pb.Frame(check_copyset=order))).copyset_checked
        assert (checked.left, list(checked.lost)) == (left, lost)

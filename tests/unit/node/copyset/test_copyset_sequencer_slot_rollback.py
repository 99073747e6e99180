"""After the epoch store went back in time, no append is acknowledged at a used position."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from copyset_rig import CopysetRig

from loomlog.core.copyset.record import make
from loomlog.errors import LoomError, RolledBack

pytestmark = pytest.mark.timeout(60)


async def is_refused_for_good(rig: CopysetRig, node: int) -> None:
    """Append until that is refused for good: some time may pass before it is known."""
    refusal: LoomError | None = None
    while not isinstance(refusal, RolledBack):
        with pytest.raises(LoomError) as refused:
            await rig.append(node)
        refusal = refused.value


@pytest.mark.parametrize("restarted", [False, True], ids=["nodes stay", "nodes restart"])
async def test_an_epoch_is_not_used_twice(tmp_path: Path, restarted: bool) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        backup = rig.epochs.state
        before = [await rig.append(count=2) for _ in range(10)]
        if restarted:
            for node in list(rig.nodes):
                await rig.stop(node)
                await rig.start(node)
        rig.epochs.state = backup
        rig.epochs.dead.add(first)  # another one takes the epoch
        await is_refused_for_good(rig, second)
        assert rig.epochs.contradictions
        data = await rig.data()
        assert set(data) <= set(before)


async def test_an_epoch_below_what_nodes_know_is_not_used(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, third, *_ = rig.favourites
        backup = rig.epochs.state
        await rig.append(first)
        rig.epochs.dead.add(first)
        await rig.append(second)
        rig.epochs.dead.add(second)
        await rig.append(third)
        await rig.shows({make(epoch, 1) for epoch in (1, 2, 3)})
        rig.epochs.dead = {second, third}
        rig.epochs.state = replace(backup, epoch=0)
        await is_refused_for_good(rig, first)
        assert set(await rig.data()) == {make(epoch, 1) for epoch in (1, 2, 3)}

"""Appends arrive late, or wait while another node sequences. Their clients may have repeated them
elsewhere since, so no later epoch accepts them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from copyset_rig import CopysetRig

from loomlog.core.copyset.record import make
from loomlog.errors import NotLeader


async def test_a_sequencer_that_was_replaced_takes_nothing_that_was_repeated(
    tmp_path: Path,
) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        await rig.append(first, producer_id=5, sequence=1, epoch=1)
        rig.epochs.dead.add(first)  # as the metadata repository believes
        repeated = await rig.append(second, producer_id=5, sequence=2, repeated=True, epoch=1)
        assert repeated == make(2, 1)
        rig.epochs.dead.discard(first)
        with suppress(NotLeader):  # it may know already that it was replaced
            assert not await rig.append(first, producer_id=5, sequence=2, epoch=1)
        await rig.append(second, epoch=rig.epochs.state.epoch)
        numbers = [record.first for record in (await rig.data()).values()]
        assert numbers[:2] == [make(1, 1), make(2, 1)]
        assert len(numbers) == 3


async def test_an_append_is_taken_in_the_epoch_that_it_was_sent_for(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        assert not await rig.append(first, epoch=2)
        assert await rig.append(first, epoch=1) == make(1, 1)
        rig.epochs.dead.add(first)
        assert not await rig.append(second, epoch=1)
        assert await rig.append(second, epoch=2) == make(2, 1)


async def test_a_repeated_append_is_taken_in_no_epoch_before_its_own(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        assert await rig.append(first, epoch=1) == make(1, 1)
        assert not await rig.append(first, producer_id=5, sequence=1, repeated=True, epoch=2)
        rig.epochs.dead.add(first)
        assert await rig.append(second, producer_id=5, sequence=1, repeated=True, epoch=2) == make(
            2, 1
        )

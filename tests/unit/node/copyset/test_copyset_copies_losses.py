"""A node that lost its copies does not count as one that never had them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from copyset_rig import LOG, CopysetRig
from node_services import shard_on

from loomlog.core.copyset.messages import (
    FindBatch,
    FoundBatch,
    Preempted,
    Refused,
    Seal,
    SealedAt,
    Store,
)
from loomlog.core.copyset.record import Kind, Record, make


@pytest.mark.parametrize("what", ["", "logs"], ids=["all volumes", "its copies"])
async def test_a_node_that_lost_its_disk_says_so(tmp_path: Path, what: str) -> None:
    async with CopysetRig(tmp_path, nodes=3, replication=2) as rig:
        _, second, third = rig.favourites
        placed = [await rig.append() for _ in range(10)]
        await rig.shows(placed)
        await rig.stop(third)
        rig.wipe(third, what)
        await rig.start(third)
        assert (await rig.shown(third)).lost_through == 1
        sealed = await rig.copies(third, Seal(LOG, 0, wave=0))
        assert isinstance(sealed, SealedAt)
        assert sealed.lost_through == 1
        assert not (await rig.shown(second)).lost_through
        await rig.stop(third)
        await rig.start(third)
        assert (await rig.shown(third)).lost_through == 1, "it forgot that it forgot"


async def test_it_takes_nothing_of_sequencers_that_were_replaced(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path, nodes=3, replication=2) as rig:
        first, second, third = rig.favourites
        await rig.append(first)
        await rig.stop(first)
        await rig.append(second)
        await rig.stop(third)
        rig.wipe(third)
        await rig.start(third)
        late = Record(make(1, 9), 1, Kind.HOLE, 0, (first, third), 1, 0)
        assert await rig.copies(third, Store(LOG, late)) == Preempted(1)


async def test_what_is_lost_is_found_on_the_others_when_an_epoch_is_recovered(
    tmp_path: Path,
) -> None:
    async with CopysetRig(tmp_path, nodes=3, replication=2) as rig:
        first, second, third = rig.favourites
        placed = [await rig.append() for _ in range(20)]
        await rig.stop(third)
        rig.wipe(third)
        await rig.start(third)
        rig.epochs.dead.add(first)  # alive, but another one takes over
        placed.append(await rig.append(second))
        await rig.shows(placed)


async def test_a_node_that_kept_its_copies_goes_on_as_before(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path, nodes=3, replication=2) as rig:
        placed = [await rig.append() for _ in range(10)]
        await rig.shows(placed)
        for node in rig.favourites:
            await rig.stop(node)
            await rig.start(node)
            assert not (await rig.shown(node)).lost_through
        placed.append(await rig.append())
        await rig.shows(placed)


async def test_a_node_whose_copies_cannot_be_opened_refuses_and_others_go_on(
    tmp_path: Path,
) -> None:
    async with CopysetRig(tmp_path, nodes=3, replication=2) as rig:
        third = rig.favourites[-1]
        placed = [await rig.append() for _ in range(10)]
        await rig.stop(third)
        current = next(rig.path(third).rglob("logs/CURRENT"))
        current.write_text("no manifest\n")
        await rig.start(third)
        assert isinstance(await rig.copies(third, Seal(LOG, 0, wave=0)), Refused)
        placed += [await rig.append() for _ in range(10)]
        assert len(set(placed)) == 20


@pytest.mark.parametrize("left", ["nothing", "all but CURRENT"])
async def test_copies_that_were_emptied_are_not_taken_for_new_ones(
    tmp_path: Path, left: str
) -> None:
    async with CopysetRig(tmp_path, nodes=3, replication=2) as rig:
        third = rig.favourites[-1]
        await rig.append()
        await rig.stop(third)
        copies = next(rig.path(third).rglob("logs"))
        if left == "nothing":
            shutil.rmtree(copies)
            copies.mkdir()
        else:
            (copies / "CURRENT").unlink()
        kept = sorted(copies.iterdir())
        await rig.start(third)
        assert isinstance(await rig.copies(third, Seal(LOG, 0, wave=0)), Refused)
        assert sorted(copies.iterdir()) == kept
        (condition,) = rig.epochs.registrations[third].conditions.conditions
        assert f"{copies}/CURRENT is missing" in condition.text
        copies.rename(tmp_path / "moved away")
        shard_on(rig.nodes[third]).copies.volume.volume_changed()
        assert isinstance(await rig.copies(third, Seal(LOG, 0, wave=0)), Refused), "not told yet"
        await rig.stop(third)
        await rig.start(third)
        assert (await rig.shown(third)).lost_through == 1


async def test_a_node_whose_copies_cannot_be_opened_does_not_know_what_it_was_given(
    tmp_path: Path,
) -> None:
    async with CopysetRig(tmp_path, nodes=3, replication=2) as rig:
        third = rig.favourites[-1]
        for sequence in range(1, 11):
            await rig.append(producer_id=5, sequence=sequence)
        await rig.stop(third)
        manifest = next(rig.path(third).rglob("logs/MANIFEST-*"))
        away = manifest.rename(tmp_path / "away")
        await rig.start(third)
        assert not (await find_batch(rig, third, 1)).certain

        away.rename(manifest)
        volume = shard_on(rig.nodes[third]).copies.volume
        volume.volume_changed()
        assert await volume.opened() is not None
        found = [await find_batch(rig, third, sequence) for sequence in range(1, 11)]
        assert all(each.certain for each in found)
        assert any(each.lsns for each in found), "what it was given before it was restarted"


async def find_batch(rig: CopysetRig, node: int, sequence: int) -> FoundBatch:
    found = await rig.copies(node, FindBatch(LOG, producer_id=5, sequence=sequence))
    assert isinstance(found, FoundBatch)
    return found

"""A node that lost its copies does not count as one that never had them."""

from __future__ import annotations

from pathlib import Path

import pytest
from copyset_rig import LOG, CopysetRig

from loomlog.core.copyset.lsn import make
from loomlog.core.copyset.messages import GetEnd, Preempted, Refused, Seal, SealedAt, Store
from loomlog.core.copyset.record import Kind, Record
from loomlog.wire import loomlog_pb2 as pb


@pytest.mark.parametrize("what", ["", "logs"], ids=["all volumes", "its copies"])
async def test_a_node_that_lost_its_disk_says_so(tmp_path: Path, what: str) -> None:
    async with CopysetRig(tmp_path, nodes=3, replication=2) as rig:
        _, second, third = rig.favourites
        placed = [await rig.append() for _ in range(10)]
        await rig.shows(placed)
        await rig.stop(third)
        rig.wipe(third, what)
        await rig.start(third)
        assert (await rig.shown(third)).underreplicated
        sealed = await rig.copies(third, Seal(LOG, 0, wave=0))
        assert isinstance(sealed, SealedAt)
        assert sealed.underreplicated
        assert isinstance(await rig.copies(third, GetEnd(LOG, 1)), Refused)
        assert not (await rig.shown(second)).underreplicated
        await rig.stop(third)
        await rig.start(third)
        assert (await rig.shown(third)).underreplicated, "it forgot that it forgot"


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
            assert not (await rig.shown(node)).underreplicated
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
        assert isinstance(await rig.copies(third, GetEnd(LOG, 1)), Refused)
        placed += [await rig.append() for _ in range(10)]
        assert len(set(placed)) == 20


async def test_a_node_whose_copies_cannot_be_opened_does_not_know_what_it_was_given(
    tmp_path: Path,
) -> None:
    async with CopysetRig(tmp_path, nodes=3, replication=2) as rig:
        third = rig.favourites[-1]
        for sequence in range(1, 11):
            await rig.append(producer_id=5, sequence=sequence)
        await rig.stop(third)
        next(rig.path(third).rglob("logs/CURRENT")).write_text("no manifest\n")
        await rig.start(third)
        question = pb.FindCopysetBatch(loglet_id=LOG, producer_id=5, sequence=1)
        answer = await rig.ask(third, pb.Frame(find_copyset_batch=question))
        assert not answer.copyset_batch.certain

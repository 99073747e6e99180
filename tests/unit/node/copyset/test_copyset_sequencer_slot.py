"""Appends to copyset logs, through the sequencer that a node hosts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from copyset_rig import LOG, STREAM, CopysetRig, a_batch
from node_services import copyset_on

from loomlog.batch import read_header
from loomlog.core.copyset.messages import Delivered, Read
from loomlog.core.copyset.record import Lsn, make
from loomlog.errors import AppendUnknown, NotLeader, Sealed, Unauthorized, Unavailable
from loomlog.node.copyset.epoch_store import Known
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb

pytestmark = pytest.mark.timeout(60)


async def test_an_append_is_placed_stored_on_r_nodes_and_shown(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        assert await rig.append(count=3) == make(1, 1)
        assert await rig.append() == make(1, 4)
        await rig.shows({make(1, 1), make(1, 4)})
        holders: dict[tuple[Lsn, int], set[NodeId]] = defaultdict(set)
        for node in rig.nodes:
            for record in (await rig.shown(node)).records:
                holders[record.first, record.wave].add(node)
                header = read_header(record.batch)
                assert header.first_position == header.first_llsn == record.first
                assert (header.stream_id, header.epoch) == (STREAM, 1)
                assert node in record.copyset
        newest = dict(sorted(holders))  # a slow node makes another wave
        assert [len(holders[first, wave]) for first, wave in newest.items()] == [2, 2]


async def test_the_others_name_the_node_that_sequences(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        with pytest.raises(NotLeader) as caught:
            await rig.append(second)
        assert caught.value.leader == rig.epochs.addresses[first]
        with pytest.raises(NotLeader):
            await rig.tail(second)
        assert rig.epochs.state.epoch == 0


async def test_many_appends_at_once_wait_for_one_activation(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        places = await asyncio.gather(*(rig.append() for _ in range(200)))
        assert sorted(places) == [make(1, offset) for offset in range(1, 201)]
        assert rig.epochs.state.epoch == 1
        tail = await rig.tail(rig.favourites[0])
        assert (tail.tail, tail.released, tail.epoch) == (make(1, 200), make(1, 200), 1)


async def test_a_repeated_append_gets_its_old_place(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first = await rig.append(producer_id=5, sequence=1)
        assert await rig.append(producer_id=5, sequence=2) != first
        assert await rig.append(producer_id=5, sequence=1) == first
        assert await rig.append(producer_id=6, sequence=1) == make(1, 3)


async def test_another_node_takes_over_and_recovers_what_was_left(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        before = [await rig.append() for _ in range(20)]
        await rig.stop(first)
        after = [await rig.append(second) for _ in range(3)]
        assert after == [make(2, offset) for offset in (1, 2, 3)]
        await rig.shows({*before, *after})
        assert rig.epochs.state.last_clean == 1
        await rig.start(first)
        back = await rig.copies(first, Read(LOG, make(2, 1), make(2, 3), 1), wait_ms=9_000)
        assert isinstance(back, Delivered)
        assert back.next_lsn > make(2, 1), "it was not told what is released"


async def test_a_sequencer_that_was_replaced_says_that_it_took_nothing(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        await rig.append(first)
        rig.epochs.dead.add(first)  # as the metadata repository believes
        assert await rig.append(second) == make(2, 1)
        assert await rig.is_refused(first)
        await rig.shows({make(1, 1), make(2, 1)})  # when epoch 1 is recovered


async def test_a_silent_node_costs_one_wave(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, *others = rig.favourites
        await rig.append()
        silent = rig.nodes[others[0]]
        silent._requests._routes["copyset_request"] = lambda *_: None
        began = asyncio.get_running_loop().time()
        for _ in range(40):
            await rig.append(first)
        took = asyncio.get_running_loop().time() - began
        assert took < 5.0, "every append waited for the silent node"


async def test_an_append_that_too_few_nodes_are_there_for_says_whom_to_start(
    tmp_path: Path,
) -> None:
    async with CopysetRig(tmp_path, nodes=3, replication=2) as rig:
        first, second, third = rig.favourites
        await rig.append()
        for node in (second, third):
            await rig.stop(node)
        exclusions = copyset_on(rig.nodes[first])._sequencers.exclusions
        async with asyncio.timeout(10):
            while exclusions.down != {second, third}:  # noqa: ASYNC110 - it asks once a second
                await asyncio.sleep(0.01)
        low, high = sorted((second, third))
        with pytest.raises(Unavailable, match=f"are there: start node {low}, node {high}"):
            await rig.append(first)


async def test_a_closed_log_takes_nothing_and_is_recovered_on_order(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        placed = [await rig.append() for _ in range(5)]
        state = rig.epochs.state
        rig.epochs.state = replace(state, epoch=2, sequencer=second, closed=True)
        order = pb.RecoverCopyset(state=rig.epochs.to_wire())
        connection = rig.epochs.connections[second]
        await connection.request(pb.Frame(recover_copyset=order))
        await connection.request(pb.Frame(recover_copyset=order))
        assert (rig.epochs.state.last_clean, rig.epochs.state.tail) == (1, placed[-1])
        assert await rig.is_refused(first)
        for node in (first, second):
            with pytest.raises(Sealed):
                await rig.append(node)
        await rig.shows(placed)


async def test_a_closed_log_still_tells_what_it_has_of_repeated_appends(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        taken = await rig.append(producer_id=5, sequence=1)
        rig.epochs.state = replace(rig.epochs.state, epoch=2, sequencer=second, closed=True)
        again = asyncio.ensure_future(rig.append(first, producer_id=5, sequence=1, repeated=True))
        order = pb.RecoverCopyset(state=rig.epochs.to_wire())
        await rig.epochs.connections[second].request(pb.Frame(recover_copyset=order))
        assert await again == taken
        with pytest.raises(Sealed):
            await rig.append(second, producer_id=5, sequence=2, repeated=True)


async def test_an_open_log_that_is_recovered_on_order_is_sequenced_there(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        await rig.append()
        await rig.stop(first)
        rig.epochs.state = replace(rig.epochs.state, epoch=2, sequencer=second)
        order = pb.RecoverCopyset(state=rig.epochs.to_wire())
        await rig.epochs.connections[second].request(pb.Frame(recover_copyset=order))
        assert rig.epochs.state.last_clean == 1
        assert await rig.append(second) == make(2, 1)


async def test_an_order_that_is_late_begins_no_epoch_again(tmp_path: Path) -> None:
    """The LSNs of that epoch are assigned: an append that got one now would be acknowledged for
    another batch."""
    async with CopysetRig(tmp_path) as rig:
        first, second, third, *_ = rig.favourites
        await rig.append()
        await rig.stop(first)
        taken = rig.epochs.state = replace(rig.epochs.state, epoch=2, sequencer=second)
        order = pb.Frame(recover_copyset=pb.RecoverCopyset(state=rig.epochs.to_wire()))
        connection = rig.epochs.connections[second]
        await connection.request(order)
        assert await rig.append(second) == make(2, 1)
        rig.epochs.state = replace(rig.epochs.state, epoch=3, sequencer=third)
        service = copyset_on(rig.nodes[second])
        async with asyncio.timeout(10):
            slot = service._sequencers.slot(LOG)
            while slot.sequencer is not None:  # noqa: ASYNC110 - it asks once a second
                await asyncio.sleep(0.01)
        assert service._sequencers.slot(LOG).begin(Known(LOG, STREAM, taken, {}, 0.0)) is None
        with pytest.raises(Sealed):
            await connection.request(order)
        assert await rig.append(second) == make(4, 1)


async def test_a_node_that_was_started_anew_does_not_take_its_old_epoch_for_a_new_one(
    tmp_path: Path,
) -> None:
    """A former leader of the metadata repository may still answer with outdated metadata."""
    async with CopysetRig(tmp_path) as rig:
        first = rig.favourites[0]
        answers, newest = [rig.epochs.to_wire()], rig.epochs.to_wire
        assert await rig.append(first) == make(1, 1)
        await rig.stop(first)
        await rig.start(first)
        rig.epochs.to_wire = lambda: answers.pop() if answers else newest()  # type: ignore[method-assign]
        assert await rig.append(first) == make(2, 1)
        assert not answers


async def test_an_epoch_that_cannot_be_settled_ends_and_another_one_begins(
    tmp_path: Path,
) -> None:
    """Whatever is wrong with it: its appends would be held forever."""
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        before = await rig.append()
        await rig.stop(first)
        whole, left = rig.epochs.to_wire, [2]

        def without_history() -> pb.CopysetState:
            """Fail once, when epoch 2 was taken."""
            message = whole()
            if message.epoch in left:
                left.remove(message.epoch)
                message.history[0].since = message.epoch
            return message

        rig.epochs.to_wire = without_history  # type: ignore[method-assign]
        assert await rig.append(second) == make(2, 1)
        assert rig.epochs.state.epoch == 3
        assert await rig.append(second) == make(3, 1)
        await rig.shows({before, make(2, 1), make(3, 1)})


async def test_appends_are_told_when_no_sequencer_can_begin(tmp_path: Path) -> None:
    """Appends fail whatever is wrong: they would wait for another append otherwise."""
    async with CopysetRig(tmp_path) as rig:
        first = rig.favourites[0]
        whole, left = rig.epochs.to_wire, [1]

        def without_nodes() -> pb.CopysetState:
            """Fail once, when epoch 1 was taken."""
            message = whole()
            if message.epoch in left:
                left.remove(message.epoch)
                message.history[0].since = message.epoch + 1
            return message

        rig.epochs.to_wire = without_nodes  # type: ignore[method-assign]
        async with asyncio.timeout(5):
            with pytest.raises(Unavailable, match="see the log of node"):
                await rig.append(first)
            assert await rig.append(first) == make(2, 1)


async def test_without_the_metadata_repository_nobody_begins_but_who_sequences_goes_on(
    tmp_path: Path,
) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        await rig.append(first)
        await rig.epochs.server.stop()
        assert await rig.append(first) == make(1, 2)
        with pytest.raises(Unavailable):
            await rig.append(second)


async def test_who_leads_the_metadata_is_not_named_as_who_sequences(tmp_path: Path) -> None:
    """Otherwise clients would ask there, and get an error about an impossible request."""
    async with CopysetRig(tmp_path) as rig:
        first = rig.favourites[0]
        whole = rig.epochs.to_wire

        def replaced() -> pb.CopysetState:
            raise NotLeader("another one leads in epoch 2", "127.0.0.1:7401")

        rig.epochs.to_wire = replaced  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="another one leads"):
            await rig.append(first)
        with pytest.raises(Unavailable, match="another one leads"):
            await rig.tail(first)
        rig.epochs.to_wire = whole  # type: ignore[method-assign]
        assert await rig.append(first)


async def test_only_the_metadata_repository_trims_and_deletes(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        for kind in (pb.CopysetRequest.TRIM, pb.CopysetRequest.FORGET):
            request = pb.CopysetRequest(kind=kind, loglet_id=LOG, lsn=5)
            with pytest.raises(Unauthorized):
                await rig.ask(1, pb.Frame(copyset_request=request))


async def test_what_the_last_sequencer_took_is_not_taken_twice(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *_ = rig.favourites
        taken = [await rig.append(producer_id=5, sequence=number) for number in (1, 2, 3)]
        await rig.stop(first)
        again = [
            await rig.append(second, producer_id=5, sequence=number, repeated=True)
            for number in (1, 2, 3, 4, 4)
        ]
        assert again == [*taken, make(2, 1), make(2, 1)]


async def test_nodes_that_were_started_anew_look_their_copies_through(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, *others = rig.favourites
        taken = await rig.append(producer_id=5, sequence=1)
        await rig.stop(first)
        for node in (second, *others):
            await rig.stop(node)
            await rig.start(node)
        assert await rig.append(second, producer_id=5, sequence=1, repeated=True) == taken
        assert await rig.append(second, producer_id=5, sequence=2, repeated=True) == make(2, 1)


async def test_who_repeats_has_to_wait_for_nodes_that_can_tell(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        first, second, third, fourth = rig.favourites
        taken = await rig.append(producer_id=5, sequence=1)
        await rig.stop(first)
        await rig.shows([taken, await rig.append(second)])
        await rig.stop(third)
        await rig.stop(fourth)
        with pytest.raises(Unavailable):
            await rig.append(second, producer_id=5, sequence=2, repeated=True)


async def test_nobody_claims_to_know_what_is_lost(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path, nodes=3) as rig:
        first, second, third = rig.favourites
        taken = await rig.append(producer_id=5, sequence=1)
        await rig.stop(first)
        await rig.shows([taken, await rig.append(second)])
        await rig.stop(third)
        rig.wipe(third)
        await rig.start(third)
        with pytest.raises(AppendUnknown):
            await rig.append(second, producer_id=5, sequence=2, repeated=True)


async def test_a_batch_that_is_none_is_refused(tmp_path: Path) -> None:
    async with CopysetRig(tmp_path) as rig:
        damaged = a_batch()
        damaged[200] ^= 1
        order = pb.Frame(copyset_append=pb.CopysetAppend(loglet_id=LOG))
        with pytest.raises(Exception, match="checksum"):
            await rig.ask(rig.favourites[0], order, damaged)

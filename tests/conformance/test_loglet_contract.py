"""The promises of every protocol (client/loglets/contract.py), run on all of them.

Everything goes through the loglets of the registry, on real servers in this process. Positions only
grow: nothing here assumes that they have no gaps between appends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from loglet_rig import SHAPES, LogletRig, Segment
from memory_protocol import memory_protocol as memory_protocol

from loomlog.client.loglets.contract import Fixed
from loomlog.client.subscribe.pieces import Piece
from loomlog.errors import (
    AppendUnknown,
    Conflict,
    InvalidArgument,
    LoomError,
    NotYetWritten,
    Retryable,
    Sealed,
    Trimmed,
)
from loomlog.types import Glsn


@pytest.fixture(params=SHAPES)
async def rig(
    request: pytest.FixtureRequest, tmp_path: Path, memory_protocol: None
) -> AsyncIterator[LogletRig]:
    rig = LogletRig(request.param, tmp_path)
    yield rig
    await rig.close()


@pytest.fixture
async def segment(rig: LogletRig) -> Segment:
    return await rig.make()


async def values_of(segment: Segment, first: Glsn, last: Glsn) -> dict[Glsn, bytes]:
    """Return what stands there, as a follower and as a reader finds it."""
    found = await segment.entries(first, last)
    for position in list(found)[:: max(1, len(found) // 20)]:
        assert (await segment.read(position)).value == found[position]
    return found


async def append_until_sealed(
    segment: Segment, name: bytes, acknowledged: dict[Glsn, bytes]
) -> tuple[dict[Glsn, bytes], set[bytes], set[bytes]]:
    """Return what was acknowledged, what was certainly not appended, and what nobody knows."""
    refused: set[bytes] = set()
    unknown: set[bytes] = set()
    number = 0
    while not refused and not unknown:
        value = b"%s-%d" % (name, number)
        number += 1
        try:
            acknowledged[await segment.append([value])] = value
            await asyncio.sleep(0)  # a protocol may answer without ever waiting
        except Sealed:
            refused.add(value)
        except AppendUnknown:
            unknown.add(value)
    return acknowledged, refused, unknown


# ---- append, read, tail


async def test_an_append_behind_the_expected_tail_is_refused_if_it_is_not_the_tail(
    rig: LogletRig, segment: Segment
) -> None:
    other = await rig.another_client()
    first = await segment.append([b"a", b"b"], 0)
    tail = (await other.tail()).position
    assert tail == first + 1
    second = await other.append([b"c"], tail)
    for expected in (0, first, tail, second + 1):
        with pytest.raises(Conflict):
            await segment.append([b"d"], expected)
    third = await segment.append([b"e"], second)
    assert list((await values_of(segment, first, third)).values()) == [b"a", b"b", b"c", b"e"]


async def test_of_appends_behind_one_tail_one_succeeds(rig: LogletRig, segment: Segment) -> None:
    writers = [segment, *[await rig.another_client() for _ in range(3)]]
    tail = await segment.append([b"first"])
    for number in range(3):
        appends = [writer.append([b"%d" % number], tail) for writer in writers]
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        [tail] = [outcome for outcome in outcomes if isinstance(outcome, int)]
        assert [type(o) for o in outcomes if not isinstance(o, int)] == [Conflict] * 3
    found = await values_of(segment, 1, (await segment.tail()).position)
    assert list(found.values()) == [b"first", b"0", b"1", b"2"]


async def test_a_place_that_nobody_wrote_to_is_no_conflict(segment: Segment) -> None:
    tail = await segment.append([b"first"])
    await segment.reserve(3)
    last = await segment.append([b"second"], tail)
    assert list((await values_of(segment, tail, last)).values()) == [b"first", b"second"]


async def test_a_tail_holds_across_failovers(rig: LogletRig, segment: Segment) -> None:
    tail = await segment.append([b"first"])
    for number in range(2):
        await rig.fail_over()
        async with asyncio.timeout(60):
            while True:
                with suppress(Retryable):
                    tail = await segment.append([b"%d" % number], tail)
                    break
    assert list((await values_of(segment, 1, tail)).values()) == [b"first", b"0", b"1"]


async def test_what_is_to_fail_fast_does_not_wait_for_replicas(
    rig: LogletRig, segment: Segment
) -> None:
    await segment.append_once(b"first", 60)
    if rig.keeps_nothing_on_nodes:
        return
    await rig.leave_one_node()
    async with asyncio.timeout(60):
        while True:  # until it is known that the nodes are gone
            try:
                await segment.append_once(b"second", 1)
            except AppendUnknown:
                continue
            except LoomError:
                break
    async with asyncio.timeout(30):
        with pytest.raises((Retryable, Sealed)):
            await segment.append_once(b"third", 120)


async def test_a_new_one_is_empty(segment: Segment) -> None:
    tail = await segment.tail()
    assert (tail.position, tail.sealed) == (0, False)
    with pytest.raises(NotYetWritten):
        await segment.read(1)


async def test_what_was_appended_is_read_where_it_was_acknowledged(segment: Segment) -> None:
    values = [b"one", b"", b"x" * 100_000]
    positions = [await segment.append([value]) for value in values]
    assert positions == sorted(set(positions))
    entries = [await segment.read(position) for position in positions]
    assert [entry.value for entry in entries] == values
    assert [entry.position for entry in entries] == positions


async def test_the_records_of_one_append_stand_at_consecutive_positions(segment: Segment) -> None:
    values = [b"%d" % number for number in range(100)]
    first = await segment.append(values)
    assert list((await values_of(segment, first, first + 99)).values()) == values
    assert (await segment.tail()).position >= first + 99


async def test_the_tail_covers_all_that_was_acknowledged_and_never_falls(
    rig: LogletRig, segment: Segment
) -> None:
    other = await rig.another_client()
    tails = []
    for number in range(20):
        position = await segment.append([b"%d" % number])
        tails.append((await (other if number % 2 else segment).tail()).position)
        assert tails[-1] >= position
    assert tails == sorted(tails)


async def test_the_tail_does_not_fall_when_somebody_takes_over(
    rig: LogletRig, segment: Segment
) -> None:
    """Appends continue meanwhile, and some are given up on the way."""
    acknowledged: list[Glsn] = [0]
    writers = [await rig.another_client() for _ in range(3)]
    writing = [asyncio.ensure_future(_append_on(writer, acknowledged)) for writer in writers]
    tail = 0
    async with asyncio.timeout(60):
        for _ in range(2):
            tail = await _ask_tails(segment, acknowledged, tail)
            await rig.fail_over()
        await _ask_tails(segment, acknowledged, tail)
    for task in writing:
        task.cancel()
    await asyncio.gather(*writing, return_exceptions=True)


async def _append_on(segment: Segment, acknowledged: list[Glsn]) -> None:
    while True:
        with suppress(Retryable, AppendUnknown):
            acknowledged.append(await segment.append([b"a", b"b", b"c"]))
        await asyncio.sleep(0)  # a protocol may answer without ever waiting


async def _ask_tails(segment: Segment, acknowledged: list[Glsn], tail: Glsn) -> Glsn:
    """The last of them, when appends have gone on."""
    enough = len(acknowledged) + 20
    while len(acknowledged) < enough:
        floor = max(tail, *acknowledged[-10:])
        with suppress(Retryable):
            tail = (await segment.tail()).position
            assert tail >= floor
        await asyncio.sleep(0)
    return tail


async def test_whoever_asks_afterwards_finds_what_was_acknowledged(
    rig: LogletRig, segment: Segment
) -> None:
    other = await rig.another_client()
    for number in range(20):
        position = await segment.append([b"%d" % number])
        assert (await other.read(position)).value == b"%d" % number


async def test_beyond_the_tail_nothing_is_written_yet(segment: Segment) -> None:
    await segment.append([b"a"])
    tail = (await segment.tail()).position
    with pytest.raises(NotYetWritten):
        await segment.read(tail + 1)


async def test_concurrent_appends_of_several_clients_all_get_their_own_places(
    rig: LogletRig, segment: Segment
) -> None:
    clients = [segment, await rig.another_client(), await rig.another_client()]
    batches = [[b"%d-%d-%d" % (c, n, r) for r in range(3)] for c in range(3) for n in range(30)]
    firsts = await asyncio.gather(
        *(clients[index % 3].append(batch) for index, batch in enumerate(batches))
    )
    expected = {
        first + offset: value
        for first, batch in zip(firsts, batches, strict=True)
        for offset, value in enumerate(batch)
    }
    assert len(expected) == 3 * len(batches)
    tail = (await segment.tail()).position
    assert await values_of(segment, 1, tail) == expected


# ---- follow


async def test_a_follower_gets_every_entry_in_order_while_others_append(
    rig: LogletRig, segment: Segment
) -> None:
    other = await rig.another_client()
    first = await segment.append([b"0"])
    values = [b"%d" % number for number in range(1, 60)]

    async def append_all() -> Glsn:
        return [await segment.append([value]) for value in values][-1]

    appending = asyncio.ensure_future(append_all())
    async with other.follow(first, None) as part, asyncio.timeout(30):
        found: list[bytes] = []
        while len(found) <= len(values):
            piece = await part.next()
            assert isinstance(piece, Piece)
            found += [entry.value for entry in piece.entries()]
    assert found == [b"0", *values]
    assert await other.entries(first, await appending) == await segment.entries(1, await appending)


async def test_a_follower_begins_and_ends_within_a_batch(segment: Segment) -> None:
    first = await segment.append([b"%d" % number for number in range(10)])
    assert list((await segment.entries(first + 3, first + 6)).values()) == [b"3", b"4", b"5", b"6"]


async def test_a_follower_is_told_of_what_was_trimmed(segment: Segment) -> None:
    positions = [await segment.append([b"%d" % number]) for number in range(4)]
    await segment.trim(positions[1])
    with pytest.raises(Trimmed):
        await segment.entries(positions[0], positions[3])
    assert list((await segment.entries(positions[2], positions[3])).values()) == [b"2", b"3"]


async def test_a_follower_that_is_closed_ends(segment: Segment) -> None:
    first = await segment.append([b"a"])
    async with segment.follow(first + 1, None) as part:
        waiting = asyncio.ensure_future(part.next())
        await asyncio.sleep(0)
        part.close()
        assert await asyncio.wait_for(waiting, 10) is None


# ---- times


async def test_a_time_is_found_where_it_begins(segment: Segment) -> None:
    firsts = [
        await segment.append_at(1_000 * number, [b"%d" % number] * 3) for number in range(1, 8)
    ]
    for number, first in enumerate(firsts, 1):
        assert await segment.find_time(1_000 * number) == first
        assert await segment.find_time(1_000 * number - 500) == first
    assert await segment.find_time(7_001) is None


async def test_a_time_is_not_found_in_what_was_trimmed(segment: Segment) -> None:
    first, second = await segment.append_at(10, [b"a"]), await segment.append_at(20, [b"b"])
    await segment.trim(first)
    assert await segment.find_time(0) == second


# ---- appends at a reserved place


async def test_a_fixed_append_stands_there_once_whoever_carries_it_out(
    rig: LogletRig, segment: Segment
) -> None:
    other = await rig.another_client()
    before = await segment.append([b"before"])
    fixed = Fixed(*json.loads(json.dumps(await segment.reserve(3))))
    values = [b"a", b"b", b"c"]
    first = await segment.append_fixed(fixed, values)
    again = await asyncio.gather(
        segment.append_fixed(fixed, values), other.append_fixed(fixed, values)
    )
    assert first > max(before, fixed.above)
    assert fixed.last is None or first + 2 <= fixed.last
    assert set(again) == {first}
    tail = (await segment.tail()).position
    assert list((await other.entries(1, tail)).values()) == [b"before", *values]


async def test_a_fixed_append_of_several_at_once_stands_there_once(
    rig: LogletRig, segment: Segment
) -> None:
    clients = [segment, await rig.another_client(), await rig.another_client()]
    fixed = await segment.reserve(1)
    firsts = await asyncio.gather(*(client.append_fixed(fixed, [b"x"]) for client in clients))
    assert len(set(firsts)) == 1
    assert await segment.entries(1, (await segment.tail()).position) == {firsts[0]: b"x"}


async def test_a_client_that_does_not_know_the_segment_yet_does_not_take_it_for_gone(
    rig: LogletRig, segment: Segment
) -> None:
    """Otherwise it would decide for another place, and the batch might stand at both."""
    await segment.tail()
    later = await rig.make_next()
    fixed = await later.reserve(1)
    first = await segment.append_fixed(fixed, [b"x"])
    assert first > fixed.above
    assert await later.append_fixed(fixed, [b"x"]) == first


async def test_a_fixed_append_that_was_too_late_is_nowhere(
    rig: LogletRig, segment: Segment
) -> None:
    other = await rig.another_client()
    await segment.append([b"a"])
    fixed = await segment.reserve(1)
    tail = await segment.seal()
    assert await segment.append_fixed(fixed, [b"late"]) == 0
    assert await other.append_fixed(fixed, [b"late"]) == 0
    assert list((await segment.entries(1, tail)).values()) == [b"a"]


async def test_a_fixed_append_before_the_seal_counts(rig: LogletRig, segment: Segment) -> None:
    fixed = await segment.reserve(1)
    first = await segment.append_fixed(fixed, [b"x"])
    tail = await segment.seal()
    other = await rig.another_client()
    again = await other.append_fixed(fixed, [b"x"])
    assert again == first if other.loglet.finds_fixed else again in (0, first)
    assert await other.entries(1, tail) == {first: b"x"}


async def test_a_sealed_one_reserves_no_place_that_is_taken(
    rig: LogletRig, segment: Segment
) -> None:
    other = await rig.another_client()
    await other.append([b"it knows where to write"])
    tail = await segment.seal()
    with suppress(Sealed):
        fixed = await other.reserve(1)
        assert await other.append_fixed(fixed, [b"late"]) == 0
    assert len(await segment.entries(1, tail)) == 1


# ---- trim


async def test_a_trim_drops_the_prefix_for_everybody(rig: LogletRig, segment: Segment) -> None:
    other = await rig.another_client()
    positions = [await segment.append([b"%d" % number]) for number in range(6)]
    await segment.trim(positions[2])
    for client in (segment, other):
        for position in positions[:3]:
            with pytest.raises(Trimmed):
                await client.read(position)
        assert (await client.read(positions[3])).value == b"3"
    assert (await segment.tail()).position >= positions[-1]


async def test_a_trim_is_never_taken_back(segment: Segment) -> None:
    positions = [await segment.append([b"%d" % number]) for number in range(4)]
    await segment.trim(positions[2])
    await segment.trim(positions[0])
    with pytest.raises(Trimmed):
        await segment.read(positions[1])


async def test_a_trim_above_the_tail_is_refused(segment: Segment) -> None:
    position = await segment.append([b"a"])
    with pytest.raises(InvalidArgument):
        await segment.trim((await segment.tail()).position + 1)
    assert (await segment.read(position)).value == b"a"


async def test_all_of_it_may_be_trimmed_and_it_goes_on_above(segment: Segment) -> None:
    position = await segment.append([b"a"])
    await segment.trim(position)
    later = await segment.append([b"b"])
    assert later > position
    assert (await segment.read(later)).value == b"b"


# ---- seal


async def test_a_sealed_one_takes_no_appends_and_stays_readable(segment: Segment) -> None:
    position = await segment.append([b"a"])
    tail = await segment.seal()
    assert tail >= position
    with pytest.raises(Sealed):
        await segment.append([b"b"])
    found = await segment.tail()
    assert (found.position, found.sealed) == (tail, True)
    assert await values_of(segment, 1, tail) == {position: b"a"}
    with pytest.raises(NotYetWritten):
        await segment.read(tail + 1)


async def test_an_empty_one_is_sealed_below_its_start(segment: Segment) -> None:
    assert await segment.seal() == 0


async def test_sealing_again_by_whomever_gives_the_same_tail(
    rig: LogletRig, segment: Segment
) -> None:
    other = await rig.another_client()
    await segment.append([b"a", b"b"])
    tails = await asyncio.gather(segment.seal(), other.seal(), segment.seal())
    assert len(set(tails)) == 1
    assert await other.seal() == tails[0]


async def test_a_sealed_one_can_be_trimmed(segment: Segment) -> None:
    first, second = await segment.append([b"a"]), await segment.append([b"b"])
    tail = await segment.seal()
    await segment.trim(first)
    with pytest.raises(Trimmed):
        await segment.read(first)
    assert (await segment.read(second)).value == b"b"
    assert (await segment.tail()).position == tail


async def test_a_writer_who_has_not_heard_of_the_seal_appends_nothing(
    rig: LogletRig, segment: Segment
) -> None:
    zombie = await rig.another_client()
    await zombie.append([b"it knows where to write"])
    tail = await segment.seal()
    before = await values_of(segment, 1, tail)
    with pytest.raises(Sealed):
        await zombie.append([b"too late"])
    assert await segment.seal() == tail
    assert await values_of(segment, 1, tail) == before


async def test_a_seal_among_appends_is_definite(rig: LogletRig, segment: Segment) -> None:
    """Acknowledged: at or below the tail. Refused: nowhere."""
    writers = [await rig.another_client() for _ in range(3)]
    appended: list[dict[Glsn, bytes]] = [{} for _ in writers]
    writing = [
        asyncio.ensure_future(append_until_sealed(writer, b"%d" % number, appended[number]))
        for number, writer in enumerate(writers)
    ]
    async with asyncio.timeout(30):
        while min(map(len, appended)) < 5:  # noqa: ASYNC110 - others append
            await asyncio.sleep(0.001)
    tail = await segment.seal()
    outcomes = await asyncio.gather(*writing)
    found = await values_of(segment, 1, tail)
    for acknowledged, refused, _ in outcomes:
        assert acknowledged.items() <= found.items()
        assert refused.isdisjoint(found.values())
    possible = {value for _, _, unknown in outcomes for value in unknown}
    possible |= {value for acknowledged, _, _ in outcomes for value in acknowledged.values()}
    assert set(found.values()) <= possible
    assert len(set(found.values())) == len(found)


async def test_a_reader_that_waits_learns_of_the_seal(rig: LogletRig, segment: Segment) -> None:
    reader = await rig.another_client()
    await segment.append([b"a"])
    assert not (await reader.tail()).sealed
    await segment.seal()
    assert (await reader.tail()).sealed


# ---- what is asked wrongly


@pytest.mark.parametrize("position", [0, -1])
async def test_positions_begin_at_1(segment: Segment, position: Glsn) -> None:
    await segment.append([b"a"])
    with pytest.raises((InvalidArgument, Trimmed)):
        await segment.read(position)


async def test_errors_are_of_the_tree(segment: Segment) -> None:
    outcomes: Sequence[object] = await asyncio.gather(
        segment.read(10**12), segment.trim(10**12), return_exceptions=True
    )
    assert all(isinstance(outcome, LoomError) for outcome in outcomes)

"""What every loglet promises (core/loglet.py), whatever its protocol; run on all of them.

Positions only grow: nothing here assumes that they have no gaps between appends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from loglet_rigs import RIGS, Rig

from loomlog.core.loglet import Loglet
from loomlog.errors import (
    AppendUnknown,
    InvalidArgument,
    LoomError,
    NotFound,
    NotYetWritten,
    Retryable,
    Sealed,
    Trimmed,
)
from loomlog.types import Glsn


@pytest.fixture(params=RIGS)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    rig = RIGS[request.param](tmp_path)
    yield rig
    await rig.close()


@pytest.fixture
async def loglet(rig: Rig) -> Loglet:
    return await rig.make()


async def values_of(loglet: Loglet, first: Glsn, last: Glsn) -> dict[Glsn, bytes]:
    """What stands there, without the gaps."""
    found = {}
    for position in range(first, last + 1):
        try:
            found[position] = (await loglet.read(position)).value
        except NotFound:
            pass
    return found


async def append_until_sealed(
    loglet: Loglet, name: bytes
) -> tuple[dict[Glsn, bytes], set[bytes], set[bytes]]:
    """What was acknowledged, what was certainly not appended, and what nobody knows."""
    acknowledged: dict[Glsn, bytes] = {}
    refused: set[bytes] = set()
    unknown: set[bytes] = set()
    number = 0
    while not refused and not unknown:
        value = b"%s-%d" % (name, number)
        number += 1
        try:
            acknowledged[await loglet.append([value])] = value
            await asyncio.sleep(0)  # a loglet may answer without ever waiting
        except Sealed:
            refused.add(value)
        except AppendUnknown:
            unknown.add(value)
    return acknowledged, refused, unknown


# ---- append, read, tail


async def test_a_new_one_is_empty(loglet: Loglet) -> None:
    tail = await loglet.tail()
    assert (tail.position, tail.sealed) == (0, False)
    with pytest.raises(NotYetWritten):
        await loglet.read(1)


async def test_what_was_appended_is_read_where_it_was_acknowledged(loglet: Loglet) -> None:
    values = [b"one", b"", b"x" * 100_000]
    positions = [await loglet.append([value]) for value in values]
    assert positions == sorted(set(positions))
    entries = [await loglet.read(position) for position in positions]
    assert [entry.value for entry in entries] == values
    assert [entry.position for entry in entries] == positions


async def test_the_records_of_one_append_stand_at_consecutive_positions(loglet: Loglet) -> None:
    values = [b"%d" % number for number in range(100)]
    first = await loglet.append(values)
    assert list((await values_of(loglet, first, first + 99)).values()) == values
    assert (await loglet.tail()).position >= first + 99


async def test_the_tail_covers_all_that_was_acknowledged_and_never_falls(
    rig: Rig, loglet: Loglet
) -> None:
    other = await rig.another_client()
    tails = []
    for number in range(20):
        position = await loglet.append([b"%d" % number])
        tails.append((await (other if number % 2 else loglet).tail()).position)
        assert tails[-1] >= position
    assert tails == sorted(tails)


async def test_the_tail_does_not_fall_when_somebody_takes_over(rig: Rig, loglet: Loglet) -> None:
    """Among appends, of which some are given up on the way."""
    acknowledged: list[Glsn] = [0]
    writers = [await rig.another_client() for _ in range(3)]
    writing = [asyncio.ensure_future(_append_on(writer, acknowledged)) for writer in writers]
    tail = 0
    async with asyncio.timeout(60):
        for _ in range(2):
            tail = await _ask_tails(loglet, acknowledged, tail)
            await rig.fail_over()
        await _ask_tails(loglet, acknowledged, tail)
    for task in writing:
        task.cancel()
    await asyncio.gather(*writing, return_exceptions=True)


async def _append_on(loglet: Loglet, acknowledged: list[Glsn]) -> None:
    while True:
        with suppress(Retryable, AppendUnknown):
            acknowledged.append(await loglet.append([b"a", b"b", b"c"]))
        await asyncio.sleep(0)  # a loglet may answer without ever waiting


async def _ask_tails(loglet: Loglet, acknowledged: list[Glsn], tail: Glsn) -> Glsn:
    """The last of them, when appends have gone on."""
    enough = len(acknowledged) + 20
    while len(acknowledged) < enough:
        floor = max(tail, *acknowledged[-10:])
        with suppress(Retryable):
            tail = (await loglet.tail()).position
            assert tail >= floor
        await asyncio.sleep(0)
    return tail


async def test_whoever_asks_afterwards_finds_what_was_acknowledged(
    rig: Rig, loglet: Loglet
) -> None:
    other = await rig.another_client()
    for number in range(20):
        position = await loglet.append([b"%d" % number])
        assert (await other.read(position)).value == b"%d" % number


async def test_beyond_the_tail_nothing_is_written_yet(loglet: Loglet) -> None:
    await loglet.append([b"a"])
    tail = (await loglet.tail()).position
    with pytest.raises(NotYetWritten):
        await loglet.read(tail + 1)


async def test_concurrent_appends_of_several_clients_all_get_their_own_places(
    rig: Rig, loglet: Loglet
) -> None:
    clients = [loglet, await rig.another_client(), await rig.another_client()]
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
    tail = (await loglet.tail()).position
    assert await values_of(loglet, 1, tail) == expected


# ---- trim


async def test_a_trim_drops_the_prefix_for_everybody(rig: Rig, loglet: Loglet) -> None:
    other = await rig.another_client()
    positions = [await loglet.append([b"%d" % number]) for number in range(6)]
    await loglet.trim(positions[2])
    for client in (loglet, other):
        for position in positions[:3]:
            with pytest.raises(Trimmed):
                await client.read(position)
        assert (await client.read(positions[3])).value == b"3"
    assert (await loglet.tail()).position >= positions[-1]


async def test_a_trim_is_never_taken_back(loglet: Loglet) -> None:
    positions = [await loglet.append([b"%d" % number]) for number in range(4)]
    await loglet.trim(positions[2])
    await loglet.trim(positions[0])
    with pytest.raises(Trimmed):
        await loglet.read(positions[1])


async def test_a_trim_above_the_tail_is_refused(loglet: Loglet) -> None:
    position = await loglet.append([b"a"])
    with pytest.raises(InvalidArgument):
        await loglet.trim((await loglet.tail()).position + 1)
    assert (await loglet.read(position)).value == b"a"


async def test_all_of_it_may_be_trimmed_and_it_goes_on_above(loglet: Loglet) -> None:
    position = await loglet.append([b"a"])
    await loglet.trim(position)
    later = await loglet.append([b"b"])
    assert later > position
    assert (await loglet.read(later)).value == b"b"


# ---- seal


async def test_a_sealed_one_takes_no_appends_and_stays_readable(loglet: Loglet) -> None:
    position = await loglet.append([b"a"])
    tail = await loglet.seal()
    assert tail >= position
    with pytest.raises(Sealed):
        await loglet.append([b"b"])
    found = await loglet.tail()
    assert (found.position, found.sealed) == (tail, True)
    assert await values_of(loglet, 1, tail) == {position: b"a"}
    with pytest.raises(NotYetWritten):
        await loglet.read(tail + 1)


async def test_an_empty_one_is_sealed_below_its_start(loglet: Loglet) -> None:
    assert await loglet.seal() == 0


async def test_sealing_again_by_whomever_gives_the_same_tail(rig: Rig, loglet: Loglet) -> None:
    other = await rig.another_client()
    await loglet.append([b"a", b"b"])
    tails = await asyncio.gather(loglet.seal(), other.seal(), loglet.seal())
    assert len(set(tails)) == 1
    assert await other.seal() == tails[0]


async def test_a_sealed_one_can_be_trimmed(loglet: Loglet) -> None:
    first, second = await loglet.append([b"a"]), await loglet.append([b"b"])
    tail = await loglet.seal()
    await loglet.trim(first)
    with pytest.raises(Trimmed):
        await loglet.read(first)
    assert (await loglet.read(second)).value == b"b"
    assert (await loglet.tail()).position == tail


async def test_a_writer_who_has_not_heard_of_the_seal_appends_nothing(
    rig: Rig, loglet: Loglet
) -> None:
    zombie = await rig.another_client()
    await zombie.append([b"it knows where to write"])
    tail = await loglet.seal()
    before = await values_of(loglet, 1, tail)
    with pytest.raises(Sealed):
        await zombie.append([b"too late"])
    assert await loglet.seal() == tail
    assert await values_of(loglet, 1, tail) == before


async def test_a_seal_among_appends_is_definite(rig: Rig, loglet: Loglet) -> None:
    """Acknowledged: at or below the tail. Refused: nowhere."""
    writers = [await rig.another_client() for _ in range(3)]
    writing = [
        asyncio.ensure_future(append_until_sealed(writer, b"%d" % number))
        for number, writer in enumerate(writers)
    ]
    await _until_each_appended(loglet, len(writers))
    tail = await loglet.seal()
    outcomes = await asyncio.gather(*writing)
    found = await values_of(loglet, 1, tail)
    for acknowledged, refused, _ in outcomes:
        assert acknowledged.items() <= found.items()
        assert refused.isdisjoint(found.values())
    possible = {value for _, _, unknown in outcomes for value in unknown}
    possible |= {value for acknowledged, _, _ in outcomes for value in acknowledged.values()}
    assert set(found.values()) <= possible
    assert len(set(found.values())) == len(found)


async def _until_each_appended(loglet: Loglet, writers: int) -> None:
    async with asyncio.timeout(30):
        while (await loglet.tail()).position < 5 * writers:  # noqa: ASYNC110 - others append
            await asyncio.sleep(0)  # as above


async def test_a_reader_who_waits_at_the_tail_learns_of_the_seal(rig: Rig, loglet: Loglet) -> None:
    reader = await rig.another_client()
    await loglet.append([b"a"])
    assert not (await reader.tail()).sealed
    await loglet.seal()
    assert (await reader.tail()).sealed


# ---- what is asked wrongly


@pytest.mark.parametrize("position", [0, -1])
async def test_positions_begin_at_1(loglet: Loglet, position: Glsn) -> None:
    await loglet.append([b"a"])
    with pytest.raises((InvalidArgument, Trimmed)):
        await loglet.read(position)


async def test_errors_are_of_the_tree(loglet: Loglet) -> None:
    outcomes: Sequence[object] = await asyncio.gather(
        loglet.read(10**12), loglet.trim(10**12), return_exceptions=True
    )
    assert all(isinstance(outcome, LoomError) for outcome in outcomes)

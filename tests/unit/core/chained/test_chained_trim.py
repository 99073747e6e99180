"""The position where a time begins in chains is never behind an entry that is to stay."""

from __future__ import annotations

import random

import pytest
from chained_rig import Chains

from loomlog.batch import assign_position, build
from loomlog.core.chained.append import Appended, append
from loomlog.core.chained.chain import Block, block_of, junk
from loomlog.core.chained.messages import Interrupted, Ticket, Trim
from loomlog.core.chained.trim import find_time, measure
from loomlog.core.sizes import Measured


def at_time(ticket: Ticket, latest_us: int) -> Block:
    batch = build(
        b"body",
        codec=0,
        flags=0,
        count=ticket.count,
        raw_size=4,
        producer_id=9,
        sequence=ticket.first,
        min_timestamp_us=0,
        max_timestamp_us=latest_us,
    )
    assign_position(batch, ticket.first)
    return block_of(batch)


def write(chains: Chains, block: Block) -> Block:
    ticket = Ticket(block.first, block.count, chains.projection.epoch)
    assert chains.run(append(chains.projection, ticket, block)) == Appended()
    return block


def found(chains: Chains, timestamp_us: int, last: int, first: int = 1, *, ended: bool) -> int:
    steps = find_time(chains.projection, timestamp_us, first, last, ended=ended)
    outcome = chains.run(steps)
    assert isinstance(outcome, int), outcome
    return outcome


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_first_block_that_is_young_enough(number: int) -> None:
    chains = Chains(chains=number)
    blocks = [write(chains, at_time(chains.ticket(3), 100 * n)) for n in range(1, 41)]
    last = blocks[-1].last
    for wanted_us in (0, 100, 101, 2000, 2050, 3999, 4000):
        first = next(b for n, b in enumerate(blocks, 1) if 100 * n >= wanted_us).first
        assert found(chains, wanted_us, last, ended=True) == first
        assert found(chains, wanted_us, last, first=8, ended=True) == max(first, 8)
    assert found(chains, 4001, last, ended=True) == last + 1


@pytest.mark.parametrize("seed", range(40))
def test_nothing_young_is_left_out_whatever_lies_between(seed: int) -> None:
    """Timestamps are the writers': they may fall, and places may stay empty."""
    rng = random.Random(seed)
    chains = Chains(chains=rng.randint(1, 4))
    written, filled, last = [], [], 0
    for _ in range(rng.randint(1, 60)):
        ticket = chains.ticket(rng.randint(1, 4))
        time_us, last = rng.randint(0, 200), ticket.end - 1
        kind = rng.random()
        if kind < 0.2:
            filled.append(write(chains, junk(ticket.first, ticket.count)))
        elif kind < 0.97:
            written.append((write(chains, at_time(ticket, time_us)), time_us))
    for _ in range(10):
        wanted_us = rng.choice((rng.randint(0, 205), rng.randint(190, 205)))
        young = [block.first for block, latest_us in written if latest_us >= wanted_us]
        assert found(chains, wanted_us, last, ended=True) == min(young, default=last + 1)
        older = [*filled, *(block for block, latest_us in written if latest_us < wanted_us)]
        covered = {p for block in older for p in range(block.first, block.end)}
        expected = next(p for p in range(1, last + 2) if p not in covered)
        assert found(chains, wanted_us, last, ended=False) == expected


def test_a_writer_with_a_slow_clock_does_not_take_the_others_along() -> None:
    chains = Chains(chains=2)
    young = write(chains, at_time(chains.ticket(2), 90))
    slow = write(chains, at_time(chains.ticket(2), 10))
    for ended in (False, True):
        assert found(chains, 50, slow.last, ended=ended) == young.first


def test_many_blocks_are_walked_in_parts() -> None:
    chains = Chains(chains=2)
    for _ in range(3000):
        write(chains, junk(chains.ticket().first, 1))
    last = write(chains, at_time(chains.ticket(), 90)).first
    for ended in (False, True):
        assert found(chains, 50, last, ended=ended) == last
        assert found(chains, 91, last, ended=ended) == last + 1


def test_what_may_still_be_written_stays() -> None:
    chains = Chains()
    write(chains, at_time(chains.ticket(3), 10))
    under_way = chains.ticket(2)
    assert found(chains, 50, under_way.end - 1, ended=False) == 4
    assert found(chains, 50, under_way.end - 1, ended=True) == 6
    write(chains, at_time(under_way, 60))
    assert found(chains, 50, under_way.end - 1, ended=False) == 4


def test_who_does_not_answer_decides_nothing() -> None:
    chains = Chains()
    write(chains, at_time(chains.ticket(), 10))
    chains.silent.add(3)
    steps = find_time(chains.projection, 5, 1, 1, ended=True)
    assert isinstance(chains.run(steps), Interrupted)


def test_behind_a_trim() -> None:
    chains = Chains()
    for n in range(1, 11):
        write(chains, at_time(chains.ticket(), n))
    for replica in chains.projection.replicas:
        chains.replica_answers(replica, Trim(chains.projection.epoch, 4))
    assert found(chains, 2, 10, first=5, ended=False) == 5
    assert found(chains, 8, 10, first=5, ended=False) == 8


def measured(chains: Chains, first: int, last: int) -> list[Measured]:
    parts = chains.run(measure(chains.projection, first, last))
    assert isinstance(parts, list), parts
    return parts


@pytest.mark.parametrize("number", [1, 3])
def test_blocks_are_measured_where_they_begin(number: int) -> None:
    chains = Chains(chains=number)
    blocks = [write(chains, at_time(chains.ticket(3), 1)) for _ in range(20)]
    write(chains, junk(chains.ticket(3).first, 3))
    for first, last in ((1, 60), (2, 60), (1, 3), (2, 3), (30, 40), (1, 63)):
        parts = measured(chains, first, last)
        begun = [len(block.batch) for block in blocks if first <= block.first <= last]
        assert {part.through for part in parts} == {last}
        assert sum(part.size for part in parts) == sum(begun)


def test_a_chain_is_measured_in_parts() -> None:
    chains = Chains(chains=1)
    for _ in range(1030):
        write(chains, at_time(chains.ticket(1), 1))
    [part], [rest] = measured(chains, 1, 1030), measured(chains, 1025, 1030)
    assert (part.through, rest.through) == (1024, 1030)
    assert part.size // 1024 == rest.size // 6

"""Fetches that wait for more: readers follow the end of a chain with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from chained_node_rig import EPOCH, ChainNodes, block, replica

from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import (
    Answer,
    EpochOver,
    Fetch,
    Fetched,
    Refused,
    Remove,
    Seal,
    Stored,
    Trim,
    TrimmedTo,
    Write,
)
from loomlog.core.usage import UNKNOWN
from loomlog.errors import Busy, Unavailable
from loomlog.limits import MIB, SUBSCRIPTIONS_PER_CONNECTION_MAX
from loomlog.net.turns import Turns
from loomlog.node.chained.service import is_nothing
from loomlog.node.long_poll import LongPolls

LONG_MS = 20_000


async def test_what_is_there_is_told_at_once(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        await nodes.ask(Write(EPOCH, block(5)))
        assert await nodes.ask(Fetch(EPOCH, 2, MIB), wait_ms=LONG_MS) == Fetched([block(5)], False)


async def test_a_fetch_waits_for_what_comes_next(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        await nodes.ask(Write(EPOCH, block(1)))
        waiting = [nodes.ask_soon(Fetch(EPOCH, 2, MIB), wait_ms=LONG_MS) for _ in range(3)]
        far = nodes.ask_soon(Fetch(EPOCH, 9, MIB), wait_ms=LONG_MS)
        await nodes.ask(Fetch(EPOCH, 1, MIB))  # behind them, so they wait by now
        assert not any(task.done() for task in waiting)
        assert await nodes.ask(Write(EPOCH, block(2))) == Stored()
        assert await asyncio.gather(*waiting) == [Fetched([block(2)], False)] * 3
        assert not far.done()
        assert await nodes.ask(Write(EPOCH, block(12))) == Stored()
        assert await far == Fetched([block(12)], False)


async def test_when_the_time_is_over_there_is_nothing(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        assert await nodes.ask(Fetch(EPOCH, 1, MIB), wait_ms=20) == Fetched([], more=False)


async def test_the_end_of_an_epoch_a_trim_and_a_removal_end_the_wait(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        trimmed = nodes.ask_soon(Fetch(EPOCH, 3, MIB), wait_ms=LONG_MS)
        over = nodes.ask_soon(Fetch(EPOCH, 9, MIB), wait_ms=LONG_MS)
        await nodes.ask(Fetch(EPOCH, 1, MIB))
        await nodes.order_chain(Trim(EPOCH, 5))
        assert await trimmed == TrimmedTo(5)
        await nodes.order_chain(Seal(EPOCH + 1))
        assert await over == EpochOver(EPOCH + 1)
        removed = nodes.ask_soon(Fetch(EPOCH + 1, 9, MIB), wait_ms=LONG_MS)
        await nodes.ask(Fetch(EPOCH + 1, 6, MIB))
        await nodes.order_chain(Remove())
        assert isinstance(await removed, Refused)


async def test_too_many_are_refused(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        waiting = [
            nodes.ask_soon(Fetch(EPOCH, 1, MIB), wait_ms=LONG_MS)
            for _ in range(SUBSCRIPTIONS_PER_CONNECTION_MAX)
        ]
        await asyncio.sleep(0)  # they are sent
        with pytest.raises(Busy):
            await nodes.ask(Fetch(EPOCH, 1, MIB), wait_ms=LONG_MS)
        await nodes.ask(Write(EPOCH, block(1)))
        assert set(map(len, [a.blocks for a in await asyncio.gather(*waiting)])) == {1}  # type: ignore[union-attr]


async def test_a_wait_ends_with_its_connection(tmp_path: Path) -> None:
    async with ChainNodes(tmp_path, 1) as nodes:
        await nodes.create()
        waiting = nodes.ask_soon(Fetch(EPOCH, 1, MIB), wait_ms=LONG_MS)
        await nodes.ask(Fetch(EPOCH, 1, MIB))
        (await nodes.client(1)).close()
        with pytest.raises(Unavailable):
            await waiting
        assert await nodes.ask(Write(EPOCH, block(1))) == Stored()


# ---- by hand


class Attentive:
    """A connection whose peer reads everything at once."""

    congested = False
    reads_max = 8
    usage = UNKNOWN

    def __init__(self) -> None:
        self.turns = Turns(self)

    def when_writable(self, callback: Callable[[], None]) -> None:
        callback()


class Look:
    """A replica whose look-ups the test answers."""

    def __init__(self) -> None:
        self.under_way: list[Callable[[Answer], None]] = []
        self.fetches: LongPolls[Replica, Answer] = LongPolls(8)
        self.answers: list[object] = []

    def add(self, wait_s: float = 60.0) -> None:
        self.fetches.add(
            Attentive(),  # type: ignore[arg-type]
            replica(),
            self.under_way.append,
            is_nothing,
            wait_s,
            self.answers.append,
            Fetched([], more=False),
        )


NOTHING = Fetched([], more=False)
SOMETHING = Fetched([block(1)], more=False)


async def test_a_commit_while_it_looks_is_not_missed() -> None:
    look = Look()
    look.add()
    look.fetches.changed(replica())  # it looks already, perhaps at what was there before
    look.under_way.pop()(NOTHING)
    look.under_way.pop()(SOMETHING)
    assert look.answers == [SOMETHING]


async def test_one_look_at_a_time() -> None:
    look = Look()
    look.add()
    look.under_way.pop()(NOTHING)
    for _ in range(5):
        look.fetches.changed(replica())
    assert len(look.under_way) == 1


async def test_a_time_that_ends_while_it_looks_waits_for_what_is_found() -> None:
    look = Look()
    look.add(wait_s=0)
    for _ in range(2):  # turns of the loop
        await asyncio.sleep(0)
    assert look.answers == []
    look.under_way.pop()(SOMETHING)
    assert look.answers == [SOMETHING]

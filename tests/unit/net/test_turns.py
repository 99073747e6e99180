"""Questions whose answers are large take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from loomlog.net.turns import Turns


class Peer:
    def __init__(self) -> None:
        self.congested = False
        self.reads_max = 2
        self.waiting: list[Callable[[], None]] = []

    def when_writable(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def reads(self) -> None:
        self.congested = False
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


def started(turns: Turns, count: int) -> list[int]:
    begun: list[int] = []
    for number in range(count):
        turns.take(lambda number=number: begun.append(number))  # type: ignore[misc]
    return begun


def test_only_a_few_begin_at_once_and_in_order() -> None:
    turns = Turns(Peer())
    begun = started(turns, 4)
    assert begun == [0, 1]
    turns.end()
    assert begun == [0, 1, 2]
    turns.end()
    turns.end()
    assert begun == [0, 1, 2, 3]


def test_none_begins_while_the_peer_does_not_read() -> None:
    peer = Peer()
    turns = Turns(peer)
    peer.congested = True
    begun = started(turns, 3)
    assert begun == []
    assert len(peer.waiting) == 1
    peer.reads()
    assert begun == [0, 1]
    peer.congested = True
    turns.end()
    assert begun == [0, 1]
    peer.reads()
    assert begun == [0, 1, 2]


def test_turns_that_end_at_once_do_not_pile_up() -> None:
    turns = Turns(Peer())
    ended = 0

    def begin() -> None:
        nonlocal ended
        ended += 1
        turns.end()

    def queue_all() -> None:
        for _ in range(100_000):
            turns.take(begin)
        turns.end()

    turns.take(queue_all)
    assert ended == 100_000


def test_a_turn_that_fails_does_not_stop_the_others() -> None:
    turns = Turns(Peer())

    def fail() -> None:
        turns.end()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        turns.take(fail)
    assert started(turns, 2) == [0, 1]


async def test_a_task_holds_its_turn_until_its_answer_was_sent() -> None:
    peer = Peer()
    peer.reads_max = 1
    turns, events = Turns(peer), list[str]()

    async def answer(name: str) -> None:
        async with turns:
            events.append(f"looks up {name}")
        events.append(f"sends {name}")

    await asyncio.gather(answer("a"), answer("b"))
    assert events == ["looks up a", "sends a", "looks up b", "sends b"]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_task_that_is_cancelled_gives_its_turn_back(has_begun: bool) -> None:
    peer = Peer()
    peer.reads_max = 1
    turns = Turns(peer)
    turns.take(lambda: None)

    async def wait() -> None:
        async with turns:
            pytest.fail("it was cancelled before")

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    if has_begun:
        turns.end()
    waiting.cancel()
    if not has_begun:
        turns.end()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert started(turns, 1) == [0]

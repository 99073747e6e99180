"""Requests that wait for more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loomlog.net.turns import Turns
from loomlog.node.long_poll import LongPoll


class BusyPeer:
    """A connection with one turn."""

    congested = False
    reads_max = 1

    def when_writable(self, callback: Callable[[], None]) -> None: ...


async def test_a_poll_that_waits_for_its_turn_is_answered_when_its_time_is_over() -> None:
    turns = Turns(BusyPeer())
    turns.take(lambda: None)  # never ends
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    poll = LongPoll(
        turns,
        look=lambda done: done("something"),
        is_nothing=lambda found: not found,
        wait_s=0.01,
        done=answer.set_result,
        forget=lambda: None,
        nothing="",
    )
    poll.look()
    async with asyncio.timeout(10):
        assert await answer == ""
    turns.end()  # its turn comes, and nobody looks
    assert turns._taken == 0

"""Attempts that wait for a sequencer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from loomlog.client.append.appender import Batch
from loomlog.client.append.stream import Stream
from loomlog.client.loglets.copyset.carrier import CopysetAttempt, CopysetCarrier
from loomlog.client.loglets.copyset.segments import View
from loomlog.errors import Timeout
from loomlog.wire.link import Connection

ADDRESS = "127.0.0.1:9"


class Silent:
    """A connection to a node that never answers."""

    def request(self, *_: object, **__: object) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


def view(*, alive: bool) -> View:
    node = SimpleNamespace(address=ADDRESS, alive=alive)
    return cast(View, SimpleNamespace(loglet=1, nodes={1: node}))


async def test_a_sequencer_that_is_missed_is_not_waited_for() -> None:
    outcomes = SimpleNamespace(sent=lambda attempt: None)
    carrier = cast(CopysetCarrier, SimpleNamespace(outcomes=outcomes))
    batch = cast(Batch, SimpleNamespace(size=1, expected_tail=None))
    attempt = CopysetAttempt(carrier, batch, Stream(1))
    attempt.leave_the_missed(view(alive=False))  # it waits for nobody
    connection = cast(Connection, Silent())
    sending = asyncio.ensure_future(attempt._send(view(alive=True), connection, ADDRESS))
    await asyncio.sleep(0)
    attempt.leave_the_missed(view(alive=True))
    await asyncio.sleep(0)
    assert not sending.done()
    attempt.leave_the_missed(view(alive=False))
    with pytest.raises(Timeout, match="is missed"):
        await sending

"""When a client looks for entries that all nodes forgot, and what it leaves behind when closed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Never, cast

import pytest

from loomlog.client.context import Client
from loomlog.client.loglets.copyset import acknowledged
from loomlog.client.loglets.copyset.acknowledged import Acknowledgements
from loomlog.client.loglets.copyset.segments import Segments
from loomlog.core.copyset.messages import EpochEnd, LogState
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.record import make
from loomlog.errors import Unavailable

METADATA = EpochMetadata(1, tuple(map(Member, (1, 2, 3))), 2)
BEFORE = LogState(1, 1, (METADATA,), last_clean=0, tail=0)
END = EpochEnd(1, lng=0, last=0, seal=1, wave=1, crashed=(1, 2))
AFTER = LogState(2, 1, (METADATA,), last_clean=1, tail=0, ends=(END,))


def acknowledgements(
    view: SimpleNamespace,
    refresh: Callable[[], Awaitable[None]],
    request: Callable[..., Awaitable[Never]],
) -> Acknowledgements:
    client = SimpleNamespace(
        metadata=SimpleNamespace(request=request),
        rng=random.Random(1),
        loop=asyncio.get_running_loop(),
    )
    segments = SimpleNamespace(view=lambda stream: view, log=SimpleNamespace(refresh=refresh))
    return Acknowledgements(cast(Segments, segments), cast(Client, client))


def next_look_s(it: Acknowledgements) -> float:
    assert it._timer is not None
    return it._timer.when()


async def unused(*_: object, **__: object) -> Never:
    raise AssertionError


async def test_it_looks_soon_after_an_append_however_long_there_was_none() -> None:
    async def refresh() -> None:
        pass

    it = acknowledgements(SimpleNamespace(state=BEFORE, loglet=1), refresh, unused)
    it.add(1, make(1, 1), 1)
    for _ in range(10):
        it._look()

    def soon_s() -> float:
        return it._loop.time() + 2 * acknowledged.LOOK.first_s

    assert next_look_s(it) > soon_s()
    it.add(1, make(1, 2), 1)
    assert next_look_s(it) < soon_s()
    it._timer, it._idle_looks, it.is_watched = None, 9, False  # all was recovered meanwhile
    it.add(1, make(1, 3), 1)
    assert next_look_s(it) < soon_s()
    await it.close()


async def test_a_loss_that_is_found_while_the_client_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acknowledged, "REPORT_LAST_S", 0.01)
    view = SimpleNamespace(state=BEFORE, loglet=1)
    is_new = asyncio.Event()

    async def refresh() -> None:
        await is_new.wait()
        view.state = AFTER

    async def request(*_: object, **__: object) -> Never:
        raise Unavailable("this client was closed")

    it = acknowledgements(view, refresh, request)
    it.add(1, make(1, 1), 3)
    it._spawn(it._refresh())
    await asyncio.sleep(0)
    is_new.set()
    await it.close()
    await asyncio.sleep(0)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others

"""Releases that a shard could not take when they came."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from loomlog.core.backoff import Backoff
from loomlog.core.copyset.messages import Release
from loomlog.core.copyset.record import make
from loomlog.errors import NotFound, Unavailable
from loomlog.node.copyset import late_releases
from loomlog.node.copyset.late_releases import LateReleases

STAMP = 9


class Shard:
    """Takes what it is given, if it `may`."""

    def __init__(self) -> None:
        self.taken: list[Release] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.late = LateReleases(self.take, self.spawn)
        self.may = True

    async def take(self, release: Release, stamp: int) -> bool:
        if self.may:
            self.taken.append(release)
        return self.may

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))


async def yes() -> bool:
    return True


async def test_only_the_newest_release_of_an_epoch_is_taken() -> None:
    shard = Shard()
    for log, epoch, offset in ((1, 1, 5), (1, 1, 4), (1, 2, 3), (2, 1, 7), (1, 1, 6)):
        shard.late.add(Release(log, make(epoch, offset)), STAMP, yes)
    await asyncio.gather(*shard.tasks)
    assert sorted(shard.taken, key=lambda each: (each.log, each.lsn)) == [
        Release(1, make(1, 6)),
        Release(1, make(2, 3)),
        Release(2, make(1, 7)),
    ]


async def test_a_release_of_a_log_that_was_deleted_is_not_asked_about_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(late_releases, "RETRY", Backoff(0.0, 0.0))
    shard = Shard()
    asked: list[int] = []

    async def of_deleted() -> bool:
        asked.append(1)
        raise NotFound("there is no such log")

    async def at_first_unknown() -> bool:
        asked.append(2)
        if asked.count(2) < 3:
            raise Unavailable("nobody leads")
        return True

    shard.late.add(Release(1, make(1, 5)), STAMP, of_deleted)
    shard.late.add(Release(2, make(1, 5)), STAMP, at_first_unknown)
    async with asyncio.timeout(10):
        await asyncio.gather(*shard.tasks)
    assert shard.taken == [Release(2, make(1, 5))]
    assert asked.count(1) == 1

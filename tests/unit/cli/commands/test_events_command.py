"""`loom events`: what is shown when it follows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from loomlog.cli.commands import events
from loomlog.wire.events import EventInfo

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


class EndedError(Exception):
    """The test has seen enough."""


class FakeCluster:
    """A cluster with one old event; another one happens while it is followed."""

    def __init__(self) -> None:
        self.kept = [EventInfo(1, NOON.timestamp() - 60, "info", "node 1", "joined")]
        self.looks = 0

    async def events(self, since: datetime | None = None, *, after: int = 0) -> list[EventInfo]:
        self.looks += 1
        if self.looks == 3:
            self.kept.append(EventInfo(2, NOON.timestamp() + 60, "info", "node 2", "joined"))
        if self.looks == 5:
            raise EndedError
        least_s = 0.0 if since is None else since.timestamp()
        return [each for each in self.kept if each.id > after and each.time_s >= least_s]


async def test_following_since_a_time_shows_nothing_older(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def connected(cluster: str) -> AsyncIterator[FakeCluster]:
        yield FakeCluster()

    monkeypatch.setattr(events, "connected", connected)
    monkeypatch.setattr(events, "LOOK_S", 0.0)
    with pytest.raises(EndedError):
        await events.events(since=NOON, follow=True, cluster="x:1")
    assert capsys.readouterr().out == "2026-11-16 12:01:00Z  info     node 2: joined\n"

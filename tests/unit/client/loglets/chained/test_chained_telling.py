"""Clients report acknowledged blocks to replicas until they succeed, with bounded traffic."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import cast

import pytest

from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client
from loomlog.client.loglets.chained import chains
from loomlog.client.loglets.chained.chains import Chains

MOST = 10


async def test_tellings_that_do_not_succeed_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All chains of a log may become idle at the same time."""
    monkeypatch.setattr(chains, "TELLING_MAX", MOST)
    monkeypatch.setattr(chains, "TELL_S", 0.0)
    monkeypatch.setattr(chains, "TELL_LAST_S", 0.0)
    log = CachedLog.__new__(CachedLog)
    log.name, log.last_known = "log", None  # the metadata repository does not answer
    client = SimpleNamespace(metadata=None, connections=None, rng=random.Random(1))
    telling = Chains(log, cast(Client, client))
    others = asyncio.all_tasks()
    for number in range(3):
        for chain in range(3 * MOST):
            telling.unreported.add((1, 1, chain), number + 1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not telling.unreported
        assert len(asyncio.all_tasks() - others) == MOST
    await telling.close()
    assert asyncio.all_tasks() == others

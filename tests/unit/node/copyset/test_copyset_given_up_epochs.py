"""Epochs that end because a node meets a defect of its own while it recovers the ones before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from copyset_rig import CopysetRig

from loomlog.errors import LoomError
from loomlog.node.copyset import sequencer
from loomlog.node.copyset.recovery import recover

pytestmark = pytest.mark.timeout(60)


class Delays:
    """Stands in for the backoff, and waits for nothing."""

    def __init__(self, broken_for: int) -> None:
        self._left = broken_for
        self.asked: list[int] = []

    def delay_s(self, attempts: int) -> float:
        self.asked.append(attempts)
        return 0.0

    async def recover(self, *args: Any) -> Any:
        if self._left:
            self._left -= 1
            raise RuntimeError("a defect")
        return await recover(*args)


async def test_they_follow_each_other_more_and_more_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = Delays(broken_for=3)
    monkeypatch.setattr(sequencer, "GIVE_UP", delays)
    monkeypatch.setattr(sequencer, "recover", delays.recover)
    async with CopysetRig(tmp_path) as rig:
        node = rig.favourites[0]
        await _appended(rig, node)
        async with asyncio.timeout(30):
            while rig.epochs.state.last_clean < 3:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        assert delays.asked == [0, 1, 2]
        assert rig.epochs.state.epoch == 4


async def _appended(rig: CopysetRig, node: int) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await rig.append(node)
                return
            except LoomError:
                await asyncio.sleep(0.01)

"""`loom tail` when no entry comes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

import loomlog
from loomlog.cli.commands import tail
from loomlog.errors import Unavailable

CONDITION = "0 of 3 storage nodes have confirmed that this metadata is the newest"


class FakeLog:
    def __init__(self, last: int | None, *conditions: str) -> None:
        self.described = asyncio.Event()
        streams = [SimpleNamespace(condition=condition) for condition in conditions]
        self._info = SimpleNamespace(tail=last, streams=streams)

    async def describe(self) -> Any:
        self.described.set()
        return self._info


def silence(log: FakeLog, *, follow: bool = False) -> tail.Silence:
    return tail.Silence(cast(loomlog.Log, log), follow=follow)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "NOTICE_S", 0.01)
    monkeypatch.setattr(tail, "SILENCE_S", 0.02)


async def test_it_says_what_it_waits_for_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    log = FakeLog(7, CONDITION, "", CONDITION)
    with pytest.raises(Unavailable, match=f"no entry could be read for 0.02 s: {CONDITION}$"):
        async with silence(log).watched():
            await asyncio.Event().wait()
    assert capsys.readouterr().err == f"waiting for entries: {CONDITION}\n"


async def test_without_a_reason_it_fails_too() -> None:
    with pytest.raises(Unavailable, match="see `loom status`"):
        async with silence(FakeLog(7)).watched():
            await asyncio.Event().wait()


@pytest.mark.parametrize(("shown", "lines"), [(6, 1), (7, 0)])
async def test_one_that_follows_says_once_that_entries_are_missing(
    capsys: pytest.CaptureFixture[str], shown: int, lines: int
) -> None:
    log = FakeLog(7, CONDITION)
    watch = silence(log, follow=True)
    watch.position = shown
    async with watch.watched():
        for _ in range(3):
            log.described.clear()
            await log.described.wait()
    assert capsys.readouterr().err == f"waiting for entries: {CONDITION}\n" * lines


async def test_an_error_of_the_reader_is_not_hidden() -> None:
    with pytest.raises(TimeoutError, match="of another kind"):
        async with silence(FakeLog(7)).watched():
            raise TimeoutError("of another kind")

"""An unexpected error of a reader ends what it reads for, with that error."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any, Literal

import pytest

from loomlog.client.log import Log
from loomlog.client.loglets.chained import part as chained
from loomlog.client.loglets.copyset import finder
from loomlog.client.loglets.copyset import reader_driver as copyset
from loomlog.core.copyset.reader import CopysetReader
from loomlog.testing import LocalCluster


class UnexpectedError(Exception):
    """No LoomError."""


def fail(*_: Any, **__: Any) -> Any:
    raise UnexpectedError


async def fails(log: Log, start: Literal["earliest", "latest"] = "earliest") -> None:
    async with asyncio.timeout(10):
        with pytest.raises(UnexpectedError):
            await anext(log.subscribe(start))


@pytest.mark.parametrize(
    ("protocol", "module", "name"),
    [("chained", chained, "Fetch"), ("copyset", copyset, "request_to_wire")],
)
async def test_it_ends_its_subscription(
    protocol: str, module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LocalCluster(nodes=3) as cluster:
        log = await cluster.create_log("events", protocol=protocol)
        place = (await log.append(b"a")).position
        with monkeypatch.context() as broken:
            broken.setattr(module, name, fail)
            await fails(log)
            await fails(log, "latest")
        if protocol == "copyset":
            await of_copysets(log, place, monkeypatch)


async def of_copysets(log: Log, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the handling of an answer, of a timer and of a single read fail."""
    with monkeypatch.context() as broken:
        broken.setattr(CopysetReader, "woken", fail)
        await fails(log, "latest")
        broken.setattr(CopysetReader, "answered", fail)
        await fails(log)
        broken.setattr(finder, "GUESSES_MAX", 0)
        with pytest.raises(UnexpectedError):
            await log.read(place)

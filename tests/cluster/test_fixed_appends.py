"""A client that has just lost its metadata of the log does not give up a fixed append. Otherwise
its writer would choose another place, and the batch might be at both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import loomlog
from loomlog.client.cached_log import CachedLog
from loomlog.client.log import Log
from loomlog.client.loglets.chained.chains import Chains
from loomlog.columns import encode
from loomlog.errors import Unavailable
from loomlog.testing import LocalCluster
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb


class Confirmation:
    """Fails once, and drops the metadata of the log."""

    def __init__(self, log: CachedLog) -> None:
        self._log = log
        self.asked = 0

    async def __call__(self) -> None:
        self.asked += 1
        if self.asked == 1:
            self._log.last_known = None
            raise Unavailable("try again")


async def append_fixed(log: Log, protocol: str, confirm: Any) -> tuple[Glsn, Glsn]:
    """Return the lowest possible position of the batch, and the reserved one."""
    info = await log.describe()
    loglet = log._parts.loglets.of(protocol)
    fixed = await loglet.reserve(info.streams[0].id, info.reached, 1)
    batch = encode([b"x"], timestamps_us=1, producer_id=7, sequence=1)
    return fixed.above, await loglet.append_fixed(fixed, batch, confirm)


async def test_copyset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refresh, failures = CachedLog.refresh, ["nobody answers"]

    async def fail_once(self: CachedLog) -> pb.Log:
        if self.last_known is None and failures:
            raise Unavailable(failures.pop())
        return await refresh(self)

    local = LocalCluster(nodes=2, directory=tmp_path)
    async with local as cluster:
        await cluster.create_log("events", protocol="copyset", streams=1, replicas=2)
        async with await loomlog.connect(local.address) as client:
            log = client.log("events")
            confirm = Confirmation(log._parts.cached)
            monkeypatch.setattr(CachedLog, "refresh", fail_once)
            above, first = await append_fixed(log, "copyset", confirm)
            assert first > above
            assert (confirm.asked, failures) == (2, [])


async def test_chained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Chains.run
    forgotten: list[pb.Log | None] = []

    async def forget_once(self: Chains, view: Any, steps: Any) -> Any:
        if "write" in steps.__name__ and not forgotten:
            forgotten.append(self.log.last_known)
            self.log.last_known = None
            self.view(view.stream)
        return await run(self, view, steps)

    async def confirm() -> None:
        pass

    local = LocalCluster(nodes=2, directory=tmp_path)
    async with local as cluster:
        await cluster.create_log("events", protocol="chained", streams=1, replicas=2)
        async with await loomlog.connect(local.address) as client:
            monkeypatch.setattr(Chains, "run", forget_once)
            above, first = await append_fixed(client.log("events"), "chained", confirm)
            assert first == above + 1
            assert forgotten

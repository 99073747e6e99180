"""A log whose streams all lost a replica goes on in a new stream while they are filled again."""

from __future__ import annotations

import asyncio

import pytest

from loomlog.metadata import MetadataRepository
from loomlog.testing import LocalCluster

DETECTION_S = 0.5
PATIENCE_S = 30.0
SLOWLY = 100 * 1024  # bytes a second: the copy takes longer than the test


@pytest.fixture
def slow_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = MetadataRepository.__init__

    def slowed(self: MetadataRepository, settings: object, **given: object) -> None:
        object.__setattr__(settings, "sync_bytes_per_s", SLOWLY)
        plain(self, settings, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(MetadataRepository, "__init__", slowed)


@pytest.mark.usefixtures("slow_copies")
async def test_appends_go_on_in_a_new_stream_while_the_old_one_is_filled() -> None:
    servers = LocalCluster(nodes=4, failure_detection_s=DETECTION_S)
    async with servers as cluster:
        log = await cluster.create_log("big", streams=1, replicas=3)
        for _ in range(24):
            await log.append_many([bytes(1024 * 1024)])
        (before,) = (await log.describe()).streams
        await servers.stop_node(before.replicas[0].node)
        async with asyncio.timeout(PATIENCE_S):
            at = await log.append(b"goes on")
        assert at.stream != before.id
        assert (await log.read(at.position)).value == b"goes on"
        old = next(s for s in (await log.describe()).streams if s.id == before.id)
        assert old.state != "running"  # still being filled: the log did not wait for it

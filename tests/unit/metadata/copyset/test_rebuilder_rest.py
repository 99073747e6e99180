"""The rebuilder does not look at all shards for every node that registers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_cluster import SmallCluster

from loomlog.metadata.copyset import rebuilder
from loomlog.metadata.copyset.rebuilder import Rebuilder

NODES = 20


async def test_many_registrations_share_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    due = Rebuilder._due

    def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return due(*arguments)

    monkeypatch.setattr(Rebuilder, "_due", counted)
    monkeypatch.setattr(rebuilder, "REST_S", 600.0)
    async with SmallCluster(tmp_path) as cluster:
        await cluster.add_beating_nodes(NODES)
        assert looks <= NODES

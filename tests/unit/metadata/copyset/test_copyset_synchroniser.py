"""A comparison of copies goes on as long as it makes progress."""

from __future__ import annotations

from typing import Any, cast

import pytest

from loomlog.errors import Unavailable
from loomlog.metadata.background import Background
from loomlog.metadata.copyset import synchroniser
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.metadata.copyset.synchroniser import TRIES_MAX, Synchroniser
from loomlog.wire import loomlog_pb2 as pb

LOG, SOURCE, TARGET = 7, 1, 2


class PlayedNodes:
    """The first request to each shard fails, or all of them do."""

    def __init__(self, *, is_dead: bool) -> None:
        self.asked: list[int] = []
        self._is_dead = is_dead
        self.catalog = self.nodes = self  # as the epoch store

    async def check(self, shard: int, *_: Any, **__: Any) -> pb.CopysetChecked:
        self.asked.append(shard)
        if self._is_dead or self.asked.count(shard) == 1:
            raise Unavailable("it does not answer")
        return pb.CopysetChecked()


@pytest.mark.parametrize("is_dead", [False, True])
async def test_only_tries_in_a_row_are_counted(
    monkeypatch: pytest.MonkeyPatch, is_dead: bool
) -> None:
    monkeypatch.setattr(synchroniser, "AGAIN_S", 0.0)
    nodes = PlayedNodes(is_dead=is_dead)
    donors = [SOURCE | volume << 32 for volume in range(TRIES_MAX + 1)]
    problem = await Synchroniser(cast(EpochStore, nodes), Background())._compare(
        LOG, donors, [TARGET]
    )
    if is_dead:
        assert (problem, nodes.asked) == ("it does not answer", [SOURCE] * TRIES_MAX)
    else:
        assert (problem, len(nodes.asked)) == ("", 2 * len(donors))

"""Absent shards are asked what they know, each on its own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

from loomlog.core.copyset.late_losses import absent_shards
from loomlog.core.copyset.messages import EpochEnd, LogState
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.errors import Unavailable
from loomlog.metadata.background import Background, Later
from loomlog.metadata.copyset.absentees import AGAIN_S, Absentees
from loomlog.metadata.copyset.epoch_store import EpochStore
from loomlog.types import LogId, ShardId


async def test_a_shard_that_cannot_say_it_holds_up_no_other_one() -> None:
    metadata = EpochMetadata(1, tuple(map(Member, (1, 2, 3))), 2)
    end = EpochEnd(1, lng=1, last=1, seal=1, wave=1, absent=(1, 2))
    state = LogState(2, 3, (metadata,), last_clean=1, tail=1, ends=(end,))
    record = SimpleNamespace(loglet=7, state=state)

    async def change(_: LogId, step: Callable[[LogState], LogState]) -> None:
        record.state = step(record.state)

    async def hear(shard: ShardId, _: LogId) -> bool:
        if shard == 1:
            raise Unavailable("its disk is gone")
        return True

    epochs = SimpleNamespace(
        catalog=SimpleNamespace(segment_of=lambda _: True),
        records={7: record},
        nodes=SimpleNamespace(
            can_ask=lambda _: True, lost_through=lambda shard, loglet: 0, hear=hear
        ),
        change=change,
    )
    absentees = Absentees(cast(EpochStore, epochs), cast(Background, None))
    assert await absentees._step(7) == Later(AGAIN_S)
    assert absent_shards(record.state) == [1]

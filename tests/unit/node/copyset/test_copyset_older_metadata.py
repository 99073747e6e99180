"""Nodes are upgraded before the metadata repository: it may be older than they are."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from loomlog.core.copyset.messages import (
    Delivered,
    EpochEnd,
    EpochStoreRequest,
    GetState,
    LogState,
    Read,
    UseShort,
)
from loomlog.core.copyset.nodeset import EpochMetadata, Member
from loomlog.core.copyset.presumption import Presume
from loomlog.core.copyset.procedures import Answer, Exchange
from loomlog.core.requests import drive
from loomlog.errors import InvalidArgument, Unavailable
from loomlog.node.copyset.epoch_store import EpochStoreClient
from loomlog.node.copyset.mender import Mender
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import state_to_wire

LOG = 7
STATE = LogState(3, 1, (EpochMetadata(1, tuple(map(Member, (1, 2, 3))), 2),), last_clean=1, tail=0)
PRESUME = Presume(LOG, by=3, epoch=2, wave=1, lng=4, good=5)


class OlderStore:
    """An epoch store that does not know of presumptions."""

    def __init__(self) -> None:
        self.kinds: list[int] = []
        self.state = STATE

    async def ask(self, frame: pb.Frame) -> pb.Frame:
        kind = frame.epoch_store_request.kind
        self.kinds.append(kind)
        if kind != pb.EpochStoreRequest.GET:
            raise InvalidArgument(f"EpochStoreRequest has no kind {kind}")
        return pb.Frame(copyset_state=state_to_wire(LOG, self.state, ()))


async def test_a_recovery_goes_on_if_nobody_remembers_what_it_presumes() -> None:
    store = OlderStore()
    client = EpochStoreClient(store.ask, lambda known: None)
    assert await client.ask(PRESUME) == STATE
    assert store.kinds == [pb.EpochStoreRequest.PRESUME, pb.EpochStoreRequest.GET]


@pytest.mark.parametrize("request_", [UseShort(LOG, 3, 2, (1, 2)), GetState(LOG), PRESUME])
async def test_other_requests_need_an_answer(request_: EpochStoreRequest) -> None:
    async def away(frame: pb.Frame) -> pb.Frame:
        asked.append(frame)
        raise Unavailable("there is no metadata repository")

    asked: list[pb.Frame] = []
    assert await EpochStoreClient(away, lambda known: None).ask(request_) is None
    assert len(asked) == 1


def tasks_of(tasks: set[asyncio.Task[None]]) -> Any:
    return lambda work: tasks.add(asyncio.ensure_future(work))


@pytest.mark.parametrize(("epochs", "lost"), [((), [1, 2]), ((2,), [2])])
async def test_all_epochs_are_checked_if_none_is_named(
    epochs: tuple[int, ...], lost: list[int]
) -> None:
    ends = tuple(EpochEnd(epoch, lng=2, last=2, seal=epoch, wave=1) for epoch in (1, 2))
    store, forgetful = OlderStore(), LogState(3, 1, STATE.history, 2, 0, ends=ends)
    store.state = forgetful

    async def answer(asked: Exchange) -> list[Answer]:
        """Answer as shards do that have forgotten everything."""
        reads = [ask.request for ask in asked.asks if isinstance(ask.request, Read)]
        return [Delivered([], read.until + 1, 0, read.until) for read in reads]

    others: Any = SimpleNamespace(recovered=lambda log, epoch: None, run_gently=None)
    others.run_gently = lambda steps: drive(steps, answer)
    client = EpochStoreClient(store.ask, lambda known: None)
    tasks: set[asyncio.Task[None]] = set()
    mender = Mender(1, others, others, client, others, tasks_of(tasks))
    checked = await mender.check(LOG, frozenset(), frozenset(epochs))
    assert (checked.left, list(checked.lost)) == (0, lost)

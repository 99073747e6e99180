"""The timeline is bounded, survives a leader, and shows nobody more than the logs he sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loomlog.errors import NotFound, SwapUnknown, Unavailable
from loomlog.metadata import timeline as module
from loomlog.metadata.store.contract import Fence
from loomlog.metadata.store.memory import MemoryStore
from loomlog.metadata.timeline import (
    BLOCK_EVENTS,
    BLOCKS_MAX,
    SAME_S,
    WAITING_MAX,
    Timeline,
    TimelineWatch,
)
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.events import Change


class Clock:
    """A clock that tests set."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def change(text: str, log: str = "") -> Change:
    return Change("info", "node 1", text, log)


async def everything(timeline: Timeline, request: pb.ListEvents | None = None) -> list[pb.Event]:
    part = await timeline.part(request or pb.ListEvents(), lambda log: True)
    return list(part.events)


async def test_the_next_leader_goes_on_where_the_last_one_ended() -> None:
    store, clock = MemoryStore(), Clock()
    first = Timeline(store, clock)
    first.note(change("is away"))
    assert await everything(first) == []  # only what is stored is shown
    await first.save()
    second = Timeline(store, clock)
    clock.now_s = 2000.0
    second.note(change("is back"))
    await second.save()
    found = await everything(Timeline(store, clock))
    assert [(each.id, each.time_s, each.text) for each in found] == [
        (1, 1000.0, "is away"),
        (2, 2000.0, "is back"),
    ]
    assert [e.id for e in await everything(second, pb.ListEvents(after=1))] == [2]
    assert [e.id for e in await everything(second, pb.ListEvents(since_s=1500.0))] == [2]


async def test_only_the_newest_events_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_EVENTS", 150)
    store = MemoryStore()
    timeline = Timeline(store, Clock())
    for start in range(0, BLOCK_EVENTS * (BLOCKS_MAX + 3), BLOCK_EVENTS):
        for n in range(start, start + BLOCK_EVENTS):
            timeline.note(change(f"event {n}"))
        await timeline.save()
    assert len(await store.list("events/")) == BLOCKS_MAX
    part = await Timeline(store, Clock()).part(pb.ListEvents(), lambda log: True)
    assert (part.events[0].text, len(part.events), part.more) == (
        f"event {3 * BLOCK_EVENTS}",
        150,
        True,
    )
    rest = await timeline.part(pb.ListEvents(after=part.last), lambda log: True)
    assert rest.events[0].id == part.events[-1].id + 1


async def test_events_of_hidden_logs_are_left_out_and_counted_as_seen() -> None:
    timeline = Timeline(MemoryStore(), Clock())
    for each in (change("a", "secret"), change("b"), change("c", "orders"), change("d", "secret")):
        timeline.note(each)
    await timeline.save()
    part = await timeline.part(pb.ListEvents(), lambda log: log == "orders")
    assert ([each.text for each in part.events], part.last) == (["b", "c"], 4)


async def test_an_action_that_is_repeated_is_noted_once_in_a_while() -> None:
    clock = Clock()
    timeline = Timeline(MemoryStore(), clock)
    trim = Change("action", "archiver", "log trim orders", "orders")
    for _ in range(3):
        timeline.note(trim)
        await timeline.save()
    clock.now_s += SAME_S
    timeline.note(trim)
    timeline.note(change("flaps"))
    timeline.note(change("flaps"))
    await timeline.save()
    assert [each.severity for each in await everything(timeline)] == [
        *("action", "action", "info", "info"),
    ]


class Doubtful(MemoryStore):
    """A store that does not answer, or answers too late."""

    error: Exception | None = None
    writes = False

    async def compare_and_swap(
        self, key: str, expected: int, value: bytes | None, *, fences: tuple[Fence, ...] = ()
    ) -> int:
        error, self.error = self.error, None
        if error is None or self.writes:
            version = await super().compare_and_swap(key, expected, value, fences=fences)
        if error is not None:
            raise error
        return version


@pytest.mark.parametrize("writes", [False, True])
async def test_an_event_whose_write_failed_is_stored_once(writes: bool) -> None:
    store = Doubtful()
    timeline = Timeline(store, Clock())
    timeline.note(change("a"))
    await timeline.save()
    timeline.note(change("b"))
    store.error, store.writes = SwapUnknown("no answer"), writes
    with pytest.raises(SwapUnknown):
        await timeline.save()
    timeline.note(change("c"))
    await timeline.save()
    assert [each.text for each in await everything(timeline)] == ["a", "b", "c"]


async def test_a_store_that_is_away_costs_a_bounded_number_of_events() -> None:
    store = Doubtful()
    timeline = Timeline(store, Clock())
    store.error = Unavailable("etcd is away")
    for n in range(WAITING_MAX + 5):
        timeline.note(change(f"event {n}"))
    with pytest.raises(Unavailable):
        await timeline.save()
    await asyncio.gather(timeline.save(), everything(timeline))
    part = await timeline.part(pb.ListEvents(after=WAITING_MAX - 1), lambda log: True)
    assert [each.id for each in part.events] == [WAITING_MAX]


class View:
    """Logs that come and go while they are looked at."""

    def __init__(self, *names: str) -> None:
        self.catalog = SimpleNamespace(
            nodes={},
            logs={
                name: SimpleNamespace(name=name, log_id=number, unfinished=False, segments=())
                for number, name in enumerate(names, 1)
            },
        )
        self.conditions = SimpleNamespace(of_cluster=lambda members: [], of_log=lambda log: [])
        self.when_seen: dict[str, Callable[[], object]] = {}

    def members(self) -> list[pb.MetadataMember]:
        return []

    def logs(self) -> list[Any]:
        return list(self.catalog.logs.values())

    def now(self, log: Any) -> Any:
        return self.catalog.logs.get(log.name)

    def version_of(self, log: Any) -> int:
        return 1

    def log(self, log: Any) -> pb.Log:
        self.when_seen.get(log.name, lambda: None)()
        if self.catalog.logs.get(log.name) is not log:
            raise NotFound(f"log {log.name!r} was deleted")
        return pb.Log(log_id=log.log_id, name=log.name)


async def test_a_calm_cluster_is_looked_at_less_often_until_there_is_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    monkeypatch.setattr(module, "CALM_S", 0.0)
    monkeypatch.setattr(module, "CALM_LOOK_S", 3600.0)
    looks = asyncio.Semaphore(0)

    async def look(_: TimelineWatch) -> None:
        looks.release()

    monkeypatch.setattr(TimelineWatch, "_look", look)
    timeline = Timeline(MemoryStore(), Clock())
    gate: Any = SimpleNamespace(condition="")
    nothing: Any = None
    watch = TimelineWatch(timeline, nothing, nothing, nothing, gate)
    running = asyncio.create_task(watch.run())
    async with asyncio.timeout(30):
        await looks.acquire()
        for wake in (watch.wake, lambda: timeline.note(change("something"))):
            await until_calm(looks)
            wake()
            await looks.acquire()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def until_calm(looks: asyncio.Semaphore) -> None:
    """Pass over the looks of before it was calm."""
    while not looks.locked():
        await looks.acquire()


async def test_a_log_that_is_deleted_meanwhile_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 1)
    view, timeline = View("a", "b", "c"), Timeline(MemoryStore(), Clock())
    watch = TimelineWatch(
        timeline,
        cast(Any, view.catalog),
        cast(Any, {}),
        cast(Any, view),
        cast(Any, SimpleNamespace(condition="")),
    )
    view.when_seen["a"] = lambda: view.catalog.logs.pop("b")
    await watch._look()
    view.catalog.logs["d"] = SimpleNamespace(name="d", log_id=4, unfinished=False, segments=())
    await watch._look()
    await timeline.save()
    assert [each.log for each in await everything(timeline)] == ["d"]

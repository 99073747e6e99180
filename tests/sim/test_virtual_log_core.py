"""Switching a log under everything that may happen: pure, so thousands of seeds; and the same
without each of its rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import virtual_log_use
from seed_chunks import chunks
from violation import Violation, run_world
from virtual_log_use import UseSteps
from virtual_log_world import VirtualLogWorld

from loomlog.core import virtual_log
from loomlog.core.segments import Layout, Segment, Settings, SwitchState
from loomlog.core.virtual_log import Done
from loomlog.types import Glsn, LogId, NodeId

CHUNKS = 4
SEEDS_PER_CHUNK = 300
CONTROL_SEEDS = 400


def run(seed: int) -> VirtualLogWorld:
    return run_world(VirtualLogWorld, seed)


def run_many(seeds: int) -> None:
    for seed in range(seeds):
        run(seed)


@pytest.mark.parametrize("chunk", chunks(CHUNKS, quick=2))
def test_a_log_outlives_its_switches(chunk: int) -> None:
    worlds = [run(seed) for seed in range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)]
    assert sum(world.counts.acknowledged for world in worlds) > 20 * SEEDS_PER_CHUNK
    assert sum(world.counts.switches for world in worlds) > 2 * SEEDS_PER_CHUNK
    died = set().union(*(world.counts.died_at for world in worlds))
    for state in SwitchState:
        for question in ("GetLayout", "Swap", "Append", "Read", "GetTail"):
            assert (question, state) in died
    assert {("Make", SwitchState.PREPARING), ("Seal", SwitchState.SEALING)} <= died
    assert {("Begin", SwitchState.NONE), ("Discard", SwitchState.NONE)} <= died


# ---- without its rules


def believe_in_any_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers trust a segment without a recorded end, although it may be sealed."""

    def holder(layout: Layout, position: Glsn) -> UseSteps[Segment]:
        segment = layout.segment_of(position)
        if segment.end is None:
            yield virtual_log_use.GetTail(segment)
        return segment

    monkeypatch.setattr(virtual_log_use, "_holder", holder)


def never_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers look at a segment beyond its recorded end."""
    covers = Segment.covers

    def beyond(self: Segment, position: Glsn) -> bool:
        return covers(self._replace(end=None if self.end is None else self.end + 2), position)

    def first(self: Layout, position: Glsn) -> Segment:
        return next(segment for segment in self.segments if beyond(segment, position))

    monkeypatch.setattr(Layout, "segment_of", first)


def ask_for_the_tail_before_the_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    step = virtual_log._step

    def hasty(layout: Layout, successor: Any) -> UseSteps[str | None]:
        if layout.switch is SwitchState.PREPARING:
            return (yield from step(layout, successor))
        tail = yield from virtual_log_use.certainly(virtual_log_use.GetTail(layout.active))
        yield from virtual_log_use.certainly(virtual_log.Seal(layout.active))
        extended = layout.extend(tail.position)
        if isinstance((yield virtual_log.Swap(layout, extended)), Done):
            yield virtual_log.Begin(extended.active)
        return None

    monkeypatch.setattr(virtual_log, "_step", hasty)


def swap_without_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    swap = VirtualLogWorld.swap
    monkeypatch.setattr(
        VirtualLogWorld, "swap", lambda self, _, layout: swap(self, self.layout, layout)
    )


def seal_before_the_successor_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Layout.prepare

    def ready_at_once(
        self: Layout, loglet: LogId, settings: Settings, nodes: tuple[tuple[NodeId, ...], ...] = ()
    ) -> Layout:
        return prepare(self, loglet, settings, nodes).ready()

    monkeypatch.setattr(Layout, "prepare", ready_at_once)


def leave_interrupted_switches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        virtual_log, "finish", lambda: virtual_log_use.certainly(virtual_log.GetLayout())
    )


@pytest.mark.parametrize(
    "without",
    [
        believe_in_any_segment,
        never_clip,
        ask_for_the_tail_before_the_seal,
        swap_without_comparing,
        seal_before_the_successor_is_made,
        leave_interrupted_switches_alone,
    ],
)
def test_without_one_of_its_rules_it_goes_wrong(
    without: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch)
    with pytest.raises(Violation):
        run_many(CONTROL_SEEDS)

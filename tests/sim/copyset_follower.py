"""A reader of a simulated copyset log."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from copyset_judge import Violation
from copyset_parties import LOG

from loomlog.core.copyset.asking import Answer, Service
from loomlog.core.copyset.authority import Authority
from loomlog.core.copyset.lsn import Lsn, skip_zero, words
from loomlog.core.copyset.messages import Delivered, GetState, LogState
from loomlog.core.copyset.reader import Reader
from loomlog.core.copyset.reader_words import (
    Ask,
    Deliver,
    Effect,
    Finished,
    Gap,
    NeedMetadata,
    ReadSettings,
    SetTimer,
)
from loomlog.types import NodeId

if TYPE_CHECKING:
    from copyset_world import World


class Follower:
    """Reads on and on; whatever it is shown, the judge is told."""

    def __init__(self, world: World, process: int, first: Lsn) -> None:
        settings = ReadSettings(room_bytes=world.random.choice((300, 100_000)), all_send_all=5)
        self.process = process
        self.shown = 0
        self._world = world
        self._expected = skip_zero(first)
        self._wakes_at: float | None = None
        self._authorities: dict[NodeId, Authority] = {}
        self._reader = Reader(LOG, first, settings=settings)
        self._carry_out(self._reader.start(world.now))

    @property
    def head(self) -> Lsn:
        return self._reader.head

    def tick(self) -> None:
        """Time has passed."""
        now = self._world.now
        authorities = {n: node.authority for n, node in self._world.nodes.items()}
        if authorities != self._authorities:
            self._authorities = authorities
            self._carry_out(self._reader.told_authorities(authorities, now))
        if self._wakes_at is not None and self._wakes_at <= now:
            self._wakes_at = None
            self._carry_out(self._reader.woken(now))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Ask(node, question, request):
                    done = partial(self._answered, node, question)
                    self._world.send(self.process, node, request, done)
                case Deliver() | Gap():
                    self._show(effect)
                case NeedMetadata():
                    self._ask_for_state()
                case SetTimer(at):
                    self._wakes_at = at
                case Finished():
                    raise Violation("a reader has finished a log that goes on")

    def _show(self, shown: Deliver | Gap) -> None:
        if shown.first != self._expected:
            raise Violation(f"{words(self._expected)} comes next, not {words(shown.first)}")
        self._expected = skip_zero(shown.last + 1)
        self.shown += 1
        if isinstance(shown, Gap):
            if self._world.disaster:
                self._world.oracle.look_for_losses(self._world.judge.acknowledged)
            self._world.judge.gap(shown.first, shown.last, shown.kind)
            return
        self._world.judge.seen(shown.record)
        self._carry_out(self._reader.consumed(1, self._world.now))

    def _answered(self, node: NodeId, question: int, answer: Answer) -> None:
        if not self._world.is_alive(self.process):
            return
        now = self._world.now
        if isinstance(answer, Delivered):
            self._carry_out(self._reader.answered(node, question, answer, now))
        else:
            self._carry_out(self._reader.failed(node, question, now))

    def _ask_for_state(self) -> None:
        self._world.send(self.process, Service.EPOCH_STORE, GetState(LOG), self._told_state)

    def _told_state(self, answer: Answer) -> None:
        if not self._world.is_alive(self.process):
            return
        if isinstance(answer, LogState):
            self._carry_out(self._reader.told_state(answer, self._world.now))
        else:
            self._ask_for_state()

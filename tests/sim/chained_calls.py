"""Operations under way in a simulated chained log, and the questions they wait for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from chained_parties import Node, Party

from loomlog.core.chained.messages import Answer, ChainedAsk, Steps

if TYPE_CHECKING:
    from chained_world import ChainedWorld


class Call:
    """An operation in progress."""

    def __init__(self, world: ChainedWorld, party: Party | Node, steps: Steps[None]) -> None:
        self.world = world
        self.party = party
        self._steps = steps
        self.turn: list[Answer | None] = []

    def begin(self) -> None:
        self._ask(partial(next, self._steps))

    def answered(self, index: int, answer: Answer) -> None:
        if self not in self.world.calls or self.turn[index] is not None:
            return
        self.turn[index] = answer
        answers = [answer for answer in self.turn if answer is not None]
        if len(answers) == len(self.turn):
            self._ask(partial(self._steps.send, answers))

    def _ask(self, go_on: Callable[[], list[ChainedAsk]]) -> None:
        try:
            asks = go_on()
        except StopIteration:
            self.world.calls.remove(self)
            return
        self.turn = [None] * len(asks)
        for index, ask in enumerate(asks):
            self.world.questions.append(Question(self, self.turn, index, ask))


@dataclass(eq=False)
class Question:
    call: Call
    turn: list[Answer | None]
    index: int
    ask: ChainedAsk

    def answer(self, answer: Answer) -> None:
        """Deliver the answer, unless the caller continued without it."""
        if self.call.turn is self.turn:
            self.call.answered(self.index, answer)

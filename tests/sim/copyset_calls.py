"""Messages under way in a simulated copyset log, and the procedures that wait for answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from loomlog.core.copyset.asking import Answer, Ask, Lost, Round, Service, Steps
from loomlog.core.copyset.messages import (
    Delivered,
    EpochStoreRequest,
    NodeAnswer,
    NodeRequest,
    Read,
)
from loomlog.types import NodeId

if TYPE_CHECKING:
    from copyset_world import World

Answered = Callable[[Answer], None]
Outcome = TypeVar("Outcome")


def ignore(answer: Answer) -> None:
    pass


def is_nothing(request: NodeRequest, answer: NodeAnswer) -> bool:
    """A reader may as well wait."""
    match request, answer:
        case Read(first=first), Delivered(next_lsn=next_lsn):
            return next_lsn <= first
    return False


@dataclass(eq=False, slots=True)
class Message:
    """A request, or an answer to one."""

    sender: int  # the number of a process
    target: NodeId | Service
    request: NodeRequest | EpochStoreRequest
    done: Answered
    answer: Answer | None = None  # it is on its way back
    late: bool = False  # nobody waits for it any more


class Call(Generic[Outcome]):
    """A procedure that a process has under way. It ends with the process."""

    def __init__(
        self,
        world: World,
        process: int,
        steps: Steps[Outcome],
        ended: Callable[[Outcome], None],
    ) -> None:
        self._world = world
        self._process = process
        self._steps = steps
        self._ended = ended
        self._round = 0
        self._asks: Sequence[Ask] = ()
        self._answers: list[Answer | None] = []
        self._go_on(None)

    def _go_on(self, answers: Sequence[Answer] | None) -> None:
        try:
            asked = next(self._steps) if answers is None else self._steps.send(answers)
        except StopIteration as stop:
            self._ended(stop.value)
            return
        self._ask(asked)

    def _ask(self, asked: Round) -> None:
        self._round += 1
        self._asks = asked.asks
        self._answers = [None] * len(asked.asks)
        for index, ask in enumerate(asked.asks):
            self._world.send(self._process, ask.target, ask.request, self._waiter(index, asked))

    def _waiter(self, index: int, asked: Round) -> Answered:
        number = self._round

        def answered(answer: Answer) -> None:
            if number == self._round and self._world.is_alive(self._process):
                self._answers[index] = self._answers[index] or answer
                self._look(asked)

        return answered

    def _look(self, asked: Round) -> None:
        if None in self._answers and not self._is_enough(asked):
            return
        self._round += 1
        self._go_on([answer or Lost() for answer in self._answers])

    def _is_enough(self, asked: Round) -> bool:
        pairs = zip(self._asks, self._answers, strict=True)
        answers = {
            ask.target: answer
            for ask, answer in pairs
            if isinstance(ask.target, int) and answer is not None
        }
        return self._world.random.random() < 0.3 and asked.enough(answers)

"""Operations of core/chained on their way: every answer asks the next question, at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Generic

from loomlog.client.chained.asking import Answered, Question
from loomlog.core.chained.messages import Answer, Ask, Lost, Outcome, Steps

_NONE_YET: Final = Lost()


def _nobody(end: object) -> None:
    pass


class Drive(Generic[Outcome]):
    """One operation. `ended` gets its outcome, or what was raised."""

    def __init__(
        self,
        ask: Callable[[Ask, Answered], Question],
        steps: Steps[Outcome],
        ended: Callable[[Outcome | Exception], None],
    ) -> None:
        self._ask = ask
        self._steps = steps
        self._ended = ended
        self._questions: list[Question] = []  # of this step
        self._answers: list[Answer] = []
        self._missing = 0  # of these

    def start(self) -> None:
        self._step(None)

    def cancel(self) -> None:
        """Nobody is told anything any more. Fine if it has ended."""
        self._steps.close()
        for question in self._questions:
            question.cancel()

    def _step(self, answers: list[Answer] | None) -> None:
        try:
            # The first step takes no answers: what Generator cannot say.
            asks = self._steps.send(answers)  # type: ignore[arg-type]
        except StopIteration as end:
            self._end(end.value)
        except Exception as error:
            self._end(error)
        else:
            self._ask_all(asks)

    def _end(self, end: Outcome | Exception) -> None:
        ended, self._ended = self._ended, _nobody  # who made this and this let go of each other
        ended(end)

    def _ask_all(self, asks: list[Ask]) -> None:
        self._missing = len(asks)
        self._answers = [_NONE_YET] * len(asks)
        questions: list[Question] = []
        self._questions = questions
        for index, ask in enumerate(asks):
            questions.append(self._ask(ask, partial(self._answered, index)))

    def _answered(self, index: int, answer: Answer | Exception) -> None:
        if isinstance(answer, Exception):
            self.cancel()
            self._end(answer)
            return
        self._answers[index] = answer
        self._missing -= 1
        if not self._missing:
            self._step(self._answers)

"""Operations that go from answer to answer, on questions that are answered by hand."""

from __future__ import annotations

from typing import cast

from loomlog.client.loglets.chained.chains import Chains, ChainView
from loomlog.client.loglets.chained.requests import Answered, Drive, PendingRequest
from loomlog.core.chained.chain import Projection, Replica
from loomlog.core.chained.messages import Answer, ChainedAsk, Check, Done, FindEnd, Refused, Steps
from loomlog.core.requests import Ask, Lost
from loomlog.errors import Corrupt, LoomError

VIEW = ChainView(1, Projection(1, 1, 1, 1, (), 1), {})
HEAD, TAIL = Replica(1, 1, 0, 1), Replica(2, 1, 0, 1)


class ByHand(PendingRequest):
    def __init__(self, ask: ChainedAsk, answered: Answered) -> None:
        super().__init__(answered)
        self.ask = ask
        self.cancelled = False

    def answer(self, answer: Answer | Exception) -> None:
        self._end(answer)

    def cancel(self) -> None:
        self.cancelled = True
        super().cancel()


class Desk:
    """Takes questions, in place of the chains of a log."""

    def __init__(self, steps: Steps[list[Answer]]) -> None:
        self.requests = self
        self.questions: list[ByHand] = []
        self.ends: list[list[Answer] | Exception] = []
        self.drive = Drive(cast(Chains, self), VIEW, steps, self.ends.append)
        self.drive.start()

    def ask(self, view: ChainView, ask: ChainedAsk, answered: Answered) -> PendingRequest:
        self.questions.append(ByHand(ask, answered))
        return self.questions[-1]


def both_then_the_tail() -> Steps[list[Answer]]:
    first = yield [Ask(HEAD, Check(1)), Ask(TAIL, Check(1))]
    if Lost() in first:
        raise Corrupt("it went too far")
    return first + (yield [Ask(TAIL, FindEnd(1))])


def test_answers_are_in_the_order_of_the_questions_and_lead_on_at_once() -> None:
    desk = Desk(both_then_the_tail())
    assert [question.ask.target for question in desk.questions] == [HEAD, TAIL]
    desk.questions[1].answer(Refused("tail"))
    assert len(desk.questions) == 2
    desk.questions[0].answer(Done())
    assert desk.questions[2].ask == Ask(TAIL, FindEnd(1))
    desk.questions[2].answer(Done())
    assert desk.ends == [[Done(), Refused("tail"), Done()]]


def test_what_an_operation_raises_is_its_end() -> None:
    desk = Desk(both_then_the_tail())
    desk.questions[0].answer(Lost())
    desk.questions[1].answer(Done())
    assert [type(end) for end in desk.ends] == [Corrupt]
    assert len(desk.questions) == 2


def test_a_question_that_fails_ends_all() -> None:
    desk = Desk(both_then_the_tail())
    desk.questions[0].answer(LoomError("of another release"))
    assert desk.questions[1].cancelled
    desk.questions[1].answer(Done())
    assert [str(end) for end in desk.ends] == ["of another release"]


def test_after_its_cancellation_nobody_is_told_anything() -> None:
    desk = Desk(both_then_the_tail())
    desk.questions[0].answer(Done())
    desk.drive.cancel()
    desk.questions[1].answer(Done())
    assert desk.ends == []
    assert len(desk.questions) == 2

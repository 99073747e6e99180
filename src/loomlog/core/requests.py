"""Operations that involve other parties, written as generators of requests. Pure.

An operation yields a question, receives the answer as the value of the `yield`, and finally returns
its outcome. The driver owns the network, the clock and the timeouts. It sends `Lost` if a request
got no answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeAlias, TypeVar, cast

Target = TypeVar("Target", covariant=True)
Request = TypeVar("Request", covariant=True)
Question = TypeVar("Question")
Reply = TypeVar("Reply")
Outcome = TypeVar("Outcome")

# What an operation yields, what it is sent, and what it returns.
Steps: TypeAlias = Generator[Question, Reply, Outcome]


class Service(Enum):
    """Parties other than storage nodes."""

    SEQUENCER = "sequencer"
    METADATA = "metadata"


class Ask(NamedTuple, Generic[Target, Request]):
    """One request to one party."""

    target: Target
    request: Request


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer: the request may or may not have been carried out, and may still be."""


async def drive(
    steps: Steps[Question, Reply, Outcome], answer: Callable[[Question], Awaitable[Reply]]
) -> Outcome:
    """Answer every question of an operation; return its outcome."""
    try:
        question = next(steps)
        while True:
            question = steps.send(await answer(question))
    except StopIteration as end:
        return cast(Outcome, end.value)

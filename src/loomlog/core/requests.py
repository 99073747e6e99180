"""Operations that need other parties are generators of requests. Pure.

An operation yields a question, is sent its answer, and continues until it returns its outcome. The
driver owns the network, the clock and the timeouts. A request without an answer gets `Lost`.
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
    """No answer: the request may have been carried out, or may be later."""


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

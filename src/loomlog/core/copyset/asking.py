"""How recovery and purge ask. Pure.

They are generators: each round they yield what to ask, and are sent the answers, in the order of
the questions. Who drives them owns the network and the patience; an answer that does not come is
`Lost`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias, TypeVar

from loomlog.core.copyset.messages import EpochStoreRequest, LogState, NodeAnswer, NodeRequest
from loomlog.types import NodeId


class Service(Enum):
    EPOCH_STORE = "epoch store"


class Ask(NamedTuple):
    target: NodeId | Service
    request: NodeRequest | EpochStoreRequest


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer: it may have happened, or may happen later."""


Answer: TypeAlias = NodeAnswer | LogState | Lost
Answers: TypeAlias = Mapping[NodeId, Answer]


def _never(answers: Answers) -> bool:
    return False


class Round(NamedTuple):
    """Questions that are asked all at once."""

    asks: Sequence[Ask]
    enough: Callable[[Answers], bool] = _never  # then the rest is waited for only shortly


Outcome = TypeVar("Outcome")
Steps: TypeAlias = Generator[Round, Sequence[Answer], Outcome]


def ask_each(
    nodes: Sequence[NodeId],
    request: NodeRequest,
    enough: Callable[[Answers], bool] = _never,
) -> Steps[dict[NodeId, Answer]]:
    """The same of several nodes."""
    answers = yield Round([Ask(node, request) for node in nodes], enough)
    return dict(zip(nodes, answers, strict=True))


def ask_store(request: EpochStoreRequest) -> Steps[LogState | None]:
    """The state of the log afterwards; None: it is not known whether anything happened."""
    [answer] = yield Round([Ask(Service.EPOCH_STORE, request)])
    return answer if isinstance(answer, LogState) else None

"""Rounds of requests of fence, recovery, purge and resolve to nodes and metadata. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from loomlog.core import requests
from loomlog.core.copyset.messages import EpochStoreRequest, LogState, NodeAnswer, NodeRequest
from loomlog.core.requests import Ask, Lost, Outcome, Service
from loomlog.types import NodeId

CopysetAsk: TypeAlias = Ask[NodeId | Service, NodeRequest | EpochStoreRequest]
Answer: TypeAlias = NodeAnswer | LogState | Lost
Answers: TypeAlias = Mapping[NodeId, Answer]


def _never(answers: Answers) -> bool:
    return False


class Round(NamedTuple):
    """Requests that are sent all at once. They are answered in the same order."""

    asks: Sequence[CopysetAsk]
    enough: Callable[[Answers], bool] = _never  # then wait only briefly for the rest


Steps: TypeAlias = requests.Steps[Round, Sequence[Answer], Outcome]


def ask_each(
    nodes: Sequence[NodeId],
    request: NodeRequest,
    enough: Callable[[Answers], bool] = _never,
) -> Steps[dict[NodeId, Answer]]:
    """Send the same request to several nodes."""
    answers = yield Round([Ask(node, request) for node in nodes], enough)
    return dict(zip(nodes, answers, strict=True))


def ask_store(request: EpochStoreRequest) -> Steps[LogState | None]:
    """Return the state of the log afterwards; None if it is unknown what happened."""
    [answer] = yield Round([Ask(Service.METADATA, request)])
    return answer if isinstance(answer, LogState) else None

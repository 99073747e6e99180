"""Drives the procedures of core/copyset (fence, recovery, purge, resolve) over the network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

from loomlog.core.copyset.asking import Answer, Ask, Lost, Round, Steps
from loomlog.core.copyset.messages import (
    Activate,
    EpochStoreRequest,
    GetState,
    LogState,
    NodeAnswer,
    NodeRequest,
    SetClean,
)
from loomlog.types import NodeId

Outcome = TypeVar("Outcome")
AskNode: TypeAlias = Callable[[NodeId, NodeRequest, Callable[[NodeAnswer | None], None]], None]
AskStore: TypeAlias = Callable[[EpochStoreRequest], Awaitable[LogState | None]]

ANSWER_S: Final = 3.0  # nodes that are silent for longer count as dead elsewhere, too
GRACE_S: Final = 0.05  # for the rest, when there are enough answers


class Asker:
    def __init__(self, ask_node: AskNode, ask_store: AskStore) -> None:
        self._ask_node = ask_node
        self._ask_store = ask_store

    async def run(self, steps: Steps[Outcome]) -> Outcome:
        answers: list[Answer] | None = None
        while True:
            try:
                asked = steps.send(cast(list[Answer], answers))
            except StopIteration as stop:
                return cast(Outcome, stop.value)
            answers = await self._ask_all(asked)

    async def _ask_all(self, asked: Round) -> list[Answer]:
        answers = _Answers(asked)
        tasks = []
        for index, (target, request) in enumerate(asked.asks):
            if isinstance(request, Activate | SetClean | GetState):
                tasks.append(self._store_task(request, partial(answers.came, index)))
            else:
                assert isinstance(target, int)
                self._ask_node(target, request, partial(answers.came, index))
        try:
            return await answers.wait()
        finally:
            for task in tasks:
                task.cancel()

    def _store_task(
        self, request: EpochStoreRequest, done: Callable[[LogState | None], None]
    ) -> asyncio.Task[None]:
        async def ask() -> None:
            done(await self._ask_store(request))

        return asyncio.get_running_loop().create_task(ask())


class _Answers:
    """To the questions of one round."""

    def __init__(self, asked: Round) -> None:
        self._asked = asked
        self._answers: list[Answer | None] = [None] * len(asked.asks)
        self._missing = len(asked.asks)
        self._changed = asyncio.Event()

    def came(self, index: int, answer: NodeAnswer | LogState | None) -> None:
        if self._answers[index] is None:
            self._answers[index] = answer if answer is not None else Lost()
            self._missing -= 1
            self._changed.set()

    async def wait(self) -> list[Answer]:
        await self._until(self._are_enough, ANSWER_S)
        await self._until(lambda: False, GRACE_S)
        return [answer if answer is not None else Lost() for answer in self._answers]

    async def _until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        """Or until nothing is missing."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._missing and not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass

    def _are_enough(self) -> bool:
        pairs = zip(self._asked.asks, self._answers, strict=True)
        return self._asked.enough(
            {_node(ask): answer for ask, answer in pairs if answer is not None}
        )


def _node(ask: Ask) -> NodeId:
    assert isinstance(ask.target, int)
    return ask.target


async def insist(
    attempt: Callable[[], Coroutine[Any, Any, Outcome | None]],
    first_s: float = 0.05,
    max_s: float = 0.5,
) -> Outcome:
    """Until there is an outcome, more and more slowly."""
    pause_s = first_s
    while (outcome := await attempt()) is None:
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, max_s)
    return outcome

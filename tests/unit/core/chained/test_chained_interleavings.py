"""Every order in which parties can take their steps at one address, with a crash at every step.

A step is one question answered. When all have stopped, finished or not, any one node is left, a new
epoch begins, and the address is decided: earlier answers must still hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from chained_rig import Chains, batch

from loomlog.core.chained.append import Appended, append
from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import Answer, ChainedAsk, Found, Steps, Ticket, Write
from loomlog.core.chained.read import decide, decide_at, read
from loomlog.core.chained.reconfigure import (
    Goal,
    reconfigure,
)
from loomlog.core.requests import Ask, Lost
from loomlog.types import NodeId

TICKET = Ticket(1, 2, 1)
BLOCK = batch(TICKET)

Begin = Callable[[Chains], Steps[object]]


class Role:
    """A participant, and the node that it cannot reach."""

    def __init__(self, name: str, begin: Begin, cut_off: NodeId = 0) -> None:
        self.name = name
        self.begin = begin
        self.cut_off = cut_off

    def __repr__(self) -> str:
        return f"{self.name}-without-{self.cut_off}" if self.cut_off else self.name


@dataclass
class Process:
    """A role that is played, question by question."""

    log: Chains
    role: Role
    outcome: object = None
    running: bool = True
    _asks: list[ChainedAsk] = field(default_factory=list)
    _answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._steps = self.role.begin(self.log)
        self._go_on(lambda: next(self._steps))

    def step(self) -> None:
        ask = self._asks[len(self._answers)]
        cut_off = isinstance(ask.target, Replica) and ask.target.node_id == self.role.cut_off
        self._answers.append(Lost() if cut_off else self.log.answer(ask))
        if len(self._answers) == len(self._asks):
            answers = self._answers
            self._go_on(lambda: self._steps.send(answers))

    def _go_on(self, go_on: Callable[[], list[ChainedAsk]]) -> None:
        try:
            self._asks, self._answers = go_on(), []
        except StopIteration as ended:
            self.outcome, self.running = ended.value, False


def writer() -> Role:
    return Role("writer", lambda log: append(log.projection, TICKET, BLOCK))


def filler() -> Role:
    return Role("filler", lambda log: decide(log.projection, 1))


def reader() -> Role:
    return Role("reader", lambda log: read(log.projection, 1))


def reconfigurer(cut_off: NodeId = 0) -> Role:
    return Role(
        "reconfigurer", lambda log: reconfigure(log.projection, Goal(), 10 + cut_off), cut_off
    )


def play(roles: list[Role], nodes: int, schedule: list[int]) -> tuple[Chains, list[Process]]:
    log = Chains(nodes=nodes)
    log.ticket(TICKET.count)
    processes = [Process(log, role) for role in roles]
    for turn in schedule:
        processes[turn].step()
    return log, processes


def schedules(roles: list[Role], nodes: int) -> Iterator[list[int]]:
    """Return all orders and all their beginnings: a party without another turn has crashed."""
    pending: list[list[int]] = [[]]
    while pending:
        schedule = pending.pop()
        yield schedule
        _, processes = play(roles, nodes, schedule)
        pending += [[*schedule, turn] for turn, p in enumerate(processes) if p.running]


def check(roles: list[Role], nodes: int, schedule: list[int], survivor: NodeId) -> None:
    log, processes = play(roles, nodes, schedule)
    if survivor not in {replica.node_id for replica in log.projection.replicas}:
        return
    log.silent = set(range(1, nodes + 1)) - {survivor}
    final = log.run(decide_at(log.reconfigured(), 1))
    for process in processes:
        told = Found(BLOCK) if process.outcome == Appended() else process.outcome
        if isinstance(told, Found):
            assert final == told, f"{process.role} was told {told}"


def check_all(roles: list[Role], nodes: int) -> int:
    """Return how many ends there were."""
    ends = [
        (schedule, survivor)
        for schedule in schedules(roles, nodes)
        for survivor in range(1, nodes + 1)
    ]
    for schedule, survivor in ends:
        check(roles, nodes, schedule, survivor)
    return len(ends)


@pytest.mark.parametrize(
    ("nodes", "roles"),
    [
        (3, [writer(), filler()]),
        (3, [writer(), reader()]),
        (2, [filler(), filler()]),
        (3, [writer(), reconfigurer()]),
        (3, [writer(), reconfigurer(1)]),
        (3, [writer(), reconfigurer(2)]),
        (3, [writer(), reconfigurer(3)]),
        (3, [filler(), reconfigurer(1)]),
        (3, [reader(), reconfigurer(3)]),
        (2, [writer(), reconfigurer(1), reconfigurer(2)]),
        (2, [writer(), reader(), reconfigurer(1)]),
        (2, [writer(), filler(), reconfigurer(1)]),
        (2, [writer(), filler(), reconfigurer(2)]),
    ],
    ids=str,
)
def test_whatever_the_order_what_was_told_holds(nodes: int, roles: list[Role]) -> None:
    assert check_all(roles, nodes) > 50


def test_a_writer_that_trusts_its_head_would_be_noticed() -> None:
    def hasty(log: Chains) -> Steps[object]:
        yield [Ask(log.projection.heads[0], Write(1, BLOCK))]
        return Appended()

    with pytest.raises(AssertionError, match="was told"):
        check_all([Role("hasty", hasty), filler()], 2)

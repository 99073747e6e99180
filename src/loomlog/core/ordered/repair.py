"""What the metadata repository does next about a stream. Pure: state in, one action out.

The reconcile loop asks again and again; every action is safe to repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from loomlog.core.ordered.rounds import StreamRounds
from loomlog.types import NodeId, ReplicaState


@dataclass(frozen=True, slots=True)
class BeginSeal:
    """Raise the epoch and decide the last commit: the stream cannot go on as it is."""

    reason: str


@dataclass(frozen=True, slots=True)
class SendSeal:
    """Tell these replicas the last commit (again)."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Unseal:
    """Every replica is SEALED at the same place: let it run."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before something changes."""

    reason: str


Action: TypeAlias = BeginSeal | SendSeal | Unseal | Wait


def decide(stream: StreamRounds, alive: Callable[[NodeId], bool]) -> Action:
    """The next step towards a running stream."""
    if not stream.sealed:
        return _decide_running(stream, alive)
    return _decide_sealed(stream, alive)


def _decide_running(stream: StreamRounds, alive: Callable[[NodeId], bool]) -> Action:
    for node in stream.replicas:
        if not alive(node):
            return BeginSeal(f"node {node} is silent")
        report = stream.reports.get(node)
        if report is None:
            continue
        if report.state is not ReplicaState.RUNNING or report.epoch != stream.epoch:
            return BeginSeal(f"node {node} is {report.state} in epoch {report.epoch}")
    return Wait("running")


def _decide_sealed(stream: StreamRounds, alive: Callable[[NodeId], bool]) -> Action:
    behind = []
    for node in stream.replicas:
        report = stream.reports.get(node)
        if report is None or not alive(node):
            continue
        if report.epoch > stream.epoch or (
            report.epoch == stream.epoch and report.state is ReplicaState.RUNNING
        ):
            return BeginSeal(f"node {node} runs in epoch {report.epoch}")
        if report.epoch < stream.epoch or report.state is not ReplicaState.SEALED:
            behind.append(node)
    if behind:
        return SendSeal(tuple(behind))
    silent = [node for node in stream.replicas if not alive(node) or node not in stream.reports]
    if silent:
        return Wait(f"sealed: waiting for node {', '.join(map(str, silent))}")
    return Unseal()

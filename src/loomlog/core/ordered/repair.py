"""What the metadata repository does next about a stream. Pure: state in, one action out.

The reconcile loop asks again and again; every action is safe to repeat, and each brings the stream
one step nearer to running on enough live replicas:

    a node dies      BeginSeal, SendSeal, Join a spare, Synchronise it, Swap it in, Unseal
    it comes back    SendSeal, Synchronise what it missed, Unseal
    a move           Join the new one, Synchronise while the stream runs, then as above

A stream never has fewer replicas than it had: the newcomer is filled first, as `joining`, and takes
the place of another in one step. Only who leaves without being wanted elsewhere (an operator
unregistered it) goes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from loomlog.core.ordered.rounds import StreamRounds
from loomlog.types import NodeId, ReplicaState, Report

NEARLY_ENTRIES: Final = 10_000  # a newcomer this near to the end is worth a short seal
FAR_ENTRIES: Final = 200_000  # and one this far from it is not worth a long one


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
class Join:
    """Make an empty replica on this node (perhaps one that lost it); it will be filled."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Synchronise:
    """Copy what the destination misses from the source."""

    source: NodeId
    destination: NodeId


@dataclass(frozen=True, slots=True)
class Swap:
    """The newcomer is whole: these are the replicas from now on."""

    replicas: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class DropJoining:
    """The newcomer is not needed any more, or gone."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before something changes."""

    reason: str


Action: TypeAlias = BeginSeal | SendSeal | Unseal | Join | Synchronise | Swap | DropJoining | Wait


class Nodes(Protocol):
    """What is known of the storage nodes."""

    def alive(self, node: NodeId) -> bool: ...

    def lost(self, node: NodeId) -> bool:
        """Silent for so long that its replicas are made anew elsewhere."""

    def spare(self, stream: StreamRounds) -> NodeId | None:
        """The best node for one more replica of the stream, if there is one."""


def decide(stream: StreamRounds, nodes: Nodes) -> Action:
    """The next step towards the stream as it should be."""
    if stream.sealed:
        return _decide_sealed(stream, nodes)
    return _decide_running(stream, nodes)


# ---- a running stream


def _decide_running(stream: StreamRounds, nodes: Nodes) -> Action:
    if not stream.wanted_running:
        return BeginSeal("its segment ends" if stream.closed else "an operator asked for it")
    for node in stream.replicas:
        if not nodes.alive(node):
            return BeginSeal(f"node {node} is silent")
        report = stream.reports.get(node)
        if report is None:
            continue
        if report.state is not ReplicaState.RUNNING or report.epoch != stream.epoch:
            return BeginSeal(f"node {node} is {report.state} in epoch {report.epoch}")
    if stream.joining is not None:
        return _fill_while_running(stream, stream.joining, nodes)
    if _wants_another(stream):
        return _join_spare(stream, nodes, otherwise="running")
    if _leaves_alone(stream):
        return BeginSeal(f"node {stream.leaving} leaves")
    return Wait("running")


def _fill_while_running(stream: StreamRounds, joining: NodeId, nodes: Nodes) -> Action:
    if not _wants_another(stream):
        return DropJoining(joining, "it is not needed any more")
    if nodes.lost(joining):
        return DropJoining(joining, "it fell silent")
    if not nodes.alive(joining):
        return Wait(f"running; waiting for node {joining}, which joins")
    report = stream.reports.get(joining)
    if report is None:
        return Join(joining)
    fillable = report.state is ReplicaState.SEALING  # else it has to hear of a seal first
    if fillable and _missing_entries(stream, report) > NEARLY_ENTRIES:
        return Synchronise(stream.replicas[-1], joining)
    return BeginSeal(f"node {joining} joins")


def _missing_entries(stream: StreamRounds, report: Report) -> int:
    return stream.committed_llsn_end - report.uncommitted_llsn_offset


def _staying(stream: StreamRounds) -> tuple[NodeId, ...]:
    return tuple(node for node in stream.replicas if node != stream.leaving)


def _wants_another(stream: StreamRounds) -> bool:
    return len(_staying(stream)) < stream.wanted_replicas


def _leaves_alone(stream: StreamRounds) -> bool:
    """A replica leaves, and nobody is to take its place."""
    staying = _staying(stream)
    return bool(staying) and staying != stream.replicas and not _wants_another(stream)


def _join_spare(stream: StreamRounds, nodes: Nodes, otherwise: str) -> Action:
    spare = nodes.spare(stream)
    if spare is None:
        return Wait(f"{otherwise}; no spare node for another replica")
    return Join(spare)


# ---- a sealed stream


def _decide_sealed(stream: StreamRounds, nodes: Nodes) -> Action:
    everyone = [*stream.replicas, *([stream.joining] if stream.joining is not None else [])]
    heard = {n: r for n in everyone if nodes.alive(n) and (r := stream.reports.get(n))}
    for node, report in heard.items():
        if report.epoch > stream.epoch or (
            report.epoch == stream.epoch and report.state is ReplicaState.RUNNING
        ):
            return BeginSeal(f"node {node} runs in epoch {report.epoch}")
    untold = tuple(n for n, report in heard.items() if _needs_seal(stream, report))
    if untold:
        return SendSeal(untold)
    whole = [n for n, report in heard.items() if report.state is ReplicaState.SEALED]
    complete = all(node in whole for node in stream.replicas)
    if complete and stream.joining is not None and not _wants_another(stream):
        return DropJoining(stream.joining, "it is not needed any more")
    sources = [n for n in whole if not heard[n].damaged]
    if stream.joining is None and _leaves_alone(stream):
        staying = _staying(stream)
        if any(node in sources for node in staying):
            return Swap(staying)
    behind = [n for n in heard if n not in whole]
    if complete and _far(stream, heard, whole):
        return Unseal()
    if behind and sources:
        return Synchronise(sources[-1], behind[0])
    if complete:
        return _decide_whole(stream, nodes, heard, whole)
    return _decide_incomplete(stream, nodes, heard, whole)


def _far(stream: StreamRounds, heard: dict[NodeId, Report], whole: list[NodeId]) -> bool:
    """A newcomer misses so much that the stream should run while that is copied."""
    report = heard.get(stream.joining) if stream.joining is not None else None
    if report is None or stream.joining in whole or not stream.wanted_running:
        return False
    return _missing_entries(stream, report) > FAR_ENTRIES


def _needs_seal(stream: StreamRounds, report: Report) -> bool:
    """Whether the seal, with the commits before it, is all that this replica misses."""
    if report.epoch < stream.epoch:
        return True
    stored_all = report.written_end >= stream.committed_llsn_end
    return report.state is not ReplicaState.SEALED and stored_all and not report.damaged


def _decide_whole(
    stream: StreamRounds, nodes: Nodes, heard: dict[NodeId, Report], whole: list[NodeId]
) -> Action:
    """All replicas have everything."""
    joining = stream.joining
    if joining is not None:
        if joining in whole:
            return _swap(stream, heard[joining], _replicas_with(stream, joining))
        return _join_again(joining, nodes)
    if stream.wanted_running:
        return Unseal()
    closed = "sealed: its segment of the log is not the active one"
    reason = closed if stream.closed else "sealed by an operator"
    if _wants_another(stream):
        return _join_spare(stream, nodes, otherwise=reason)
    return Wait(reason)


def _decide_incomplete(
    stream: StreamRounds, nodes: Nodes, heard: dict[NodeId, Report], whole: list[NodeId]
) -> Action:
    """Some replica is away, or nobody has what it misses."""
    missing = [node for node in stream.replicas if node not in heard]
    back_without = [node for node in missing if nodes.alive(node)]
    if back_without and (whole or stream.committed_llsn_end == 1):
        return Join(back_without[0])
    if not missing or not whole:
        away = f"; node {_names(missing)} is away" if missing else ""
        return Wait(f"sealed: no live replica has every committed entry{away}")
    joining = stream.joining
    if joining is not None:
        if joining in whole:
            replicas = _replicas_with(stream, joining, instead_of=missing[0])
            return _swap(stream, heard[joining], replicas)
        return _join_again(joining, nodes)
    waiting = f"sealed: waiting for node {_names(missing)}"
    if any(nodes.lost(node) for node in missing):
        return _join_spare(stream, nodes, otherwise=waiting)
    return Wait(waiting)


def _swap(stream: StreamRounds, newcomer: Report, replicas: tuple[NodeId, ...]) -> Action:
    """Not before a crash would leave the newcomer whole: the rounds that it was copied may be
    known only to who makes room for it."""
    if newcomer.stored_high_watermark < newcomer.high_watermark:
        return Wait(f"sealed: node {stream.joining}, which joins, writes the last of it")
    return Swap(replicas)


def _join_again(joining: NodeId, nodes: Nodes) -> Action:
    """The newcomer has not been heard of yet, or fell silent."""
    if nodes.lost(joining):
        return DropJoining(joining, "it fell silent")
    if not nodes.alive(joining):
        return Wait(f"sealed: waiting for node {joining}, which joins")
    return Join(joining)


def _names(nodes: list[NodeId]) -> str:
    return ", ".join(map(str, nodes))


def _replicas_with(
    stream: StreamRounds, joining: NodeId, instead_of: NodeId | None = None
) -> tuple[NodeId, ...]:
    """The newcomer comes last: who has served before is the better primary. Who is away goes
    before who is to leave."""
    leaving = stream.leaving if instead_of is None else instead_of
    return (*(node for node in stream.replicas if node != leaving), joining)

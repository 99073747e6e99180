"""Decide the next repair step of a stream. Pure: state in, one action out.

The repair loop calls `decide` again after every action. Actions are idempotent, and each brings the
stream one step closer to running on enough live replicas:

    a node dies      BeginSeal, SendSeal, Join a spare, Synchronise it, Swap it in, Unseal
    it comes back    SendSeal, Synchronise what it missed, Unseal
    all lose data    SendSeal, Join and Synchronise what is left; it stays sealed
    ... for good     the same, with a spare in place of each node that never comes back
    a move           Join the new one, Synchronise while the stream runs, then as above

The number of replicas never drops: a newcomer (`joining`) is filled first, and then takes the place
of another replica in one step. The exception is a replica that an operator unregistered, which may
leave without a successor.

There are two tables of rules, for running and for sealed streams. The first rule that applies
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from loomlog.core.ordered.rounds import StreamRounds
from loomlog.core.ordered.situation import Nodes, Situation
from loomlog.types import Glsn, Llsn, NodeId, ReplicaState

NEARLY_ENTRIES: Final = 10_000  # a newcomer that lacks at most this many is filled under a seal
FAR_ENTRIES: Final = 200_000  # one that lacks more than this many is filled while appends continue
MOVES_MAX: Final = 4  # healthy streams that are moved at the same time
RUNNING: Final = "running"  # the reason to Wait if all is well, and the prefix of other reasons


@dataclass(frozen=True, slots=True)
class BeginSeal:
    """Raise the epoch and fix the last commit: the stream cannot keep running as it is."""

    reason: str


@dataclass(frozen=True, slots=True)
class SendSeal:
    """Send the seal, with the last commit, to these replicas, perhaps again."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Unseal:
    """Let the stream run: every replica is SEALED at the same end."""


@dataclass(frozen=True, slots=True)
class Join:
    """Create an empty replica on this node, to be filled. The node may have lost its previous
    one."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Synchronise:
    """Copy the entries that the destination lacks from the source."""

    source: NodeId
    destination: NodeId


@dataclass(frozen=True, slots=True)
class Swap:
    """Replace the replicas of the stream by these."""

    replicas: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class DropJoining:
    """Abandon the newcomer: it is no longer needed, or its node is gone."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the stream from its log and from all nodes: all its entries are trimmed."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until something changes."""

    reason: str


class Loss(NamedTuple):
    """The part of a stream that is lost."""

    first: Llsn
    after: Glsn  # all entries of the stream above this position are lost


def find_loss(
    stream: StreamRounds,
    without_commits: Collection[NodeId] = (),
    given_up: Collection[NodeId] = (),
) -> Loss | None:
    """Return the committed entries that no node has, or None if there are none.

    All nodes with replicas must have reported, except for those that an operator gave up. Nodes
    `without_commits` have lost the positions of their last entries."""
    nodes = [*stream.replicas, *([] if stream.joining is None else [stream.joining])]
    reported = [node for node in nodes if node in stream.reports and node not in given_up]
    reports = [stream.reports[node] for node in reported]
    ends = (
        stream.reports[node].uncommitted_llsn_offset
        if node in without_commits
        else stream.reports[node].written_end
        for node in reported
    )
    first = max(ends, default=1)
    if first >= stream.committed_llsn_end:
        return None
    return Loss(first, max((report.high_watermark for report in reports), default=0))


Action: TypeAlias = (
    BeginSeal | SendSeal | Unseal | Join | Synchronise | Swap | DropJoining | Remove | Wait
)


def decide(stream: StreamRounds, nodes: Nodes) -> Action:
    """Return the next step that brings the stream towards its wanted state."""
    return matching_rule(situation := Situation(stream, nodes)).action(situation)


def matching_rule(situation: Situation) -> Rule:
    for rule in SEALED_RULES if situation.stream.sealed else RUNNING_RULES:
        if rule.applies(situation):
            return rule
    raise AssertionError("the last rule always applies")


class Rule(NamedTuple):
    when: str
    applies: Callable[[Situation], bool]
    action: Callable[[Situation], Action]


RUNNING_RULES: Final = (
    Rule(
        "it cannot keep running as it is",
        lambda s: bool(s.obstacle),
        lambda s: BeginSeal(s.obstacle),
    ),
    Rule(
        "the newcomer is no longer needed",
        lambda s: s.joining is not None and not s.wants_another,
        lambda s: DropJoining(s.newcomer, "it is not needed any more"),
    ),
    Rule(
        "the newcomer is lost",
        lambda s: s.newcomer_is_lost,
        lambda s: DropJoining(s.newcomer, "it fell silent"),
    ),
    Rule(
        "the newcomer is away",
        lambda s: s.newcomer_is_away,
        lambda s: Wait(f"{RUNNING}; waiting for node {s.joining}, which joins"),
    ),
    Rule(
        "the newcomer has not been made",
        lambda s: s.joining is not None and s.joining not in s.reports,
        lambda s: Join(s.newcomer),
    ),
    Rule(
        "the newcomer can be filled during appends",  # if it is not SEALING, it needs a seal first
        lambda s: (
            s.joining is not None
            and s.reports[s.joining].state is ReplicaState.SEALING
            and s.newcomer_lacks > NEARLY_ENTRIES
        ),
        lambda s: Synchronise(s.stream.replicas[-1], s.newcomer),
    ),
    Rule(
        "the newcomer is nearly whole",
        lambda s: s.joining is not None,
        lambda s: BeginSeal(f"node {s.joining} joins"),
    ),
    Rule(
        "it needs another replica and there is no node for it",
        lambda s: s.wants_another and s.spare is None,
        lambda s: Wait(f"{RUNNING}; {s.shortage}no spare node for another replica"),
    ),
    Rule(
        "it needs another replica and others are moved first",
        lambda s: s.wants_another and s.nodes.moving() >= MOVES_MAX,
        lambda s: Wait(f"{RUNNING}; waits until other streams have moved"),
    ),
    Rule(
        "it needs another replica",
        lambda s: s.wants_another,
        lambda s: _join_spare(s),
    ),
    Rule(
        "a replica leaves without a successor",
        lambda s: s.one_leaves_alone,
        lambda s: BeginSeal(f"node {s.stream.leaving} leaves"),
    ),
    Rule(
        "another replica is to be the primary",
        lambda s: s.next_primary is not None,
        lambda s: BeginSeal(f"node {s.next_primary} becomes the primary"),
    ),
    Rule("all is well", lambda s: True, lambda s: Wait(RUNNING)),
)

SEALED_RULES: Final = (
    Rule(
        "its seal is not recorded",  # its replicas may still run in this epoch
        lambda s: not s.stream.sealed_at,
        lambda s: BeginSeal("where it ends is not recorded"),
    ),
    Rule(
        "a replica runs or knows a newer epoch",
        lambda s: s.too_new is not None,
        lambda s: _seal_again(s),
    ),
    Rule(
        "replicas lack only the seal",
        lambda s: bool(s.unsealed),
        lambda s: SendSeal(s.unsealed),
    ),
    Rule(
        "it is being removed and nothing of it is left",
        lambda s: s.nothing_is_left,
        lambda s: Remove(),
    ),
    Rule(
        "the newcomer is no longer needed",
        lambda s: s.complete and s.joining is not None and not s.wants_another,
        lambda s: DropJoining(s.newcomer, "it is not needed any more"),
    ),
    Rule(
        "a replica leaves without a successor",  # unless no other is whole
        lambda s: (
            s.joining is None
            and s.one_leaves_alone
            and any(node in s.sources for node in s.staying)
        ),
        lambda s: Swap(s.staying),
    ),
    Rule(
        "the newcomer is so far behind that the stream should run meanwhile",
        lambda s: (
            s.complete
            and s.stream.wanted_running
            and s.joining in s.behind
            and s.newcomer_lacks > FAR_ENTRIES
        ),
        lambda s: Unseal(),
    ),
    Rule(
        "a replica is behind and another has everything",
        lambda s: bool(s.behind and s.sources),
        lambda s: Synchronise(s.sources[-1], s.behind[0]),
    ),
    Rule(
        "a node came back without its replica",
        lambda s: bool(s.emptied),
        lambda s: Join(s.emptied[0]),
    ),
    Rule(
        "its end is lost, and so is a replica of what is left",
        lambda s: bool(s.lacks_rest) and s.lacks_rest[0] not in s.reports,
        lambda s: Join(s.lacks_rest[0]),
    ),
    Rule(
        "its end is lost, and a replica lacks some of what is left",
        lambda s: bool(s.lacks_rest),
        lambda s: _copy_rest(s),
    ),
    Rule(
        "its end is lost, and the newcomer lacks some of what is left",
        lambda s: s.newcomer_lacks_rest,
        lambda s: _copy_rest_to_newcomer(s),
    ),
    Rule(
        "its end is lost, and the newcomer is no longer needed",
        lambda s: s.newcomer_is_needless,
        lambda s: DropJoining(s.newcomer, "it is not needed any more"),
    ),
    Rule(
        "no live replica has everything",  # but one that is down may
        lambda s: (
            not s.complete
            and not (s.missing and s.whole)
            and not s.continues_with_rest
            and not s.newcomer_has_rest
        ),
        lambda s: Wait(s.nobody_is_whole),
    ),
    Rule(
        "the newcomer has everything, or all that is left, but not durable",
        lambda s: s.newcomer_is_ready and not s.newcomer_is_durable,
        lambda s: Wait(f"sealed: node {s.joining}, which joins, writes the last of it"),
    ),
    Rule(
        "the newcomer has everything, or all that is left",
        lambda s: s.newcomer_is_ready,
        lambda s: Swap(s.replicas_with_newcomer),
    ),
    Rule(
        "the newcomer is lost",
        lambda s: s.newcomer_is_lost,
        lambda s: DropJoining(s.newcomer, "it fell silent"),
    ),
    Rule(
        "the newcomer is away",
        lambda s: s.newcomer_is_away,
        lambda s: Wait(f"sealed: waiting for node {s.joining}, which joins"),
    ),
    Rule(
        "the newcomer has not been made",
        lambda s: s.joining is not None,
        lambda s: Join(s.newcomer),
    ),
    Rule(
        "every replica is whole, and another one is to be the primary",
        lambda s: s.complete and s.next_primary is not None,
        lambda s: Swap(s.replicas_with_next_primary),
    ),
    Rule(
        "every replica is whole",
        lambda s: s.complete and s.stream.wanted_running,
        lambda s: Unseal(),
    ),
    Rule(
        "it stays sealed, or waits for a node",
        lambda s: not s.needs_spare,
        lambda s: Wait(s.standing),
    ),
    Rule(
        "it needs another replica and there is no node for it",
        lambda s: s.spare is None,
        lambda s: Wait(f"{s.standing}; no spare node for another replica"),
    ),
    Rule("it needs another replica", lambda s: True, lambda s: _join_spare(s)),
)


def _join_spare(situation: Situation) -> Join:
    assert situation.spare is not None
    return Join(situation.spare)


def _copy_rest(situation: Situation) -> Synchronise:
    assert situation.fullest is not None
    return Synchronise(situation.fullest, situation.lacks_rest[0])


def _copy_rest_to_newcomer(situation: Situation) -> Synchronise:
    assert situation.fullest is not None
    return Synchronise(situation.fullest, situation.newcomer)


def _seal_again(situation: Situation) -> BeginSeal:
    assert situation.too_new is not None
    epoch = situation.live_reports[situation.too_new].epoch
    return BeginSeal(f"node {situation.too_new} runs in epoch {epoch}")


# ---- help for carrying it out


def is_same(action: Action, other: Action) -> bool:
    """Return whether `other` continues the same action. A copy may change its source."""
    if isinstance(action, Synchronise) and isinstance(other, Synchronise):
        return action.destination == other.destination
    return action == other


def choose_source(
    stream: StreamRounds,
    wanted: Synchronise,
    attempt: int,
    reachable: Callable[[NodeId], bool],
    preferred: NodeId | None = None,
) -> NodeId:
    """Return the replica to copy from, a different one for each attempt: an attempt may have failed
    because of its source. The operator's preferred replica comes first."""

    def is_fit(node: NodeId) -> bool:
        report = stream.reports.get(node)
        if report is None or node in (wanted.source, wanted.destination) or not reachable(node):
            return False
        is_sealing = report.state is ReplicaState.SEALING
        return report.epoch == stream.epoch and not is_sealing and not report.damaged

    sources = [wanted.source, *filter(is_fit, stream.replicas)]
    sources.sort(key=lambda node: node != preferred)
    return sources[attempt % len(sources)]


# ---- a log without a running stream


def stands_still(
    streams: Iterable[StreamRounds],
    node: NodeId,
    is_hit: Callable[[StreamRounds], bool],
    is_full: Callable[[StreamRounds], bool],
) -> bool:
    """Return whether a log takes no appends until a dead node is back or replaced, or a full one
    has room again: each of its streams is full, or sealed and hit by the failure, and `node` has at
    least one of them. Such a log is given a new, empty stream."""
    return concerns_all(
        streams, node, lambda stream: is_full(stream) or (stream.sealed and is_hit(stream))
    )


def concerns_all(
    streams: Iterable[StreamRounds], node: NodeId, holds: Callable[[StreamRounds], bool]
) -> bool:
    """Return whether `holds` is true for all streams in use, at least one of which is on `node`."""
    in_use = [stream for stream in streams if not stream.closed and not stream.removing]
    is_concerned = any(node in s.replicas and s.wanted_running for s in in_use)
    return is_concerned and all(map(holds, in_use))


def unneeded(
    streams: Iterable[StreamRounds],
    alive: Callable[[NodeId], bool],
    is_full: Callable[[StreamRounds], bool],
) -> list[StreamRounds]:
    """Return the relief streams of a log that are not needed any more: all other streams that
    should run do, with all their replicas, and have room."""
    in_use = [stream for stream in streams if stream.wanted_running]
    others = [stream for stream in in_use if not stream.relief]
    if not others or not all(_runs_whole(stream, alive) for stream in others):
        return []
    if any(map(is_full, others)):
        return []
    return [stream for stream in in_use if stream.relief]


def _runs_whole(stream: StreamRounds, alive: Callable[[NodeId], bool]) -> bool:
    has_all = len(stream.replicas) >= stream.wanted_replicas
    is_changing = stream.joining is not None or stream.leaving is not None
    return not stream.sealed and has_all and not is_changing and all(map(alive, stream.replicas))


class Copying(NamedTuple):
    """The progress of a copy from one replica to another."""

    source: NodeId
    destination: NodeId
    copied_llsn: Llsn
    last_llsn: Llsn
    copied_bytes: int


def condition(action: Action, copying: Copying | None, trouble: str | None) -> str:
    """Return why the stream does not run and what is being done; "" if all is well."""
    words = _words(action, copying)
    if trouble and words:
        return f"{words}; {trouble}"
    return words


def _words(action: Action, copying: Copying | None) -> str:
    match action:
        case Wait(reason):
            return reason.removeprefix(RUNNING).removeprefix("; ")
        case BeginSeal(reason):
            return f"is being sealed: {reason}"
        case SendSeal(nodes):
            return f"sealed: telling node {', '.join(map(str, nodes))}"
        case Unseal():
            return "is being unsealed"
        case Join(node):
            return f"making a replica on node {node}"
        case Synchronise(source, destination):
            return _copy_words(source, destination, copying)
        case Swap(replicas):
            return f"continues with nodes {', '.join(map(str, replicas))}"
        case DropJoining(node, reason):
            return f"node {node} does not join: {reason}"
        case Remove():
            return "is being removed"


def _copy_words(source: NodeId, destination: NodeId, copying: Copying | None) -> str:
    if copying is None or copying.destination != destination:
        return f"copying from node {source} to node {destination}"
    words = f"copying from node {copying.source} to node {destination}"
    return f"{words}: {copying.copied_llsn} of {copying.last_llsn} entries"

"""From one projection to the next. Pure.

    seal every replica at the next epoch → who answered stays → (copy the rest to a newcomer) →
    compare-and-swap the projection → the new sequencer begins behind all that was found

Nothing is repaired on the way: what a block lacks further down, and holes, are what readers of the
new projection complete and fill as always. So it takes two round trips, however long the log is.

- One replica of each chain is enough. What was acknowledged is on each of them; what is on none of
  them was not, and is not.
- Who did not answer must leave: it may still take writes of the old epoch. It comes back as
  another replica, empty.
- Two at once seal the same epoch and write nothing; one of them gets its projection into force.
- A newcomer is filled from the tail of a projection in force: all that is there is decided. The
  last part is copied when that tail is sealed; if it is lost meanwhile, the newcomer has to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from loomlog.core.chained.joining import Newcomer, copy
from loomlog.core.chained.messages import (
    Answer,
    Ask,
    Current,
    Done,
    EpochOver,
    InForce,
    Seal,
    SealedAt,
    Service,
    Steps,
    Swap,
    Swapped,
    Trim,
)
from loomlog.core.chained.outcomes import Interrupted, first_stop
from loomlog.core.chained.projection import Chain, Projection, Replica
from loomlog.types import Glsn, NodeId


class Goal(NamedTuple):
    """What shall change, besides that silent replicas leave."""

    leaving: frozenset[NodeId] = frozenset()
    newcomer: Newcomer | None = None
    close: bool = False
    unfit: frozenset[Replica] = frozenset()  # leave, too: they are not what they should be


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """The projection is in force, and its sequencer is the caller's to make."""

    projection: Projection


@dataclass(frozen=True, slots=True)
class Adopted:
    """Another one is in force."""

    projection: Projection


Ending: TypeAlias = Reconfigured | Adopted | Interrupted
Seals: TypeAlias = Mapping[Replica, SealedAt]


def _nothing() -> Glsn:
    return 0


def reconfigure(
    projection: Projection,
    goal: Goal,
    sequencer: int,
    handed_out: Callable[[], Glsn] = _nothing,
) -> Steps[Ending]:
    """Replace a projection that is in force. `sequencer` is of this attempt alone. `handed_out`:
    where the old sequencer has ended, for who knows it: the end of a log does not fall then."""
    epoch = projection.epoch + 1
    newcomer = goal.newcomer
    replicas = [*projection.replicas, *([newcomer.replica] if newcomer else [])]
    answers = yield [Ask(replica, Seal(epoch)) for replica in replicas]
    if any(isinstance(answer, EpochOver) for answer in answers):
        return (yield from _adopt(projection))
    seals = _seals(replicas, answers)
    chains = [_staying(chain, seals, goal) for chain in projection.chains]
    if not all(chains):
        return Interrupted(_why_none_stays(projection, chains.index(()), seals))
    if newcomer is not None:
        index = newcomer.replica.chain
        problem = yield from _fill_up(projection.chains[index][-1], newcomer, seals, epoch)
        if problem is not None:
            return problem
        chains[index] += (newcomer.replica,)
    new = projection._replace(
        epoch=epoch,
        start=max(projection.start, handed_out(), *(seal.end for seal in seals.values())),
        chains=tuple(chains),
        sequencer=sequencer,
        closed=projection.closed or goal.close,
    )
    return (yield from _swap(projection, new))


def _why_none_stays(projection: Projection, index: int, seals: Seals) -> str:
    silent = [str(r.node_id) for r in projection.chains[index] if r not in seals]
    if not silent:
        return f"all replicas of chain {index} are to leave"
    return f"no replica of chain {index} answered that may stay: start node {' or '.join(silent)}"


def _seals(replicas: list[Replica], answers: list[Answer]) -> Seals:
    pairs = zip(replicas, answers, strict=True)
    return {replica: answer for replica, answer in pairs if isinstance(answer, SealedAt)}


def _staying(chain: Chain, seals: Seals, goal: Goal) -> Chain:
    gone = goal.unfit | {r for r in chain if r.node_id in goal.leaving or r not in seals}
    return tuple(replica for replica in chain if replica not in gone)


def _fill_up(
    tail: Replica, newcomer: Newcomer, seals: Seals, epoch: int
) -> Steps[Interrupted | None]:
    """Copy what came to the tail since the newcomer was filled. Both are sealed by now."""
    if tail not in seals or newcomer.replica not in seals:
        return Interrupted("the newcomer or the replica it is copied from did not answer")
    trimmed = yield from copy(epoch, tail, newcomer)
    if isinstance(trimmed, Interrupted):
        return trimmed
    trimmed = max(trimmed, seals[tail].trimmed)
    if not trimmed:
        return None
    stop = first_stop((yield [Ask(newcomer.replica, Trim(epoch, trimmed))]), Done)
    return stop if isinstance(stop, Interrupted) else None


def _swap(projection: Projection, new: Projection) -> Steps[Ending]:
    [answer] = yield [Ask(Service.METADATA, Swap(new))]
    match answer:
        case Swapped():
            return Reconfigured(new)
        case InForce(other):
            return Adopted(other)
    ending = yield from _adopt(projection)
    if isinstance(ending, Adopted) and ending.projection == new:
        return Reconfigured(new)
    return ending


def _adopt(projection: Projection) -> Steps[Adopted | Interrupted]:
    [answer] = yield [Ask(Service.METADATA, Current())]
    if not isinstance(answer, InForce):
        return Interrupted("the metadata repository does not answer")
    if answer.projection.epoch <= projection.epoch:
        return Interrupted("nothing newer is in force yet")
    return Adopted(answer.projection)

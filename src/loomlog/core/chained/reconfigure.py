"""Replace a projection by the next one, and fill replicas that join. Pure.

    seal every replica at the next epoch → those that answer stay → (copy the rest to a newcomer) →
    compare-and-swap the projection → the new sequencer begins above everything that was found

Unless nodes crashed, nothing is repaired here: readers of the new projection complete blocks and
fill holes as always. So it takes two round trips, however long the log is.

- One replica of each chain is enough. Acknowledged blocks are on all of them. A block that is on
  none of those that answer was not acknowledged, and never will be.
- A replica may have forgotten blocks if its node crashed since the epoch began: its disk may have
  confirmed writes that it lost. It gets these blocks from the others. If all that answer have
  crashed, the others are waited for as long as is reasonable, because one of them may still have
  what was acknowledged. A replica that is not waited for any longer is recorded as unheard, and
  compared when it is back (comparison.py).
- A chain that becomes too short for appends gains little, and depends on fewer disks. So if nodes
  unexpectedly do not answer, perhaps because the whole cluster is stopping, the epoch is not begun
  and the next step is decided again (`Goal.short`).
- A replica that did not answer leaves, because it may still accept writes of the old epoch.
- Two concurrent attempts seal the same epoch and write nothing to replicas in force; one wins the
  swap. The other one's newcomer is given up: it may have blocks that are not decided.
- A newcomer is filled while the log is in use, from the tail of a projection in force, because all
  blocks there are decided. The last part is copied after that tail is sealed. If the tail is lost
  or another epoch begins meanwhile, the newcomer waits. If its own node crashes, it is given up.
- A chain whose replicas are all lost or damaged begins again with a fresh one, which gets the
  blocks that they, replicas that left, and newcomers still have. Positions below the start of the
  new epoch that no block of any chain covers are lost for good. Replicas that left may have blocks
  in places that later went to others. So where two blocks overlap, even on different chains, the
  one that is copied first stays. Their junk does not count: a block may have been decided in its
  place and lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Final, NamedTuple, TypeAlias

from loomlog.core.chained.chain import Chain, Projection, Replica, Unheard
from loomlog.core.chained.lost_blocks import (
    find_additions,
    find_gaps,
    find_missing,
    find_places,
    lost_by,
    overlaps,
    with_losses,
)
from loomlog.core.chained.messages import (
    Answer,
    Current,
    Done,
    EpochOver,
    InForce,
    Interrupted,
    Seal,
    SealedAt,
    Steps,
    Swap,
    Swapped,
    Trim,
    first_stop,
)
from loomlog.core.chained.newcomer import Newcomer, as_interrupted, copy, create
from loomlog.core.chained.replica import NOT_HERE
from loomlog.core.requests import Ask, Service
from loomlog.limits import POSITION_MAX
from loomlog.types import Glsn, NodeId

# An upper bound, used if blocks may be lost and it is unknown how many positions were handed out.
HANDED_OUT_MAX: Final = 1 << 40


class Goal(NamedTuple):
    """The wanted changes, apart from dropping silent replicas."""

    leaving: frozenset[NodeId] = frozenset()
    newcomer: Newcomer | None = None
    close: bool = False
    unfit: frozenset[Replica] = frozenset()  # leave, because blocks are missing or damaged
    fresh: tuple[Replica, ...] = ()  # one for each chain without a whole replica
    older: tuple[Replica, ...] = ()  # of those chains, and not in force; most trustworthy first
    damaged: frozenset[Replica] = frozenset()  # unfit, but they know which blocks there were
    moved: frozenset[Replica] = frozenset()  # leave, because others have replaced them
    short: bool = True  # chains may become shorter than appends need
    forgotten: tuple[range, ...] = ()  # blocks that are proven to be lost
    # Called when all replicas of a chain that answer have crashed, and others do not answer.
    # Returns whether to continue without those.
    do_without: Callable[[], bool] = lambda: False
    filling: Callable[[], None] = lambda: None  # called before the newcomer gets the last part

    @property
    def lost_chains(self) -> set[int]:
        """The chains that begin again."""
        return {replica.chain for replica in self.fresh}


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """This projection is in force; the caller creates its sequencer."""

    projection: Projection


@dataclass(frozen=True, slots=True)
class Adopted:
    """Another projection is in force."""

    projection: Projection


Ending: TypeAlias = Reconfigured | Adopted | Interrupted
Seals: TypeAlias = Mapping[Replica, SealedAt]


def reconfigure(
    projection: Projection,
    goal: Goal,
    sequencer: int,
    stop_sequencer: Callable[[bool], Glsn] = lambda did_without: 0,
) -> Steps[Ending]:
    """Replace a projection that is in force. `sequencer` is the id of this attempt's sequencer.

    `stop_sequencer` is called when nothing can be written in the old epoch any more. Its argument
    is whether the new epoch begins without replicas that may have blocks which all others forgot.
    It returns the `least_start` of the new epoch, so that the end of the log does not decrease."""
    epoch = projection.epoch + 1
    newcomer = goal.newcomer
    if newcomer is not None and _is_behind(projection, newcomer):
        return Interrupted("another epoch began since the newcomer was filled")
    seals = yield from _seal(projection, goal)
    if not isinstance(seals, dict):
        return seals
    absent = yield from _repair_crashed(projection, seals, goal)
    if isinstance(absent, Interrupted):
        return absent
    chains = _next_chains(projection, seals, goal)
    if isinstance(chains, Interrupted):
        return chains
    if newcomer is not None:
        problem = yield from _fill_up(projection, newcomer, seals, goal)
        if problem is not None:
            return problem
        chains[newcomer.replica.chain] += (newcomer.replica,)
    restored = yield from _restore_chains(projection, goal, chains, seals, epoch)
    if isinstance(restored, Interrupted):
        return restored
    did_without = bool(absent)
    ends = (seal.end for seal in seals.values())
    start = max(projection.start, stop_sequencer(did_without), *ends)
    ranges = {index: lost_by(index, len(chains), gaps, start) for index, gaps in restored.items()}
    first = max([projection.first, *(seal.trimmed + 1 for seal in seals.values())])
    heads = [chain[0] for chain in chains]
    places = yield from find_places(epoch, heads, goal.forgotten, range(first, start))
    if not isinstance(places, dict):
        return as_interrupted(places)
    new = with_losses(with_losses(projection, ranges, first), places, first)._replace(
        epoch=epoch,
        start=start,
        chains=tuple(chains),
        sequencer=sequencer,
        closed=projection.closed or goal.close,
        lives=_lives(chains, seals),
        decided=_decided(projection, goal, seals, start),
    )
    return (yield from _swap(projection, new, _unheard(projection, absent, new)))


def _seal(
    projection: Projection, goal: Goal
) -> Steps[dict[Replica, SealedAt] | Adopted | Interrupted]:
    """Seal all replicas at the next epoch. Return the seals of those that answered."""
    epoch, lost, newcomer = projection.epoch + 1, goal.lost_chains, goal.newcomer
    replicas = [*projection.replicas, *([newcomer.replica] if newcomer else [])]
    answers = yield [Ask(r, Seal(epoch, salvage=r.chain in lost)) for r in replicas]
    if any(isinstance(answer, EpochOver) for answer in answers):
        return (yield from _adopt(projection))
    if goal.older:
        replicas += goal.older
        answers += yield [Ask(r, Seal(epoch, salvage=True)) for r in goal.older]
    for replica, answer in zip(replicas, answers, strict=True):
        if replica.chain in lost and not _is_certain(replica, answer, goal):
            return Interrupted(
                f"what node {replica.node_id} has left of chain {replica.chain} is not known yet"
            )
    pairs = zip(replicas, answers, strict=True)
    return {replica: answer for replica, answer in pairs if isinstance(answer, SealedAt)}


def _next_chains(projection: Projection, seals: Seals, goal: Goal) -> list[Chain] | Interrupted:
    """Return the chains of the next epoch, without the newcomer."""
    chains = [_staying(chain, seals, goal) for chain in projection.chains]
    for fresh in goal.fresh:
        chains[fresh.chain] = (fresh,)
    filled = goal.newcomer.replica.chain if goal.newcomer else None
    for index, chain in enumerate(chains):
        if not chain and index != filled:
            return Interrupted(_why_none_stays(projection, index, seals))
    if not goal.short:
        for index, (before, after) in enumerate(zip(projection.chains, chains, strict=True)):
            if len(after) < min(len(before), projection.least):
                return Interrupted(f"fewer replicas of chain {index} answered than are there")
    return chains


def _unheard(projection: Projection, absent: list[Replica], new: Projection) -> tuple[Unheard, ...]:
    """Return the absent replicas as unheard.

    If a replica before it in the chain answered, that one once had all blocks of the absent one.
    Otherwise blocks that only the absent one has may have been in flight."""
    first = {r for c in projection.chains for r in takewhile(absent.__contains__, c)}
    decided = {r: projection.decided if r in first else POSITION_MAX for r in absent}
    return tuple(Unheard(replica, new.epoch, new.start, decided[replica]) for replica in absent)


def _is_behind(projection: Projection, newcomer: Newcomer) -> bool:
    return newcomer.copied < projection.start  # see `_decided`


def _decided(projection: Projection, goal: Goal, seals: Seals, start: Glsn) -> Glsn:
    """Return the position below which all replicas of a chain have the same blocks.

    Everything that newcomers got before this epoch was decided. If all replicas have crashed, they
    have exchanged their blocks."""
    if goal.newcomer is not None:
        return max(projection.decided, goal.newcomer.copied)
    answered = [_answered(projection, chain, seals, goal) for chain in projection.chains]
    return start if all(there == crashed for there, crashed in answered) else projection.decided


def _answered(
    projection: Projection, chain: Chain, seals: Seals, goal: Goal
) -> tuple[list[Replica], list[Replica]]:
    """Return the fit replicas that answered, and which of them have crashed."""
    there = [replica for replica in chain if replica in seals and replica not in goal.unfit]
    return there, [r for r in there if seals[r].life != projection.life_of(r.node_id)]


def _lives(chains: list[Chain], seals: Seals) -> tuple[tuple[NodeId, int], ...]:
    """Return the life in which each node was sealed; the earlier one if it crashed meanwhile."""
    lives: dict[NodeId, int] = {}
    for replica in sorted(replica for chain in chains for replica in chain):
        life = seals[replica].life
        lives[replica.node_id] = min(life, lives.get(replica.node_id, life))
    return tuple(lives.items())


def _repair_crashed(
    projection: Projection, seals: Seals, goal: Goal
) -> Steps[list[Replica] | Interrupted]:
    """Give crashed replicas back the blocks that they may have forgotten. Return the absent
    replicas of chains of which all others have crashed."""
    absent: list[Replica] = []
    for index, chain in enumerate(projection.chains):
        if index not in goal.lost_chains:
            missed = yield from _repair_chain(projection, chain, seals, goal)
            if isinstance(missed, Interrupted):
                return missed
            absent += missed
    return absent


def _repair_chain(
    projection: Projection, chain: Chain, seals: Seals, goal: Goal
) -> Steps[list[Replica] | Interrupted]:
    """Do this for one chain. Copy upwards first, because each replica's blocks were also on all
    before it; then downwards, which completes blocks, as readers do."""
    there, crashed = _answered(projection, chain, seals, goal)
    absent: list[Replica] = []
    if not crashed:
        return absent
    if len(crashed) == len(there):
        absent = [replica for replica in chain if replica not in there]
        gone = goal.unfit | {r for r in chain if r.node_id in goal.leaving}
        awaited = [r for r in chain if r not in seals and r not in gone]
        if awaited and not goal.do_without():
            names = " and ".join(f"node {replica.node_id}" for replica in awaited)
            return Interrupted(
                f"all that answer of chain {chain[0].chain} have crashed, and may have forgotten "
                f"what {names} has: start it"
            )
    upwards = list(pairwise(reversed(there)))
    downwards = list(pairwise(there))
    for source, replica in [*upwards, *downwards]:
        if replica in crashed:
            problem = yield from _copy_missing(projection.epoch + 1, source, replica)
            if problem is not None:
                return problem
    return absent


def _copy_missing(epoch: int, source: Replica, replica: Replica) -> Steps[Interrupted | None]:
    missing = yield from find_missing(epoch, source, replica)
    if not isinstance(missing, list):
        return as_interrupted(missing)
    if not missing:
        return None
    filled = yield from copy(epoch, source, Newcomer(replica, missing[0].start))
    return filled if isinstance(filled, Interrupted) else None


def least_start(
    projection: Projection,
    goal: Goal,
    handed_out: Glsn,
    trimmed: Glsn,
    *,
    did_without: bool = False,
) -> Glsn:
    """Return the lowest possible start of the next epoch.

    It is above everything that was handed out (`handed_out` is 0 if another term did that, and it
    is unknown), and above the trim of the log, or new entries would be trimmed. If a chain loses
    all its blocks, or all replicas that answered may have forgotten some, it leaves room for
    everything that may have been handed out."""
    if projection.closed:
        return handed_out
    lost = [r for r in goal.fresh if not goal.damaged.intersection(projection.chains[r.chain])]
    if (lost or did_without) and projection.first and not handed_out:
        handed_out = projection.start + HANDED_OUT_MAX
    return max(handed_out, trimmed + 1)


def _restore_chains(
    projection: Projection,
    goal: Goal,
    chains: list[Chain],
    seals: dict[Replica, SealedAt],
    epoch: int,
) -> Steps[dict[int, list[range]] | Interrupted]:
    """Create the fresh replicas from what remains of their chains, and seal them. Return, for each
    chain, the positions that it may have lost, if they were handed out."""
    if not goal.fresh:
        return {}
    newcomers = {}
    for fresh in goal.fresh:
        newcomer = yield from _restore_chain(projection, fresh, seals, epoch)
        if isinstance(newcomer, Interrupted):
            return newcomer
        newcomers[fresh.chain] = newcomer
    heads = [chain[0] for chain in chains]
    first = max([projection.first, *(seal.trimmed + 1 for seal in seals.values())])
    gaps = yield from find_gaps(epoch, heads, first)
    if not isinstance(gaps, list):
        return as_interrupted(gaps)
    lost = {fresh.chain: gaps for fresh in goal.fresh}
    for damaged in goal.damaged.intersection(projection.replicas):
        if damaged.chain in lost:
            missing = yield from find_missing(epoch, damaged, heads[damaged.chain])
            if not isinstance(missing, list):
                return as_interrupted(missing)
            lost[damaged.chain] = overlaps(lost[damaged.chain], missing)
    for source in filter(seals.__contains__, goal.older):
        problem = yield from _add(epoch, source, newcomers[source.chain], heads, first)
        if problem is not None:
            return problem
    if goal.older:
        gaps = yield from find_gaps(epoch, heads, first, without_junk=True)
        if not isinstance(gaps, list):
            return as_interrupted(gaps)
        lost = {chain: overlaps(gaps, before) for chain, before in lost.items()}
    if first > projection.first:  # a block that was trimmed in part may be lost
        at_trim = [gap for gaps in lost.values() for gap in gaps if gap.start == first]
        lost = {index: lost.get(index, at_trim) for index in range(len(chains))}
    return lost


def _restore_chain(
    projection: Projection, fresh: Replica, seals: dict[Replica, SealedAt], epoch: int
) -> Steps[Newcomer | Interrupted]:
    """Create a replica from what remains on the replicas of its chain that are in force."""
    newcomer = yield from create(projection, fresh)
    if isinstance(newcomer, Interrupted):
        return newcomer
    [sealed] = yield [Ask(fresh, Seal(epoch))]
    if not isinstance(sealed, SealedAt):
        return Interrupted(f"node {fresh.node_id} did not take a new replica")
    seals[fresh] = sealed
    for source in filter(seals.__contains__, projection.chains[fresh.chain]):
        filled = yield from copy(epoch, source, newcomer, salvage=True)
        if isinstance(filled, Interrupted):
            return filled
    return newcomer


def _add(
    epoch: int, source: Replica, newcomer: Newcomer, heads: list[Replica], first: Glsn
) -> Steps[Interrupted | None]:
    """Copy blocks of a replica that left, where no chain has a block."""
    gaps = yield from find_gaps(epoch, heads, first)
    if not isinstance(gaps, list):
        return as_interrupted(gaps)
    runs = yield from find_additions(epoch, source, gaps, first)
    if not isinstance(runs, list):
        return as_interrupted(runs)
    for run in runs:
        start = newcomer._replace(copied=run.start)
        filled = yield from copy(epoch, source, start, salvage=True, last=run.stop - 1)
        if isinstance(filled, Interrupted):
            return filled
    return None


def _is_certain(replica: Replica, answer: Answer, goal: Goal) -> bool:
    """Return whether a replica of a lost chain has answered what it has left, or never will."""
    is_settled = isinstance(answer, SealedAt) or answer == NOT_HERE
    return is_settled or replica.node_id in goal.leaving


def _why_none_stays(projection: Projection, index: int, seals: Seals) -> str:
    silent = [str(r.node_id) for r in projection.chains[index] if r not in seals]
    if not silent:
        return f"all replicas of chain {index} are to leave"
    return f"no replica of chain {index} answered that may stay: start node {' or '.join(silent)}"


def _staying(chain: Chain, seals: Seals, goal: Goal) -> Chain:
    gone = (
        goal.unfit | goal.moved | {r for r in chain if r.node_id in goal.leaving or r not in seals}
    )
    if goal.newcomer is not None:  # a node has only one replica of a chain: it would lose both
        joins = goal.newcomer.replica
        gone |= {r for r in chain if (r.node_id, r.chain) == (joins.node_id, joins.chain)}
    return tuple(replica for replica in chain if replica not in gone)


def _fill_up(
    projection: Projection, newcomer: Newcomer, seals: Seals, goal: Goal
) -> Steps[Interrupted | None]:
    """Copy the blocks that reached the tail since the newcomer was filled. Both are sealed now."""
    epoch, tail = projection.epoch + 1, projection.chains[newcomer.replica.chain][-1]
    if tail not in seals or newcomer.replica not in seals:
        return Interrupted("the newcomer or the replica it is copied from did not answer")
    if newcomer.has_crashed(seals[newcomer.replica].life):
        return Interrupted(f"node {newcomer.replica.node_id} crashed while it was filled")
    goal.filling()
    filled = yield from copy(epoch, tail, newcomer)
    if isinstance(filled, Interrupted):
        return filled
    trimmed = max(filled.trimmed, seals[tail].trimmed)
    if not trimmed:
        return None
    stop = first_stop((yield [Ask(newcomer.replica, Trim(epoch, trimmed))]), Done)
    return stop if isinstance(stop, Interrupted) else None


def _swap(projection: Projection, new: Projection, unheard: tuple[Unheard, ...]) -> Steps[Ending]:
    [answer] = yield [Ask(Service.METADATA, Swap(new, unheard))]
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

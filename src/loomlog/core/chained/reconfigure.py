"""Replace a projection by the next one, and fill replicas that join. Pure.

    seal every replica at the next epoch → those that answer stay → (copy the rest to a newcomer) →
    compare-and-swap the projection → the new sequencer begins behind all that was found

Nothing is repaired on the way: readers of the new projection complete blocks and fill holes as
always. So it takes two round trips, however long the log is.

- One replica of each chain is enough. What was acknowledged is on each of them; what is on none of
  them was not, and is not.
- A chain that becomes too short for appends gains little and depends on fewer disks. If it is not
  known that its nodes are away, they may all be about to stop: what to do is decided again.
- A replica that did not answer must leave: it may still take writes of the old epoch. It comes back
  as another replica, empty.
- Two attempts at once seal the same epoch and write nothing to replicas in force; one of them wins
  the swap. A newcomer of the other one is given up: it may have copied from a replica that is not
  the tail of the new epoch, and has blocks that are not decided.
- A newcomer is filled from the tail of a projection in force, while the log is in use: all that
  is there is decided. The last part is copied when that tail is sealed; if it is lost meanwhile,
  the newcomer has to wait.
- A chain whose replicas are all lost or damaged begins again with a fresh one, which gets what
  they, replicas that left and newcomers have. What all of them lack below the start of the new
  epoch is lost for good. Replicas that left may have blocks that were decided otherwise later, so
  of two blocks in one place the one that is copied first stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from loomlog.core.backoff import Backoff
from loomlog.core.chained.chain import POSITION_MAX, Chain, Projection, Replica
from loomlog.core.chained.messages import (
    LIST_MAX,
    Answer,
    Copy,
    Create,
    Current,
    Done,
    EpochOver,
    Fetch,
    Fetched,
    Found,
    InForce,
    Interrupted,
    List,
    Listed,
    NotWritten,
    Pull,
    Pulled,
    Seal,
    SealedAt,
    Steps,
    Stop,
    Stored,
    Swap,
    Swapped,
    Trim,
    Trimmed,
    TrimmedTo,
    Written,
    first_stop,
    stopped,
)
from loomlog.core.chained.read import decide, decide_at
from loomlog.core.chained.replica import NOT_HERE
from loomlog.core.requests import Ask, Service
from loomlog.limits import COPY_PART_BYTES
from loomlog.types import Glsn, NodeId


class Newcomer(NamedTuple):
    """A replica that is going to join. It has all blocks of its chain below `copied`, where nothing
    is open any more, except trimmed ones."""

    replica: Replica
    copied: Glsn
    trimmed: Glsn = 0


def create(projection: Projection, replica: Replica) -> Steps[Newcomer | Interrupted]:
    """Create a replica that is going to join."""
    [answer] = yield [Ask(replica, Create())]
    if not isinstance(answer, Done):
        return _as_interrupted(stopped(answer))
    return Newcomer(replica, projection.first)


def settle(projection: Projection, address: Glsn) -> Steps[Glsn | Interrupted]:
    """Decide all addresses from this one to the start of the epoch, so that each has a block at its
    tail. This disturbs no writer: those of older epochs are fenced."""
    settled = yield from _first_address(projection, address)
    while isinstance(settled, int) and settled < projection.start:
        settled = yield from _settle_some(projection, settled)
    return settled


def _first_address(projection: Projection, address: Glsn) -> Steps[Glsn | Interrupted]:
    """Return this address, or the next that is not trimmed."""
    if address >= projection.start:
        return address
    outcome = yield from decide_at(projection, address)
    if isinstance(outcome, Trimmed):
        return (yield from _first_address(projection, outcome.position + 1))
    match outcome:
        case Found(block):
            return block.end
        case NotWritten():
            return address
    return _as_interrupted(outcome)


def _settle_some(projection: Projection, address: Glsn) -> Steps[Glsn | Interrupted]:
    """Advance as far as one listing of all tails allows, or by one block, or behind a trim that has
    reached some of them."""
    request = List(projection.epoch, address, LIST_MAX)
    answers = yield [Ask(tail, request) for tail in projection.tails]
    ends: dict[Glsn, Glsn] = {}
    for answer in answers:
        if isinstance(answer, TrimmedTo):
            return (yield from _first_address(projection, answer.position + 1))
        if not isinstance(answer, Listed):
            return _as_interrupted(stopped(answer))
        ends.update((extent.first, extent.end) for extent in answer.extents)
    if address not in ends:
        outcome = yield from decide(projection, address)
        return outcome.block.end if isinstance(outcome, Found) else _as_interrupted(outcome)
    while address in ends:
        address = ends[address]
    return address


def _ignore(newcomer: Newcomer) -> None:
    pass


def copy(
    epoch: int,
    source: Replica,
    newcomer: Newcomer,
    until: Glsn | None = None,
    *,
    salvage: bool = False,
    note: Callable[[Newcomer], None] = _ignore,
) -> Steps[Newcomer | Interrupted]:
    """Copy every block that the newcomer lacks, or all below `until`. `note` is called after each
    part with how far it got."""
    more = True
    while more and (until is None or newcomer.copied < until):
        request = Pull(epoch, source, newcomer.copied, COPY_PART_BYTES, salvage)
        [answer] = yield [Ask(newcomer.replica, request)]
        match answer:
            case TrimmedTo(position):
                newcomer = newcomer._replace(copied=position + 1, trimmed=position)
            case Pulled():
                newcomer, more = newcomer._replace(copied=answer.end), answer.more
            case _:
                return _as_interrupted(stopped(answer))
        note(newcomer)
    return newcomer


def pull(replica: Replica, request: Pull) -> Steps[Answer]:
    """Carry out a pull on the node of the newcomer: blocks go from node to node."""
    fetch = Fetch(request.epoch, request.position, request.bytes_max, request.salvage)
    [fetched] = yield [Ask(request.source, fetch)]
    if not isinstance(fetched, Fetched):
        return fetched
    blocks = fetched.blocks
    if not blocks:
        return Pulled(request.position, 0, fetched.more)
    expected = (Stored, TrimmedTo, Written) if request.salvage else (Stored, TrimmedTo)
    for answer in (yield [Ask(replica, Copy(block)) for block in blocks]):
        if not isinstance(answer, expected):
            return answer
    return Pulled(blocks[-1].end, sum(len(block.batch) for block in blocks), fetched.more)


def _as_interrupted(outcome: Stop | NotWritten) -> Interrupted:
    if isinstance(outcome, Interrupted):
        return outcome
    return Interrupted("the log was trimmed meanwhile")


# An upper bound, for a lost chain whose number of positions handed out is unknown.
HANDED_OUT_MAX: Final = 1 << 40


class Goal(NamedTuple):
    """The wanted changes, apart from dropping silent replicas."""

    leaving: frozenset[NodeId] = frozenset()
    newcomer: Newcomer | None = None
    close: bool = False
    unfit: frozenset[Replica] = frozenset()  # leave, too: their data is not what it should be
    fresh: tuple[Replica, ...] = ()  # one for each chain without a whole replica
    older: tuple[Replica, ...] = ()  # of those chains and not in force; believed in this order
    damaged: frozenset[Replica] = frozenset()  # unfit, but they know which blocks there were
    moved: frozenset[Replica] = frozenset()  # leave, too: others have taken their places
    short: bool = True  # chains may become shorter than appends need
    filling: Callable[[], None] = lambda: None  # called before the newcomer gets the last part


CATCH_UP_S: Final = 0.3  # what arrives in this time is copied while appends wait
EPOCHS_MAX: Final = 5  # begun to make the rest that small
ATTEMPTS_MAX: Final = 8  # without any progress; then another node is looked for
RETRY: Final = Backoff(0.1, 2.0)


class Admission:
    """Fills a newcomer, over as many epochs as that takes, until it may join. An interrupted copy
    continues where it ended."""

    def __init__(self, newcomer: Newcomer) -> None:
        self.newcomer = newcomer
        self._epochs = 0
        self._has_last_part = False  # or some of it
        self._attempts = 0  # that failed since it had copied this much:
        self._copied_before = newcomer.copied

    def catch_up(self, projection: Projection) -> Steps[Interrupted | None]:
        """Copy everything below the start of the epoch from the tail."""
        settled = yield from settle(projection, self.newcomer.copied)
        if isinstance(settled, Interrupted):
            return settled

        def note(newcomer: Newcomer) -> None:
            # Blocks above were copied, too, but something between them may still be open.
            self.newcomer = newcomer._replace(copied=min(newcomer.copied, settled))

        tail = projection.chains[self.newcomer.replica.chain][-1]
        filled = yield from copy(projection.epoch, tail, self.newcomer, settled, note=note)
        if isinstance(filled, Interrupted):
            return filled
        self.newcomer = filled._replace(copied=settled)
        return None

    def next_goal(self, took_s: float) -> Goal:
        """Return the goal of the next epoch, given how long it took to catch up. What is left is
        copied while appends wait; if that is much, catch up again in another epoch first."""
        if took_s <= CATCH_UP_S or self._epochs == EPOCHS_MAX:
            return Goal(newcomer=self.newcomer, filling=self._fill)
        self._epochs += 1
        return Goal()

    def _fill(self) -> None:
        self._has_last_part = True

    def retry_delay_s(self) -> float | None:
        """Return when to try again after a failure; None: it is hopeless."""
        if self._has_last_part:
            return None
        has_progressed = self.newcomer.copied > self._copied_before
        self._attempts = 0 if has_progressed else self._attempts + 1
        self._copied_before = self.newcomer.copied
        return RETRY.delay_s(self._attempts) if self._attempts < ATTEMPTS_MAX else None

    def percent(self, projection: Projection) -> int:
        """Return how much of its chain the newcomer has."""
        copied, whole = self.newcomer.copied - projection.first, projection.start - projection.first
        return min(100, 100 * max(0, copied) // max(1, whole))


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """The projection is in force; the caller makes its sequencer."""

    projection: Projection


@dataclass(frozen=True, slots=True)
class Adopted:
    """Another projection is in force."""

    projection: Projection


Ending: TypeAlias = Reconfigured | Adopted | Interrupted
Seals: TypeAlias = Mapping[Replica, SealedAt]


def _nothing() -> Glsn:
    return 0


def reconfigure(
    projection: Projection,
    goal: Goal,
    sequencer: int,
    stop_sequencer: Callable[[], Glsn] = _nothing,
) -> Steps[Ending]:
    """Replace a projection that is in force. `sequencer` belongs to this attempt alone.
    `stop_sequencer` is called when nothing can be written in the old epoch any more, and returns
    the `least_start` of the new one, so that the end of the log does not fall."""
    epoch = projection.epoch + 1
    newcomer = goal.newcomer
    replicas = [*projection.replicas, *([newcomer.replica] if newcomer else [])]
    lost = {replica.chain for replica in goal.fresh}
    answers = yield [Ask(r, Seal(epoch, salvage=r.chain in lost)) for r in replicas]
    if any(isinstance(answer, EpochOver) for answer in answers):
        return (yield from _adopt(projection))
    if goal.older:
        replicas += goal.older
        answers += yield [Ask(r, Seal(epoch, salvage=True)) for r in goal.older]
    seals = _seals(replicas, answers)
    for replica, answer in zip(replicas, answers, strict=True):
        if replica.chain in lost and not _is_certain(replica, answer, goal):
            return Interrupted(
                f"what node {replica.node_id} has left of chain {replica.chain} is not known yet"
            )
    chains = [_staying(chain, seals, goal) for chain in projection.chains]
    for fresh in goal.fresh:
        chains[fresh.chain] = (fresh,)
    if not all(chains):
        return Interrupted(_why_none_stays(projection, chains.index(()), seals))
    if not goal.short:
        for index, (before, after) in enumerate(zip(projection.chains, chains, strict=True)):
            if len(after) < min(len(before), projection.least):
                return Interrupted(f"fewer replicas of chain {index} answered than are there")
    if newcomer is not None:
        index = newcomer.replica.chain
        tail = projection.chains[index][-1]
        if tail not in seals or newcomer.replica not in seals:
            return Interrupted("the newcomer or the replica it is copied from did not answer")
        goal.filling()
        problem = yield from _fill_up(tail, newcomer, seals, epoch)
        if problem is not None:
            return problem
        chains[index] += (newcomer.replica,)
    ends = dict.fromkeys(lost, POSITION_MAX)
    for fresh in goal.fresh:
        older = [replica for replica in goal.older if replica.chain == fresh.chain]
        sources = [r for r in (*projection.chains[fresh.chain], *older) if r in seals]
        problem = yield from _restore_chain(projection, fresh, sources, epoch)
        if problem is not None:
            return problem
        for damaged in goal.damaged.intersection(projection.chains[fresh.chain]):
            end = yield from _end_of_missing(epoch, damaged, fresh)
            if isinstance(end, Interrupted):
                return end
            ends[fresh.chain] = min(end, ends[fresh.chain])
    start = max(projection.start, stop_sequencer(), *(seal.end for seal in seals.values()))
    new = projection._replace(
        epoch=epoch,
        start=start,
        chains=tuple(chains),
        sequencer=sequencer,
        closed=projection.closed or goal.close,
        lost=_lost(projection, ends, start),
    )
    return (yield from _swap(projection, new))


def least_start(projection: Projection, goal: Goal, handed_out: Glsn, trimmed: Glsn) -> Glsn:
    """Return where the next epoch may start at the least: behind what was `handed_out` (0: another
    term did that, and it is unknown), and behind the trim of the log, or its entries would be lost.
    If a chain loses all its blocks, leave room for all that may have been handed out."""
    if projection.closed:
        return handed_out
    lost = [r for r in goal.fresh if not goal.damaged.intersection(projection.chains[r.chain])]
    if lost and projection.first and not handed_out:
        handed_out = projection.start + HANDED_OUT_MAX
    return max(handed_out, trimmed + 1)


def _lost(projection: Projection, ends: Mapping[int, Glsn], start: Glsn) -> tuple[Glsn, ...]:
    """Return below which position each chain lost blocks. `ends`: where what some lost now ends at
    the latest; 0: they lost nothing."""
    if not any(ends.values()):
        return projection.lost
    before = projection.lost or (0,) * len(projection.chains)
    return tuple(max(end, min(start, ends.get(index, 0))) for index, end in enumerate(before))


def _restore_chain(
    projection: Projection, fresh: Replica, sources: list[Replica], epoch: int
) -> Steps[Interrupted | None]:
    """Make a replica from what remains of its chain."""
    newcomer = yield from create(projection, fresh)
    if isinstance(newcomer, Interrupted):
        return newcomer
    [sealed] = yield [Ask(fresh, Seal(epoch))]
    if not isinstance(sealed, SealedAt):
        return Interrupted(f"node {fresh.node_id} did not take a new replica")
    for source in sources:
        filled = yield from copy(epoch, source, newcomer, salvage=True)
        if isinstance(filled, Interrupted):
            return filled
    return None


def _end_of_missing(epoch: int, source: Replica, fresh: Replica) -> Steps[Glsn | Interrupted]:
    """Return the end of the last block that a damaged replica had and the fresh one lacks; 0 if it
    lacks none. Both are sealed."""
    position, end, more = 0, 0, True
    while more:
        request = List(epoch, max(position, 1), LIST_MAX)
        had, has = yield [Ask(source, request), Ask(fresh, request)]
        if isinstance(had, TrimmedTo):
            position = had.position + 1
            continue
        if not isinstance(had, Listed) or not isinstance(has, Listed):
            return _as_interrupted(first_stop([had, has], Listed) or Interrupted("no answer"))
        more = had.more
        until = had.extents[-1].end if more else POSITION_MAX
        if has.more and has.extents[-1].end < until:
            until, more = has.extents[-1].end, True
        missing = {e for e in had.extents if e.end <= until}.difference(has.extents)
        end = max([end, *(extent.end for extent in missing)])
        position = until
    return end


def _is_certain(replica: Replica, answer: Answer, goal: Goal) -> bool:
    """Return whether a replica of a lost chain has said what it has left, or never will."""
    is_settled = isinstance(answer, SealedAt) or answer == NOT_HERE
    return is_settled or replica.node_id in goal.leaving


def _why_none_stays(projection: Projection, index: int, seals: Seals) -> str:
    silent = [str(r.node_id) for r in projection.chains[index] if r not in seals]
    if not silent:
        return f"all replicas of chain {index} are to leave"
    return f"no replica of chain {index} answered that may stay: start node {' or '.join(silent)}"


def _seals(replicas: list[Replica], answers: list[Answer]) -> Seals:
    pairs = zip(replicas, answers, strict=True)
    return {replica: answer for replica, answer in pairs if isinstance(answer, SealedAt)}


def _staying(chain: Chain, seals: Seals, goal: Goal) -> Chain:
    gone = (
        goal.unfit | goal.moved | {r for r in chain if r.node_id in goal.leaving or r not in seals}
    )
    return tuple(replica for replica in chain if replica not in gone)


def _fill_up(
    tail: Replica, newcomer: Newcomer, seals: Seals, epoch: int
) -> Steps[Interrupted | None]:
    """Copy what reached the tail since the newcomer was filled. Both are sealed by now."""
    filled = yield from copy(epoch, tail, newcomer)
    if isinstance(filled, Interrupted):
        return filled
    trimmed = max(filled.trimmed, seals[tail].trimmed)
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

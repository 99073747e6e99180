"""Compare replicas that were not heard with the chains that continued without them. Pure.

When the power fails, some disks forget writes that they confirmed. If all replicas that answer have
crashed, an epoch does without the others after a while, and they are unheard (reconfigure.py). When
one is back, it may have blocks that all others forgot: then these are lost, because readers may
have found nothing in their places. If a replica before it in the chain was heard, that one had
every block before the unheard one got it. So what it lacks, its disk forgot. If none was, the block
may have been on its way. Then it is lost only if all had it: because everything was decided up
there when another epoch began, or because its writer told the replica that it was acknowledged.

A writer that lives on finds out by itself that the replicas in force have forgotten its block, and
reports that. It is believed if readers find nothing in its place.

Comparing disturbs nobody. The unheard replica serves the epoch that did without it, and no other:
so it never seems to have been in a later one. All its blocks are below the start of that epoch,
where the head in force gets nothing but junk. Only if something is lost, another epoch begins that
says so.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from loomlog.core.chained.chain import Block, Projection, Replica, Unheard
from loomlog.core.chained.lost_blocks import Side, find_forgotten
from loomlog.core.chained.messages import (
    EpochOver,
    Found,
    Interrupted,
    Seal,
    SealedAt,
    Steps,
    Trimmed,
    stopped,
)
from loomlog.core.chained.newcomer import as_interrupted
from loomlog.core.chained.read import decide_at
from loomlog.core.chained.replica import NOT_HERE
from loomlog.core.requests import Ask
from loomlog.types import Glsn


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome for some replicas; others did not answer."""

    compared: tuple[Replica, ...] = ()  # or lost
    witnesses: tuple[Replica, ...] = ()  # have blocks that their chains lost
    forgotten: tuple[range, ...] = ()  # these blocks
    trouble: str = ""  # why others were not compared


def compare(
    projection: Projection, unheard: Sequence[Unheard], lost: Container[Replica] = ()
) -> Steps[Comparison]:
    """Compare unheard replicas with the chains in force. Those that are `lost` never come back;
    others may be on a volume that is missing, or in a directory that was moved away."""
    compared, witnesses, forgotten, trouble = [], [], set[range](), ""
    for each in unheard:
        found = yield from _compare(projection, each, is_lost=each.replica in lost)
        if isinstance(found, Interrupted):
            trouble = found.reason
            continue
        compared.append(each.replica)
        if found:
            witnesses.append(each.replica)
            forgotten.update(found)
    blocks = sorted(forgotten, key=lambda block: block.start)
    return Comparison(tuple(compared), tuple(witnesses), tuple(blocks), trouble)


def _compare(
    projection: Projection, unheard: Unheard, *, is_lost: bool
) -> Steps[list[range] | Interrupted]:
    replica, epoch = unheard.replica, unheard.epoch
    [answer] = yield [Ask(replica, Seal(epoch, salvage=True))]
    if isinstance(answer, EpochOver):  # what it had was copied for a chain that began again
        epoch = answer.epoch
        [answer] = yield [Ask(replica, Seal(epoch, salvage=True))]
    if answer == NOT_HERE:
        return [] if is_lost else Interrupted(_not_there(replica))
    if not isinstance(answer, SealedAt):
        return as_interrupted(stopped(answer))
    head = projection.chains[replica.chain][0]
    witness, in_force = Side(replica, epoch), Side(head, projection.epoch)
    found = yield from find_forgotten(witness, in_force, unheard.decided)
    return found if isinstance(found, list) else as_interrupted(found)


def _not_there(replica: Replica) -> str:
    node = replica.node_id
    return (
        f"what node {node} had of chain {replica.chain} is missing there: bring back its volume, "
        f"or the directory that was moved away; if it is lost, stop the node, run `loom node "
        f"replace {node}`, and start it with empty volumes"
    )


def find_lost(
    projection: Projection, addresses: Iterable[Glsn]
) -> Steps[list[range] | Interrupted]:
    """Return the places of blocks of which nothing is left, and which are not recorded as lost.
    Their writers say that they were acknowledged at these addresses, below the start of the epoch.
    Holes are filled as readers do, so a lie makes a loss only of what is a hole for all."""
    lost = []
    for address in sorted(addresses):
        if not projection.first <= address < projection.start:
            continue
        outcome = yield from decide_at(projection, address)
        match outcome:
            case Found(block) if block.is_junk and not _is_recorded(projection, block):
                lost.append(range(address, block.end))  # readers find all of it lost
            case Found() | Trimmed():
                pass
            case _:
                return as_interrupted(outcome)
    return lost


def _is_recorded(projection: Projection, junk: Block) -> bool:
    """Return whether all of it is lost, also when another loss before its end is trimmed."""
    return projection.is_lost(junk) and projection.lost_end(junk.first) >= junk.end

"""Compare unheard replicas with the chains that continued without them. Pure.

When the power fails, some disks lose writes that they had confirmed. If all replicas that answer
have crashed, an epoch begins without the others after a while; those are unheard (reconfigure.py).
An unheard replica that comes back may have blocks that all others forgot. Such blocks are lost,
because readers may have found nothing in their places. But blocks that were never acknowledged must
not count as lost:

- If a replica before it in the chain answered, that one had each block before the unheard replica
  got it. So its disk has forgotten every block that it lacks now.
- Otherwise the block may still have been in flight. It counts as lost only if all replicas had it:
  because everything at its position was decided when an epoch began, or because its writer reported
  it as acknowledged.

A writer that is still alive notices by itself that the replicas in force have forgotten its block,
and reports it. That is believed if readers find nothing in its place.

A comparison disturbs nobody. The unheard replica is sealed at the epoch that it was left out of,
and at no later one, so it never appears to have been part of a later one. All its blocks are below
the start of that epoch, where the head in force gets nothing but junk. Another epoch begins only if
blocks were lost, to record that.
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
    """The outcome of a comparison."""

    compared: tuple[Replica, ...] = ()  # these replicas were compared, or are lost
    witnesses: tuple[Replica, ...] = ()  # those that have blocks which their chains lost
    forgotten: tuple[range, ...] = ()  # the lost blocks
    trouble: str = ""  # why some replicas could not be compared


def compare(
    projection: Projection, unheard: Sequence[Unheard], lost: Container[Replica] = ()
) -> Steps[Comparison]:
    """Compare unheard replicas with the chains in force. Replicas in `lost` never come back; others
    may be on a missing volume, or in a directory that was moved away."""
    compared, witnesses, forgotten, trouble = [], [], set[range](), ""
    for each in unheard:
        blocks = yield from _compare(projection, each, is_lost=each.replica in lost)
        if isinstance(blocks, Interrupted):
            trouble = blocks.reason
            continue
        compared.append(each.replica)
        if blocks:
            witnesses.append(each.replica)
            forgotten.update(blocks)
    in_order = sorted(forgotten, key=lambda block: block.start)
    return Comparison(tuple(compared), tuple(witnesses), tuple(in_order), trouble)


def _compare(
    projection: Projection, unheard: Unheard, *, is_lost: bool
) -> Steps[list[range] | Interrupted]:
    replica, epoch = unheard.replica, unheard.epoch
    [answer] = yield [Ask(replica, Seal(epoch, salvage=True))]
    if isinstance(answer, EpochOver):  # it was sealed later, for a chain that began again
        epoch = answer.epoch
        [answer] = yield [Ask(replica, Seal(epoch, salvage=True))]
    if answer == NOT_HERE:
        return [] if is_lost else Interrupted(_not_there(replica))
    if not isinstance(answer, SealedAt):
        return as_interrupted(stopped(answer))
    head = projection.chains[replica.chain][0]
    witness, in_force = Side(replica, epoch), Side(head, projection.epoch)
    blocks = yield from find_forgotten(witness, in_force, unheard.decided)
    return blocks if isinstance(blocks, list) else as_interrupted(blocks)


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
    """Return the ranges of lost blocks that are not recorded as lost yet. Writers claim that blocks
    at these addresses were acknowledged; addresses at or above the epoch's start are ignored.

    Holes are filled as readers do it. So a false claim can turn nothing into a loss but a range
    that is a hole for all readers anyway."""
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
    """Return whether all of the junk is recorded as lost, and remains so if other losses of its
    chain are trimmed."""
    return projection.is_lost(junk) and projection.lost_end(junk.first) >= junk.end

"""One block to the place that its ticket says, whatever happens on the way.

While the epoch of the ticket lasts, the same block is written again; when a newer one has begun,
what became of the block is looked up, and is then certain.
"""

from __future__ import annotations

from collections.abc import Callable

from loomlog import batch as batches
from loomlog.client.chained.chains import Chains, View
from loomlog.core.chained.appending import Appended, Overtaken, append
from loomlog.core.chained.block import Block
from loomlog.core.chained.messages import EpochOver, HandedOut, Next, Ticket
from loomlog.core.chained.outcomes import Interrupted, Stop, Trimmed, stopped
from loomlog.core.chained.resolving import resolve
from loomlog.errors import AppendUnknown, Sealed
from loomlog.types import StreamId


async def next_ticket(chains: Chains, view: View, count: int) -> tuple[Ticket, View]:
    """A place for so many records, and the projection that it is of. Sealed: there are no more."""
    attempts = 0
    while True:
        require_open(view)
        answer = await chains.ask_sequencer(view, Next(view.epoch, count))
        if isinstance(answer, HandedOut):
            return answer.ticket, view
        stop = stopped(answer)
        assert isinstance(stop, Interrupted)
        view = await chains.recover(view, stop, attempts)
        attempts += 0 if isinstance(answer, EpochOver) else 1


def require_open(view: View) -> None:
    if view.projection.closed:
        raise Sealed(f"stream {view.stream} is of a segment that has ended")


def placed(unplaced: Block, stream: StreamId, ticket: Ticket) -> Block:
    """The block where its ticket says; the header of its batch, a bytearray, is given positions."""
    batch = unplaced.batch
    assert isinstance(batch, bytearray)
    batches.assign_place(batch, stream, ticket.epoch, ticket.first)
    return Block(ticket.first, *unplaced[1:])


async def write(
    chains: Chains,
    view: View,
    ticket: Ticket,
    block: Block,
    *,
    once: bool = False,
    doubted: Callable[[str], None] = lambda refusal: None,
    met: Appended | Overtaken | Stop | None = None,
) -> tuple[Appended | Overtaken | Interrupted, View]:
    """What became of it, and the projection that is known by then. Interrupted only if it was to be
    tried `once`. AppendUnknown: the place was trimmed before that was found out. `doubted` hears
    when this may be writing it; and why not, as long as all attempts were refused. `met`: how the
    first attempt has ended, if there was one."""
    attempts = 0
    untouched = True
    while True:
        if met is not None:
            outcome, met = met, None
        elif view.epoch == ticket.epoch:
            doubted("")
            outcome = await chains.run(view, append(view.projection, ticket, block))
        else:
            outcome = await chains.run(view, resolve(view.projection, block))
        if isinstance(outcome, Trimmed):
            raise AppendUnknown(f"position {block.first} was trimmed meanwhile")
        if not isinstance(outcome, Interrupted) or once:
            return outcome, view
        if view.epoch == ticket.epoch:
            untouched = untouched and outcome.untouched
            if untouched:
                doubted(outcome.reason)
        view = await chains.recover(view, outcome, attempts)
        attempts += 1

"""Appends to `chained` streams at a reserved position, for publications and transactions.

A ticket reserves one position, which is written once. So several processes may write the same
block with the same ticket at any time: it is stored once or, if all were too late, never. Where
permissions are enforced, only the client that reserved the position can write it: others lack the
proof of the ticket, and find the position filled.
"""

from __future__ import annotations

import asyncio
from typing import Final

from loomlog.client.loglets.chained.chains import Chains
from loomlog.client.loglets.contract import Fixed
from loomlog.client.loglets.views import SegmentGoneError
from loomlog.core.chained import append
from loomlog.core.chained.append import Appended, next_ticket, write
from loomlog.core.chained.chain import block_of, placed
from loomlog.core.chained.messages import NotWritten, Ticket, Trimmed
from loomlog.errors import AppendUnknown, DataLoss, Sealed, Timeout
from loomlog.protocol_names import CHAINED
from loomlog.types import Glsn, StreamId

LOOK_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02)  # between reads of a position; then the last


async def reserve(chains: Chains, stream: StreamId, count: int) -> Fixed:
    """Reserve positions for `count` records; raise Sealed if the segment has ended."""
    try:
        view = await chains.learn(stream)
        ticket, _ = await chains.run(view, next_ticket(view.projection, count))
    except SegmentGoneError as error:
        raise Sealed(str(error)) from error
    first, count, epoch, proof = ticket
    chains.keep_proof((stream, epoch, first), proof)
    return Fixed(CHAINED, stream, first - 1, ticket.end - 1, [first, count, epoch])


async def append_fixed(chains: Chains, fixed: Fixed, batch: bytearray) -> Glsn:
    """Return the batch's first position; 0 if it is not there and never will be."""
    first, count, epoch = fixed.place
    ticket = Ticket(first, count, epoch, chains.proofs.get((fixed.stream, epoch, first), b""))
    block = placed(block_of(batch), fixed.stream, ticket.epoch, ticket.first)
    while True:
        try:
            view = await chains.learn(fixed.stream)
        except SegmentGoneError:
            return 0  # references are not trimmed before their writer records them
        chain = fixed.stream, ticket.epoch, ticket.first % len(view.projection.chains)
        reports = chains.unreported.take(chain)
        try:
            steps = write(view.projection, ticket, block._replace(acknowledged=reports))
            outcome, projection = await chains.run(view, steps)
            if isinstance(outcome, Appended):
                # In a later epoch, it may have been completed without its reports.
                reports = () if projection.epoch == ticket.epoch else reports
                reports = (*reports, ticket.first)
        except AppendUnknown:
            return 0  # it was trimmed: the same
        except SegmentGoneError:
            continue  # or this client has just lost what it knew of the log
        finally:
            if reports:
                chains.unreported.add(chain, *reports)
        return ticket.first if isinstance(outcome, Appended) else 0


async def settle(
    chains: Chains, fixed: Fixed, producer_id: int, patience_s: float, timeout_s: float
) -> bool:
    """Implement Loglet.settle."""
    now_s = asyncio.get_running_loop().time
    begun_s, looks, attempts = now_s(), 0, 0
    ticket = Ticket(*fixed.place)
    try:
        view = await chains.learn(fixed.stream)
        while True:
            fill = now_s() - begun_s >= patience_s
            steps = append.settle(view.projection, ticket, producer_id, fill=fill)
            outcome = await chains.run(view, steps)
            if isinstance(outcome, bool):
                return outcome
            if isinstance(outcome, Trimmed):
                raise DataLoss(f"position {ticket.first} was trimmed")
            if now_s() - begun_s >= timeout_s:
                raise Timeout(
                    f"position {ticket.first} could not be read in time: try again, and see "
                    "`loom status`"
                )
            if isinstance(outcome, NotWritten):
                await asyncio.sleep(LOOK_S[min(looks, len(LOOK_S) - 1)])
                looks += 1
            else:
                view = await chains.recover(view, outcome, attempts)
                attempts += 1
    except SegmentGoneError as error:
        raise DataLoss(f"position {ticket.first} is gone: {error}") from error

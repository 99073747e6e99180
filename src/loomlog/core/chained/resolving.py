"""What became of an append that was interrupted, once a newer epoch has begun. Pure.

The old epoch is over, so its block is where the new projection can see it, or will never be seen:
to look decides it. If the block is at a head only, this brings it down; if it is nowhere, this
fills its place.
"""

from __future__ import annotations

from loomlog.core.chained.appending import Appended, Overtaken
from loomlog.core.chained.block import Block
from loomlog.core.chained.filling import decide_at
from loomlog.core.chained.messages import Found, Steps
from loomlog.core.chained.outcomes import NotWritten, Stop
from loomlog.core.chained.projection import Projection


def resolve(projection: Projection, block: Block) -> Steps[Appended | Overtaken | Stop]:
    """`Trimmed`: it is too late to tell."""
    outcome = yield from decide_at(projection, block.first)
    match outcome:
        case Found(found):
            return Appended() if found.is_same(block) else Overtaken()
        case NotWritten():  # nobody was given the position since: the new epoch began before it
            return Overtaken()
    return outcome

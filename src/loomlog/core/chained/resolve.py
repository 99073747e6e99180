"""Find the outcome of an interrupted append, once a newer epoch has begun. Pure.

The old epoch is over, so its block is where the new projection can see it, or will never be seen:
looking decides it. A block at a head only is brought down; a block that is nowhere is filled.
"""

from __future__ import annotations

from loomlog.core.chained.append import Appended, Overtaken
from loomlog.core.chained.block import Block
from loomlog.core.chained.fill import decide_at
from loomlog.core.chained.messages import Found, Steps
from loomlog.core.chained.outcomes import NotWritten, Stop
from loomlog.core.chained.projection import Projection


def resolve(projection: Projection, block: Block) -> Steps[Appended | Overtaken | Stop]:
    """Find out whether the block was appended. Trimmed: it is too late to tell."""
    outcome = yield from decide_at(projection, block.first)
    match outcome:
        case Found(found):
            return Appended() if found.is_same(block) else Overtaken()
        case NotWritten():  # not handed out since: the new epoch began before it
            return Overtaken()
    return outcome

"""What is told of a copy while it goes on."""

from __future__ import annotations

from loomlog.core.chained.block import Block
from loomlog.core.chained.joining import Newcomer
from loomlog.core.chained.messages import Answer, Ask, Copy, Lost, Stored
from loomlog.core.chained.projection import Replica
from loomlog.metadata.chained.driver import _tell
from loomlog.metadata.chained.filling import Copying

REPLICA = Replica(4, 1, 0, 2)


def told(copying: Copying, *answers: Answer) -> int:
    """Of blocks of 100 bytes, one for each position from 1 on."""
    blocks = [Block(first, 1, 1, first, bytes(100)) for first in range(1, len(answers) + 1)]
    return _tell([Ask(REPLICA, Copy(block)) for block in blocks], [*answers], copying.copied)


def test_a_block_that_may_be_missing_is_not_passed_over() -> None:
    copying = Copying(Newcomer(REPLICA, 1))
    copying.begin(settled=10)
    assert told(copying, Stored(), Lost(), Stored()) == 100
    copying.keep()
    assert copying.newcomer.copied == 2, "the next one is copied again"


def test_what_is_open_is_copied_again() -> None:
    copying = Copying(Newcomer(REPLICA, 1))
    copying.begin(settled=3)
    assert told(copying, Stored(), Stored(), Stored(), Stored()) == 400
    copying.keep()
    assert copying.newcomer.copied == 3
    copying.begin(settled=5)  # a later epoch: what came late between is there only now
    copying.keep()
    assert copying.newcomer.copied == 3

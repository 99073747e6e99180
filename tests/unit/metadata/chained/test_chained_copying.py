"""What is told of a copy while it goes on."""

from __future__ import annotations

from loomlog.core.chained.chain import Replica
from loomlog.core.chained.messages import Pulled
from loomlog.core.chained.reconfigure import Newcomer
from loomlog.metadata.chained.newcomers import Copying

REPLICA = Replica(4, 1, 0, 2)


def test_a_copy_goes_on_where_it_ended() -> None:
    copying = Copying(Newcomer(REPLICA, 1))
    copying.begin(settled=10)
    copying.copied(Pulled(2, 100, more=True))
    copying.keep()
    assert copying.newcomer.copied == 2


def test_what_is_open_is_copied_again() -> None:
    copying = Copying(Newcomer(REPLICA, 1))
    copying.begin(settled=3)
    copying.copied(Pulled(5, 400, more=False))
    copying.keep()
    assert copying.newcomer.copied == 3
    copying.begin(settled=5)  # a later epoch: what came late between is there only now
    copying.keep()
    assert copying.newcomer.copied == 3

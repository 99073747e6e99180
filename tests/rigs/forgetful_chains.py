"""A chained log on disks that forget what they confirmed, when the power fails."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

from chained_rig import Chains

from loomlog.core.chained.chain import Projection
from loomlog.core.chained.comparison import Comparison, compare
from loomlog.core.chained.messages import Found
from loomlog.core.chained.read import decide_at
from loomlog.core.chained.reconfigure import Goal, least_start
from loomlog.types import Glsn, NodeId

NODES = (1, 2, 3)
IMPATIENT = Goal(do_without=lambda: True)


class Forgetful(Chains):
    """A log on three nodes. When the power fails, disks may forget what was written since a
    moment."""

    def __init__(self, *, chains: int = 1) -> None:
        super().__init__(chains=chains)
        self.lives = dict.fromkeys(NODES, 1)
        self.reconfigured()
        self.remember()

    def remember(self) -> None:
        self._before = deepcopy(self.tables)

    def lose_power(self, *forgot: NodeId, absent: Iterable[NodeId] = ()) -> None:
        self.tables |= {node: deepcopy(self._before[node]) for node in forgot}
        self.lives = {node: life + 1 for node, life in self.lives.items()}
        self.silent = {*absent}

    def continue_without(self, *, takeover: bool = False) -> Projection:
        """Begin an epoch of the same term, whose sequencer knows what was handed out; or of another
        one, which does not."""
        assert self.sequencer is not None
        before, end = self.projection, 0 if takeover else self.sequencer.end

        def stop(did_without: bool) -> Glsn:
            return least_start(before, IMPATIENT, end, 0, did_without=did_without)

        return self.reconfigured(IMPATIENT, stop)

    def come_back(self) -> Comparison:
        self.silent = set()
        return self.run(compare(self.projection, self.unheard))

    def report(self, comparison: Comparison) -> set[Glsn]:
        """Begin an epoch that records what is lost; return what readers find lost."""
        self.reconfigured(Goal(forgotten=comparison.forgotten))
        return self.lost()

    def lost(self) -> set[Glsn]:
        found = []
        for position in range(self.projection.first, self.projection.start):
            outcome = self.run(decide_at(self.projection, position))
            if isinstance(outcome, Found) and self.projection.is_lost(outcome.block):
                found.append(position)
        return set(found)

"""The runs of a cluster's metadata, used to recognise metadata that was restored from an old copy.
Pure.

A run is the time for which one process leads. It gets the next number and a random id. The metadata
lists its runs. Every storage node remembers the newest run that it was told of, and the revision
(the number of the last change) of the metadata at that time. Metadata restored from an older copy
begins a run with another id, or lacks revisions that a node knows. This is noticed when one such
node registers, and the leader does nothing before most nodes have registered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from loomlog.types import NodeId, StreamId

RUNS_MAX: Final = 128  # listed; older ones are not compared with what nodes know
OPEN: Final = (1 << 63) - 1  # no revision is too high


class Run(NamedTuple):
    """A run, as nodes remember it; the id is random."""

    number: int
    id: str


class Seen(NamedTuple):
    """The newest run and revision that a storage node was told of."""

    run: Run = Run(0, "")  # number 0: nothing yet
    revision: int = 0


class PastRun(NamedTuple):
    """A run in the metadata's list, and the revision at which it ended."""

    run: Run
    until: int = 0  # the revision at which the next run began; 0: see `History.begun_at`


class History(NamedTuple):
    """The metadata's list of runs."""

    runs: tuple[PastRun, ...] = ()  # the last ones, oldest first
    begun_at: int = 0  # the revision at which the last of them began

    @property
    def newest(self) -> Run:
        return self.runs[-1].run if self.runs else Run(0, "")

    def begin(self, run_id: str) -> History:
        """Return the history with one more run, which is valid once stored (see `stored_at`)."""
        settled = self.settled().runs
        number = max((past.run.number for past in settled), default=0) + 1
        runs = (*settled, PastRun(Run(number, run_id)))
        return History(runs[-RUNS_MAX:])

    def stored_at(self, revision: int) -> History:
        """Return the history after its newest run was stored with this revision."""
        return self._replace(begun_at=revision)

    def adopt(self, seen: list[Seen]) -> History:
        """Return the history with runs added that nodes know and this metadata lacks."""
        own = {past.run for past in self.runs}
        runs = own | {each.run for each in seen if each.run.number}
        return History(tuple(PastRun(run, OPEN) for run in sorted(runs)[-RUNS_MAX:]))

    def contradiction(self, seen: Seen) -> str:
        """Return what a node knows and this metadata lacks, or "" if there is nothing."""
        run, revision = seen
        if not run.number:
            return ""
        if run.number > self.newest.number:
            return f"knows run {run.number} of the metadata, which ends with {self.newest.number}"
        runs = self.settled().runs
        same = [past for past in runs if past.run == run]
        if same and revision >= (same[0].until or OPEN):
            return f"knows change {revision} of the metadata, which run {run.number} lacks"
        if not same and run.number >= runs[0].run.number:
            return f"knows another run {run.number} of the metadata"
        return ""

    def includes(self, known: Seen, other: Seen) -> bool:
        """Return whether a node with `known` was told all that one with `other` was told."""
        if known.run == other.run:
            return known.revision >= other.revision
        if known.run.number <= other.run.number:
            return not other.run.number
        is_listed = any(past.run == known.run for past in self.runs)
        return not is_listed or not self.contradiction(other)

    def ended_at(self, revision: int) -> History:
        """Return the history after its newest run ended with this revision, which no node knows."""
        if not self.runs:
            return self
        *older, newest = self.settled().runs
        return self._replace(runs=(*older, newest._replace(until=revision)))

    def settled(self) -> History:
        """Return the history with `until` filled in for the second last run."""
        if len(self.runs) < 2 or self.runs[-2].until:
            return self
        *older, before, newest = self.runs
        return self._replace(runs=(*older, before._replace(until=self.begun_at), newest))


def outdated(seen: Mapping[NodeId, Seen], history: History) -> dict[NodeId, NodeId]:
    """Return the nodes that lack something of the metadata that another node was told of, each with
    such a node. Their data may be an older copy, or they were away."""
    found: dict[NodeId, NodeId] = {}
    for node, known in seen.items():
        lacks = (other for other, what in seen.items() if not history.includes(known, what))
        if (other := next(lacks, None)) is not None:
            found[node] = other
    return found


def enough(nodes: int) -> int:
    """Return how many of these nodes must know a run before anything is done in it. Any two such
    groups share a node. Of two nodes one is enough: otherwise the cluster could never lose one."""
    return 1 if nodes == 2 else nodes // 2 + bool(nodes)


class Unknowable(NamedTuple):
    """The reason why metadata cannot be brought up to date from what storage nodes know.

    The nodes do not know everything. What they know suffices for a safe update: numbers above all
    that were ever used, and replicas that are certainly whole. If anything else would be needed,
    the update is refused. It never makes a node delete anything."""

    why: str


class Doubt(NamedTuple):
    """A fact about a log that cannot be known."""

    stream_id: StreamId  # 0: the whole log
    text: str

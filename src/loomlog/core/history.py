"""The runs of a cluster's metadata, and whether it went back in time. Pure.

A run is the time for which one process leads with the metadata. It gets a number, one above the
previous run, and a random id. The metadata lists its runs; every storage node remembers the newest
run that it has learnt of, and the revision (the number of the last change) that the metadata had
then. Metadata restored from an older copy begins a run with another id, or lacks revisions that a
node knows. This shows as soon as one such node registers, and nothing is done before most have.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from loomlog.types import StreamId

RUNS_MAX: Final = 128  # listed; older ones are not compared with what nodes know
OPEN: Final = (1 << 63) - 1  # no revision is too high


class Run(NamedTuple):
    """A term as nodes remember it; the id is random."""

    number: int
    id: str


class Seen(NamedTuple):
    """The newest run and revision that a storage node has learnt of."""

    run: Run = Run(0, "")  # number 0: nothing yet
    revision: int = 0


class PastRun(NamedTuple):
    """A run that the metadata lists, and the revision at which it ended."""

    run: Run
    until: int = 0  # the revision with which the next one began; 0: the one with `begun_at` did


class History(NamedTuple):
    """The runs of a cluster, as its metadata lists them."""

    runs: tuple[PastRun, ...] = ()  # the last ones, oldest first
    begun_at: int = 0  # the revision with which the last of them began

    @property
    def newest(self) -> Run:
        return self.runs[-1].run if self.runs else Run(0, "")

    def begin(self, run_id: str) -> History:
        """Return the history with one more run, which holds once it is stored (see `stored_at`)."""
        settled = self.settled().runs
        number = max((past.run.number for past in settled), default=0) + 1
        runs = (*settled, PastRun(Run(number, run_id)))
        return History(runs[-RUNS_MAX:])

    def stored_at(self, revision: int) -> History:
        """Return the history after its newest run was stored with this revision."""
        return self._replace(begun_at=revision)

    def adopt(self, seen: list[Seen]) -> History:
        """Return the history with runs that nodes know and this metadata does not, as its own."""
        own = {past.run for past in self.runs}
        runs = own | {each.run for each in seen if each.run.number}
        return History(tuple(PastRun(run, OPEN) for run in sorted(runs)[-RUNS_MAX:]))

    def contradiction(self, seen: Seen) -> str:
        """Return what a node knows that this metadata lacks, or "" if there is nothing."""
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

    def settled(self) -> History:
        """Return the history with the revision filled in at which the last run but one ended."""
        if len(self.runs) < 2 or self.runs[-2].until:
            return self
        *older, before, newest = self.runs
        return self._replace(runs=(*older, before._replace(until=self.begun_at), newest))


def enough(nodes: int) -> int:
    """Return how many of these nodes have to know a run before anything is done in it. Any two such
    groups share a node; of two nodes one is enough, or neither could ever be away."""
    return 1 if nodes == 2 else nodes // 2 + bool(nodes)


class Unknowable(NamedTuple):
    """The reason why metadata cannot be brought up to date with what storage nodes know.

    The nodes do not know everything. An update is safe with what they do know: numbers above all
    that were ever used, and replicas that are certain to be whole. If anything cannot be decided
    that way, the update is refused. Nothing is ever removed from a node because of it."""

    why: str


class Doubt(NamedTuple):
    """A fact about a log that cannot be known."""

    stream_id: StreamId  # 0: the whole log
    text: str

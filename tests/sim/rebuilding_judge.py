"""Judges a simulated cluster whose `copyset` logs are rebuilt, with a look at all disks.

- What was acknowledged is read at its position, once, or said to be lost; only that is said to be
  lost whose copies were all on disks that are lost.
- If the status shows no condition, every entry has all its copies, and nothing is lost.
- No node is certain that it never got a batch of which it has a copy: it would be appended again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from copies_judge import CopiesJudge
from memory_tables import MemoryLogs
from node_services import shard_on
from sim_cluster import SimCluster

from loomlog.batch import read_header
from loomlog.core.conditions import Condition
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import shard_of
from loomlog.core.copyset.record import Kind, Lsn, Record, epoch_of
from loomlog.metadata.copyset.keeper import CopysetKeeper
from loomlog.metadata.nodes.connected_nodes import RECONNECT_GRACE_S
from loomlog.metadata.term import Term
from loomlog.types import Entry, Gap, Glsn, LogId, ShardId
from loomlog.wire import loomlog_pb2 as pb


class LogJudge:
    """Knows what became of the entries of one log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.following: Glsn = 1  # the next position of its follower
        self.places: dict[bytes, Glsn] = {}  # of acknowledged values
        self.lost: set[bytes] = set()  # values whose copies were all on lost disks
        self.trimmed: Glsn = 0
        self._values: set[bytes] = set()  # all that were sent
        self._followed: list[Entry | Gap] = []

    # ---- what clients do and see

    def next_value(self) -> bytes:
        value = f"<{self.name} {len(self._values):06d}>".encode()
        self._values.add(value)
        return value

    def acknowledged(self, value: bytes, position: Glsn) -> None:
        self.places[value] = position

    def trim(self) -> Glsn:
        """Return where to trim: at something that its follower has passed; 0: nothing is there."""
        passed = [p for p in self.places.values() if self.trimmed < p < self.following]
        if not passed:
            return 0
        self.trimmed = sorted(passed)[len(passed) // 2]
        return self.trimmed

    def follow(self, item: Entry | Gap) -> None:
        self._followed.append(item)
        self.following = (item.last if isinstance(item, Gap) else item.position) + 1

    @property
    def is_followed(self) -> bool:
        return self.following > max(self.places.values(), default=0)

    # ---- verdicts

    def untrimmed(self) -> list[tuple[bytes, Glsn]]:
        """Return the acknowledged values that nobody asked to trim, with their positions."""
        return [(value, at) for value, at in self.places.items() if at > self.trimmed]

    def check_follower(self) -> None:
        self._check("the follower", self._followed, 0)

    def check_all(self, items: Sequence[Entry | Gap], tail: Glsn, *, may_lose: bool) -> None:
        """Check all that can be read now."""
        highest = max(self.places.values(), default=0)
        if tail < highest:
            raise AssertionError(f"{self.name} ends at {tail}, {highest} was acknowledged")
        self._check("a reader", items, self.trimmed)
        gaps = [item for item in items if isinstance(item, Gap) and item.kind == "dataloss"]
        if gaps and not may_lose:
            raise AssertionError(f"{self.name}: {gaps} are said to be lost, too few disks were")

    def _check(self, who: str, items: Iterable[Entry | Gap], trimmed: Glsn) -> None:
        seen: dict[bytes, Glsn] = {}
        gaps: list[Gap] = []
        last = 0
        for item in items:
            first = item.first if isinstance(item, Gap) else item.position
            if first <= last:
                raise AssertionError(f"{self.name}: {who} got {item} after {last}")
            if isinstance(item, Gap):
                gaps += [item] if item.kind == "dataloss" else []
                last = item.last
                continue
            last = item.position
            if item.value in seen or item.value not in self._values:
                raise AssertionError(f"{self.name}: {who} got {item}, and {seen.get(item.value)}")
            seen[item.value] = item.position
        for value, at in self.places.items():
            if seen.get(value) == at or at <= trimmed:
                continue
            is_lost = value in self.lost and any(gap.first <= at <= gap.last for gap in gaps)
            if value in seen or not is_lost:
                raise AssertionError(
                    f"{self.name}: {value!r} was acknowledged at {at}; {who} found it at "
                    f"{seen.get(value)}, lost: {gaps}, disks lost: {value in self.lost}"
                )


class RebuildingJudge(CopiesJudge):
    """Counts copies by log, and knows what is lost with disks."""

    def __init__(self, servers: SimCluster, logs: Sequence[LogJudge]) -> None:
        super().__init__(servers, servers.shape.replicas)
        self._logs = logs
        self._known: dict[str, dict[LogId, LogState]] = {}
        self._starts: dict[LogId, Glsn] = {}
        self._last_term: tuple[Term | None, float] = None, 0.0  # and since when

    def look(self) -> list[Condition] | None:
        """Look unless the metadata repository is new: it has yet to learn which nodes are away."""
        self.verdict = self.verdict or self._forgotten()
        now, shape = self._servers.sim.world.now, self._servers.shape
        if self._term is not self._last_term[0]:
            self._last_term = self._term, now
        known_after_s = 2 * (shape.failure_detection_s + RECONNECT_GRACE_S)
        return super().look() if now > self._last_term[1] + known_after_s else None

    def knows_all_logs(self) -> bool:
        """Return whether the loglets of all logs are known: until then no disk may be lost."""
        return {log.name for log in self._logs} <= {*self._states()}

    def disk_is_lost(self, name: str) -> None:
        """Called just before a disk is emptied."""
        states = self._states()
        for log in self._logs:
            for loglet, state in states[log.name].items():
                log.lost |= self._only_on(_shard(name), loglet, state, log._values)

    def _only_on(
        self, shard: ShardId, loglet: LogId, state: LogState, values: set[bytes]
    ) -> set[bytes]:
        """Return the values of which only this shard has the newest copy."""
        found: set[bytes] = set()
        for first, every in self._copies(loglet).items():
            if epoch_of(first) < state.history[0].since:
                continue  # trimmed
            counted = state.metadata_of(epoch_of(first)).shards  # others were emptied
            copies = {s: copy for s, copy in every.items() if s in counted}
            newest = max((copy.precedence for copy in copies.values()), default=(0, 0))
            if {s for s, copy in copies.items() if copy.precedence == newest} == {shard}:
                found.update(v for v in values if v in bytes(copies[shard].batch))
        return found

    def _count(self, logs: list[pb.Log]) -> None:
        if complaint := self.missing():
            self.verdict = self.verdict or f"no condition, but {complaint}"
        self.healthy += any(log.places for log in self._logs)

    def missing(self, *, lost: bool = True) -> str:
        """Return which entry lacks copies; "": none. Without `lost` only of those that are left."""
        for log in self._logs:
            entries, states = log.untrimmed(), self._states().get(log.name)
            if not states or not entries:
                continue
            copies = {loglet: self._copies(loglet) for loglet in states}
            firsts = {loglet: sorted(found) for loglet, found in copies.items()}
            for value, at in entries:
                loglet = max(each for each in states if self._starts[each] <= at)
                first = next((f for f in reversed(firsts[loglet]) if f <= at), 0)
                metadata = states[loglet].metadata_of(epoch_of(at))
                held = {
                    s
                    for s, copy in copies[loglet].get(first, {}).items()
                    if value in bytes(copy.batch) and s in metadata.shards
                }
                is_complete = metadata.can_replicate(held)
                # Of a lost one, an older copy that was not complete may be left somewhere.
                if not is_complete and (lost or value not in log.lost):
                    return f"{value!r} at {at} is only on {sorted(held)} of {metadata}"
        return ""

    def _forgotten(self) -> str:
        """Return which copy its node is certain not to have; "": none, or nobody leads, so it is
        not known which segments are gone: of those, nodes forget all, their copies last."""
        if self._term is None:
            return ""
        for name, node in self._servers.nodes.items():
            if not node.failed.get_loop().is_running():
                continue  # that of a process that ended
            copies, marks = shard_on(node).copies, shard_on(node).copies.marks
            for log, loglet in [(log, each) for log, of in self._states().items() for each in of]:
                is_old = marks._older is None or loglet in marks._older
                is_unsearched = is_old and loglet not in marks._searched
                if is_unsearched or copies.may_miss(loglet) or copies.volume.is_closed:
                    continue  # it is not certain, or clients have given up all that it had before
                for table in self._tables(name):
                    for record in table.look(loglet).by_first.values():
                        if record.kind is not Kind.DATA:
                            continue
                        header = read_header(record.batch)
                        found = marks.find(loglet, header.producer_id, header.sequence)
                        if found.certain and record.first not in found.lsns:
                            return f"{name} is certain that it never got {record.first} of {log}"
        return ""

    def _states(self) -> dict[str, dict[LogId, LogState]]:
        """Return the loglets of each log with their states, as the metadata repository knows them,
        or knew them last if none leads."""
        term = self._term
        if term is None:
            return self._known
        keeper = term.keepers["copyset"]
        assert isinstance(keeper, CopysetKeeper)
        found: dict[str, dict[LogId, LogState]] = {}
        for record in keeper.records:
            log, segment = term.catalog.log_of(record), term.catalog.segment_of(record)
            if log is not None and segment is not None and segment.start:
                found.setdefault(log.name, {})[record.loglet] = record.state
                self._starts[record.loglet] = segment.start
        self._known |= found
        return self._known

    def _copies(self, loglet: LogId) -> dict[Lsn, dict[ShardId, Record]]:
        """Return the copies of all batches of a loglet, on all disks."""
        found: dict[Lsn, dict[ShardId, Record]] = {}
        for name in self._servers.node_names:
            for table in self._tables(name):
                for record in table.look(loglet).by_first.values():
                    if record.kind is Kind.DATA:
                        found.setdefault(record.first, {})[_shard(name)] = record
        return found

    def _tables(self, name: str) -> Iterator[MemoryLogs]:
        disk = self._servers.sim.host(name).disk
        for node in map(disk.find, disk.below("/")):
            if isinstance(node, MemoryLogs):
                yield node


def _shard(name: str) -> ShardId:
    return shard_of(int(name.removeprefix("vsn-")), 0)

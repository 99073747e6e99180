"""Judges a simulated cluster whose `copyset` logs are rebuilt, with a look at all disks.

- What was acknowledged is read at its position, once, or said to be lost; only that is said to be
  lost whose copies were all on disks that are lost.
- If the status shows no condition, every entry has all its copies, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from copies_judge import CopiesJudge
from memory_tables import MemoryLogs
from sim_cluster import SimCluster

from loomlog.core.conditions import Condition
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.record import Kind, Lsn, Record, epoch_of
from loomlog.core.copyset.shards import shard_of
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
        self._known: dict[str, tuple[LogId, LogState]] = {}
        self._last_term: tuple[Term | None, float] = None, 0.0  # and since when

    def look(self) -> list[Condition] | None:
        """Look unless the metadata repository is new: it has yet to learn which nodes are away."""
        now, shape = self._servers.sim.world.now, self._servers.shape
        if self._term is not self._last_term[0]:
            self._last_term = self._term, now
        known_after_s = 2 * (shape.failure_detection_s + RECONNECT_GRACE_S)
        return super().look() if now > self._last_term[1] + known_after_s else None

    def disk_is_lost(self, name: str) -> None:
        """Called just before a disk is emptied."""
        state = self._states()
        shard = _shard(name)
        for log in self._logs:
            if log.name not in state:
                continue
            for copies in self._copies(state[log.name][0]).values():
                newest = max(copy.precedence for copy in copies.values())
                if {s for s, copy in copies.items() if copy.precedence == newest} == {shard}:
                    log.lost.update(v for v in log._values if v in bytes(copies[shard].batch))

    def _count(self, logs: list[pb.Log]) -> None:
        if complaint := self.missing():
            self.verdict = self.verdict or f"no condition, but {complaint}"
        self.healthy += any(log.places for log in self._logs)

    def missing(self, *, lost: bool = True) -> str:
        """Return which entry lacks copies; "": none. Without `lost` only of those that are left."""
        for log in self._logs:
            entries, found = log.untrimmed(), self._states().get(log.name)
            if found is None or not entries:
                continue
            copies = self._copies(found[0])
            firsts = sorted(copies)
            for value, at in entries:
                first = next((f for f in reversed(firsts) if f <= at), 0)
                held = {
                    s for s, copy in copies.get(first, {}).items() if value in bytes(copy.batch)
                }
                metadata = found[1].metadata_of(epoch_of(at))
                is_complete = metadata.can_replicate(held)
                if not is_complete and (held or lost or value not in log.lost):
                    return f"{value!r} at {at} is only on {sorted(held)} of {metadata}"
        return ""

    def _states(self) -> dict[str, tuple[LogId, LogState]]:
        """Return the loglet and the state of each log, as the metadata repository knows them; as it
        knew them last, if none leads."""
        term = self._term
        if term is None:
            return self._known
        keeper = term.keepers["copyset"]
        assert isinstance(keeper, CopysetKeeper)
        found = self._known
        for record in keeper.records:
            log = term.catalog.log_of(record)
            if log is not None:
                found[log.name] = record.loglet, record.state
        return found

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

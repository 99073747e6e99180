"""Compute what docs/scale.md reports: placement, metadata and plans of a large cluster.

python tests/bench/measure_scale.py [--nodes 200] [--shards 4] [--logs 10000] [--records 1000000000]

Nothing is stored and no server runs: these are the decisions of core/, on as many nodes and logs.
Of every log a few batches are sampled, and counts are scaled to all records. Times are those of the
processor: all of it runs on one core.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from random import Random
from time import process_time
from typing import TypeVar

from loomlog.core.copyset.log_state import first_state, take_epoch
from loomlog.core.copyset.messages import LogState
from loomlog.core.copyset.nodeset import (
    Member,
    choose_copyset,
    choose_nodeset,
    sequencer_of,
    shard_of,
)
from loomlog.core.copyset.outage import outage
from loomlog.core.copyset.rebuild.plan import choose_targets, donor_of, parts, widened
from loomlog.core.copyset.record import make
from loomlog.core.ordered.stream_record import StreamRecord
from loomlog.core.outage import of_log
from loomlog.core.placement import Placed, place
from loomlog.core.rebalance import ReplicaGroup, imbalance, plan_moves
from loomlog.metadata.catalog.records import decode, encode
from loomlog.metadata.copyset.records import CopysetRecord
from loomlog.types import NodeId, ShardId

REPLICATION = 3
NODESET = 20
RECORD_BYTES = 100

Result = TypeVar("Result")


@dataclass(frozen=True)
class Size:
    """The cluster to compute."""

    nodes: int
    shards: int
    racks: int
    logs: int
    records: int
    sampled: int  # batches of each log

    @property
    def members(self) -> list[Member]:
        return [
            Member(shard_of(node, index), f"rack={node % self.racks}")
            for node in range(1, self.nodes + 1)
            for index in range(self.shards)
        ]


class Clock:
    """Prints how long each step computes, and adds it up."""

    total_s = 0.0

    def measure(self, what: str, work: Callable[[], Result]) -> Result:
        start = process_time()
        result = work()
        took_s = process_time() - start
        self.total_s += took_s
        print(f"{what}: {took_s:.1f} s", flush=True)
        return result


def show_balance(what: str, counts: Counter[int], everybody: Collection[int]) -> None:
    values = [counts[each] for each in everybody]
    average = sum(values) / len(values)
    most = max(values) / average - 1 if average else 0
    least = 1 - min(values) / average if average else 0
    print(f"  {what}: average {average:,.1f}, most +{most:.1%}, least -{least:.1%}")


# ---- the steps


def make_logs(size: Size, members: list[Member]) -> dict[int, LogState]:
    weights = dict.fromkeys(range(1, size.nodes + 1), 1.0)
    states = {}
    for log in range(1, size.logs + 1):
        nodeset = choose_nodeset(log, members, NODESET)
        sequencer = sequencer_of(log, weights)
        assert sequencer is not None
        states[log] = take_epoch(first_state(nodeset, REPLICATION), sequencer, nodeset)
    return states


def sample(size: Size, states: dict[int, LogState]) -> list[tuple[int, int, tuple[ShardId, ...]]]:
    """Return log, LSN and copyset of some batches of every log."""
    chance, found = Random(1), []
    for log, state in states.items():
        for offset in range(1, size.sampled + 1):
            copyset = choose_copyset(state.history[-1], (), chance)
            assert copyset is not None
            found.append((log, make(state.epoch, offset), copyset))
    return found


def metadata_bytes(states: dict[int, LogState], streams: Iterable[tuple[NodeId, ...]]) -> int:
    """Write and read the records of all logs, once as copyset and once as ordered ones."""
    total = 0
    for log, state in states.items():
        record = CopysetRecord(log, log, log, state, begun=True, holders=state.history[-1].shards)
        value = encode(record)
        assert decode(CopysetRecord, "", value) == record
        total += len(value)
    for log, nodes in enumerate(streams, start=1):
        births = tuple((node, 1 << 60) for node in nodes)
        stream = StreamRecord(log, log, log, nodes, 1, sealed=False, stamp=1 << 60, births=births)
        value = encode(stream)
        assert decode(StreamRecord, "", value) == stream
        total += len(value)
    return total


def plan_rebuild(
    states: dict[int, LogState], lost: set[ShardId], members: list[Member]
) -> dict[int, LogState]:
    """Return the logs that have copies on lost shards, with nodesets wide enough."""
    usable = {member for member in members if member.shard not in lost}
    concerned = {}
    for log, state in states.items():
        through = {shard: state.epoch for shard in lost if shard in state.history[-1].shards}
        clean = replace(state, last_clean=state.epoch)
        if through and parts(clean, through):
            concerned[log] = widened(clean, through, usable)
    return concerned


def plan_records(
    batches: list[tuple[int, int, tuple[ShardId, ...]]],
    states: dict[int, LogState],
    lost: set[ShardId],
) -> tuple[Counter[int], Counter[int]]:
    """Return which shards restore the batches that lost a copy, and which take the copies."""
    donors: Counter[int] = Counter()
    targets: Counter[int] = Counter()
    for log, lsn, copyset in batches:
        kept = [shard for shard in copyset if shard not in lost]
        if len(kept) == len(copyset):
            continue
        metadata = states[log].history[-1]
        donor = donor_of(copyset, lsn, lost)
        chosen = choose_targets(
            copyset, kept, metadata, [s for s in metadata.shards if s not in lost]
        )
        assert donor is not None
        assert chosen is not None
        donors[donor] += 1
        targets.update(set(chosen).difference(kept))
    return donors, targets


def check_rack(size: Size, states: dict[int, LogState]) -> list[int]:
    """Return how many copies are left of each log without one rack."""
    away = {node for node in range(1, size.nodes + 1) if node % size.racks == 0}
    outages = (of_log(outage(log, state, away, (), {})) for log, state in states.items())
    return [found.copies_left for found in outages if found is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--racks", type=int, default=20)
    parser.add_argument("--logs", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=1_000_000_000)
    parser.add_argument("--sampled", type=int, default=20)
    size = Size(**vars(parser.parse_args()))
    clock, members = Clock(), size.members
    shards = [member.shard for member in members]
    nodes = range(1, size.nodes + 1)
    locations = {node: f"rack={node % size.racks}" for node in range(1, size.nodes * 2)}

    states = clock.measure(
        f"nodesets and sequencers of {size.logs:,} logs on {len(shards)} shards",
        lambda: make_logs(size, members),
    )
    in_nodesets = Counter(s for state in states.values() for s in state.history[-1].shards)
    show_balance("nodesets that a shard is in", in_nodesets, shards)
    sequencers = Counter(state.sequencer for state in states.values())
    show_balance("sequencers of a node", sequencers, nodes)

    batches = clock.measure(
        f"copysets of {size.logs * size.sampled:,} sampled batches", lambda: sample(size, states)
    )
    copies = Counter(shard for _, _, copyset in batches for shard in copyset)
    show_balance("copies on a shard, in the sample", copies, shards)

    placed = clock.measure(
        f"replicas of {size.logs:,} streams on {size.nodes} nodes",
        lambda: place(size.logs, REPLICATION, nodes, Placed(), locations),
    )
    show_balance("replicas on a node", Counter(n for each in placed for n in each), nodes)
    show_balance("primaries on a node", Counter(each[0] for each in placed), nodes)

    stored = clock.measure(
        "metadata of all logs, written and read", lambda: metadata_bytes(states, placed)
    )
    print(f"  {stored / 1e6:.1f} MB for {2 * size.logs:,} records")

    lost = {shard_of(1, index) for index in range(size.shards)}
    concerned = clock.measure(
        "rebuild plan, a node lost", lambda: plan_rebuild(states, lost, members)
    )
    donors, targets = clock.measure(
        "donors and targets of the sampled batches that it had",
        lambda: plan_records(batches, concerned, lost),
    )
    share = sum(donors.values()) / len(batches)
    others = [shard for shard in shards if shard not in lost]
    amount = share * size.records
    print(f"  {len(concerned):,} logs have copies there, about {amount:,.0f} records of")
    print(f"  {size.records:,} ({amount * RECORD_BYTES / 1e9:.2f} GB at {RECORD_BYTES} bytes)")
    print(f"  donors: {len(donors)} of {len(others)} shards, targets: {len(targets)}")
    show_balance("batches that a donor restores, in the sample", donors, others)
    show_balance("copies that a target takes, in the sample", targets, others)

    left = clock.measure("check of a rack", lambda: check_rack(size, states))
    print(f"  copies left of each log: {dict(sorted(Counter(left).items()))}")

    chance = Random(2)
    size_bytes = size.records * RECORD_BYTES // size.logs
    groups = [
        ReplicaGroup(number, 0, each, int(chance.expovariate(1 / size_bytes)))
        for number, each in enumerate(placed, start=1)
    ]
    usable = range(1, size.nodes + size.nodes // 10 + 1)
    plan = clock.measure(
        f"rebalance plan, {size.nodes // 10} nodes added",
        lambda: plan_moves(groups, usable, locations),
    )
    moved = sum(move.stored_bytes for move in plan.moves)
    print(f"  {len(plan.moves):,} of {len(placed) * REPLICATION:,} replicas move")
    print(f"  {moved / 1e9:.1f} GB of {sum(g.stored_bytes for g in groups) * 3 / 1e9:.1f} GB")
    before, after = (imbalance(loads.values()) for loads in (plan.before, plan.after))
    print(f"  the node with the most load: +{before:.1%} before, +{after:.1%} after")
    print(f"all: {clock.total_s:.1f} s")


if __name__ == "__main__":
    main()

"""Measure a commit round over many streams: from the bytes of reports to the bytes of commits.

    python tests/bench/measure_rounds.py [streams] [--logs 1] [--active N] [--plain]

The committer of a metadata repository with a round log in memory, three nodes with a replica of
every stream, no sockets. CPU time, the shortest of several rounds; `record` is what a round writes.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from time import process_time
from types import SimpleNamespace
from typing import Any

from loomlog.core.ordered.rounds import LogRounds
from loomlog.core.packed import LEAST
from loomlog.metadata.ordered.committer import Committer
from loomlog.metadata.rounds import Done
from loomlog.types import NodeId, ReplicaState, Report
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.translate import pack_reports, report_to_wire

NODES = (1, 2, 3)
ROUNDS = 7
STAMP = 1 << 60


class RoundsInMemory:
    """A round log whose records are durable when the caller says so."""

    epoch = 1
    is_doubtful = False
    record_format = 1

    def __init__(self) -> None:
        self.appended: list[tuple[bytes, Done]] = []

    def read(self) -> list[bytes]:
        return []

    def begin(self, snapshot: object) -> None: ...

    def append(self, epoch: int, record: bytes, done: Done) -> None:
        self.appended.append((record, done))


class PlayedNodes:
    """Nodes that are connected; what is sent to them is encoded."""

    def __init__(self) -> None:
        self.of = {node: SimpleNamespace(stored_bytes_total=0) for node in NODES}
        self.sent_bytes = 0

    def get(self, node: NodeId) -> Any:
        return self.of[node]

    def connected(self, node: NodeId) -> bool:
        return True

    def send(self, node: NodeId, frame: pb.Frame) -> None:
        self.sent_bytes += len(frame.SerializeToString())


async def measure(streams: int, logs: int, active: int, *, packed: bool) -> None:
    rounds, nodes = RoundsInMemory(), PlayedNodes()
    ids = range(1, streams + 1)
    records: Any = SimpleNamespace(
        catalog=None,
        streams={each: SimpleNamespace(stamp=STAMP) for each in ids},
        held_by=lambda node: [SimpleNamespace(stream_id=each) for each in ids],
    )
    committer = Committer(rounds, records, nodes, lambda stream: None, print)  # type: ignore[arg-type]
    for log_id in range(1, logs + 1):
        log = LogRounds(log_id)
        for stream_id in ids[log_id - 1 :: logs]:
            log.add_stream(stream_id, NODES, 1, sealed=False)
        committer.add(log)
    committer.start()
    for node in NODES:
        committer.reconnected(node, reads_packed=packed)
    shortest_s: dict[str, float] = {}
    record_bytes = commit_bytes = 0

    def step(name: str, work: Callable[..., object], *arguments: object) -> None:
        begun_s = process_time()
        work(*arguments)
        took_s = process_time() - begun_s
        shortest_s[name] = min(took_s, shortest_s.get(name, took_s))

    for llsn in range(1, ROUNDS + 1):
        if llsn == 2:
            shortest_s.clear()  # in the first round all streams are active
        messages = [
            report_bytes(node, committer, ids if llsn == 1 else ids[:active], llsn, packed=packed)
            for node in NODES
        ]
        step("reports in", take, committer, messages)
        step("decide and encode", committer._turn)  # the turn that the loop would call
        appended, rounds.appended = rounds.appended, []
        record_bytes = sum(len(record) for record, _ in appended)
        step("adopt", finish, appended)
        nodes.sent_bytes = 0
        step("commits out", committer._turn)
        commit_bytes, nodes.sent_bytes = nodes.sent_bytes, 0
        step("bare high watermarks, at most every 20 ms", committer._send_bare)
        committer._turn_scheduled = False
    committer.stop()
    for name, took_s in shortest_s.items():
        print(f"{name}: {took_s * 1e3:.2f} ms")
    print(f"records: {record_bytes:,} bytes, commits: {commit_bytes:,} bytes")
    print(f"bare high watermarks: {nodes.sent_bytes:,} bytes")


def take(committer: Committer, messages: Sequence[bytes]) -> None:
    for node, data in zip(NODES, messages, strict=True):
        committer.take_report(node, pb.Frame.FromString(data).report)


def finish(appended: Sequence[tuple[bytes, Done]]) -> None:
    for _, done in appended:
        done(None)


def report_bytes(
    node: NodeId, committer: Committer, ids: range, llsn: int, *, packed: bool
) -> bytes:
    reports = []
    for stream_id in ids:
        log = committer.log_of(stream_id)
        assert log is not None
        high = log.high_watermark
        report = Report(stream_id, llsn, 1, high, 1, ReplicaState.RUNNING, high, False)
        reports.append(report_to_wire(report, 1000 * llsn, stamp=STAMP, birth=node))
    message = pb.GetReportResponse(storage_node_id=node, uncommit_reports=reports)
    if packed and len(ids) >= LEAST:
        pack_reports(message)
    return pb.Frame(report=message).SerializeToString()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("streams", type=int, nargs="?", default=10_000)
    parser.add_argument("--logs", type=int, default=1)
    parser.add_argument("--active", type=int, help="in all rounds but the first (default: all)")
    parser.add_argument("--plain", action="store_true", help="as with nodes of earlier releases")
    options = parser.parse_args()
    active = options.active or options.streams
    asyncio.run(measure(options.streams, options.logs, active, packed=not options.plain))


if __name__ == "__main__":
    main()

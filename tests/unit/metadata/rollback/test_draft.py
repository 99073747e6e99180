"""The records of restored metadata, as they have to be with what the storage nodes hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from loomlog.archive.record import ArchiveInfo
from loomlog.core.chained.chain import Replica, ReplicaEpochs, first_projection
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.copyset.log_state import first_state, take_epoch
from loomlog.core.copyset.nodeset import Member
from loomlog.core.ordered.stream_record import StreamRecord
from loomlog.core.packed import HeldReplica
from loomlog.core.segments import Segment, Settings
from loomlog.metadata.catalog.records import (
    CountersRecord,
    LeaseRecord,
    LogRecord,
    MetadataRecord,
    NodeRecord,
    encode,
)
from loomlog.metadata.chained.records import ChainedDraft
from loomlog.metadata.copyset.records import CopysetDraft, CopysetRecord
from loomlog.metadata.ordered.draft import OrderedDraft
from loomlog.metadata.registers import RegisterRecord
from loomlog.metadata.rollback.draft import NUMBERS_ABOVE, Draft, ProtocolDraft
from loomlog.metadata.rollback.register_notes import register_notes
from loomlog.metadata.store.contract import StoredItem
from loomlog.types import ReplicaState, Report

NODES = {
    node: NodeRecord(node, f"node-{node}:1", f"secret {node}", "always", ()) for node in (1, 2, 3)
}
LONE = (Segment(2, Settings("chained", 1, 3), 1),)
CHAINED = ChainedRecord(2, 2, 7, first_projection(2, [[1, 2, 3]], birth=5, sequencer=1), made=True)
STATE = take_epoch(first_state([Member(1), Member(2)], 2), 1, [Member(1), Member(2)])
COPY: dict[str, MetadataRecord] = {
    **{f"node/{node}": record for node, record in NODES.items()},
    "counters": CountersRecord(3, 9),
    "log/a": LogRecord(1, "a", (Segment(1, Settings("ordered", 1, 2), 1),)),
    "stream/1": StreamRecord(
        1, 1, 1, (1, 2), 3, sealed=False, dropping=(3,), stamp=77, births=((1, 10), (2, 20))
    ),
    "log/b": LogRecord(2, "b", LONE),
    "chained/2": CHAINED,
    "log/c": LogRecord(3, "c", (Segment(3, Settings("copyset", 1, 2), 1),)),
    "copyset/3": CopysetRecord(3, 3, 8, STATE, begun=True, holders=(1, 2)),
}


def stream(node: int, epoch: int, stamp: int = 77) -> HeldReplica:
    report = Report(1, 5, 0, 9, epoch, ReplicaState.RUNNING, 9, resend=False)
    return HeldReplica(report, stamp, birth=10 * node)


class Held:
    """The data that nodes hold, of all protocols."""

    def __init__(self) -> None:
        ordered, chained, copyset = OrderedDraft(), ChainedDraft(), CopysetDraft()
        self.drafts: list[ProtocolDraft] = [ordered, chained, copyset]
        self.streams, self.log_of = ordered.streams, ordered.log_of
        self.chains, self.copysets = chained.chains, copyset.epochs
        self.unopened, self.unserved = ordered.unopened, chained.unserved
        self.trims = (ordered.trimmed, chained.trimmed, copyset.trimmed)


def held() -> Held:
    """Return holdings that match the copy."""
    found = Held()
    found.streams[1] = {1: stream(1, 3), 2: stream(2, 3)}
    found.log_of[1] = 1
    found.chains[2] = dict.fromkeys(CHAINED.projection.replicas, ReplicaEpochs(1, 1))
    found.copysets[3] = STATE.epoch
    return found


def draft(
    found: Held,
    more: dict[str, MetadataRecord] | None = None,
    leave: Collection[int] = (),
    deleted: Collection[str] = (),
) -> Draft:
    items = {key: StoredItem(encode(record), 1) for key, record in {**COPY, **(more or {})}.items()}
    made = Draft(items, found.drafts, NODES)
    made.make(NODES, leave, deleted)
    made.seal_changed()
    return made


def test_nothing_is_dropped_from_any_node_any_more() -> None:
    deleted = StreamRecord(5, 4, 4, (1, 2), 3, sealed=True, stamp=78)
    taken_back = StreamRecord(6, 1, 1, (1, 2), 1, sealed=True, stamp=79, taken_back=True)
    found = held()
    found.streams[6] = {1: stream(1, 1, stamp=79)}
    found.log_of[6] = 1
    made = draft(found, {"stream/5": deleted, "stream/6": taken_back})
    assert not made.reasons
    assert (made.changes["stream/5"], made.changes["stream/6"]) == (None, None)
    brought = made.changes["stream/1"]
    assert isinstance(brought, StreamRecord)
    assert (brought.dropping, brought.left) == ((), (3,))
    assert (brought.replicas, brought.epoch, brought.sealed) == ((1, 2), 3, False)


def test_how_many_entries_removed_streams_had_is_not_forgotten() -> None:
    removed = StreamRecord(
        6, 1, 1, (1, 2), 3, sealed=True, stamp=79, taken_back=True, entries_gone=4
    )
    found = held()
    found.streams[6] = {1: stream(1, 3, stamp=79)}
    found.log_of[6] = 1
    made = draft(found, {"stream/6": removed})
    assert not made.reasons
    kept = made.changes["stream/6"]
    assert isinstance(kept, StreamRecord)
    assert (kept.holders, kept.taken_back, kept.entries_gone) == ((), True, 4)


def test_a_stream_that_was_removed_since_needs_a_newer_copy() -> None:
    made = draft(held(), {"stream/6": StreamRecord(6, 1, 1, (1, 2), 3, sealed=False, stamp=79)})
    (reason,) = made.reasons
    assert "stream 6 of log a" in reason
    assert "only a newer copy" in reason


def test_a_stream_that_ends_when_it_is_trimmed_may_have_been_removed_since() -> None:
    relief = StreamRecord(6, 1, 1, (1, 2), 3, sealed=False, stamp=79, relief=True)
    for stream in (relief, replace(relief, relief=False, removing=True)):
        made = draft(held(), {"stream/6": stream})
        assert not made.reasons
        assert made.changes["stream/6"] is None
        assert "log a: stream 6 was removed since" in made.notes
    (reason,) = draft(held(), {"stream/6": replace(relief, replicas=(1, 4))}).reasons
    assert "stream 6 of log a" in reason  # node 4 did not come
    volumes = replace(NODES[1], shards=(0, 1))  # it came without one of them
    (reason,) = draft(held(), {"stream/6": relief, "node/1": volumes}).reasons
    assert "stream 6 of log a" in reason


def test_numbers_are_above_all_that_nodes_know() -> None:
    found = held()
    found.streams[40] = {1: stream(1, 1)}
    found.log_of[40] = 30
    made = draft(found)
    assert made.changes["counters"] == CountersRecord(30 + NUMBERS_ABOVE, 40 + NUMBERS_ABOVE)
    assert any("stream 40 on node 1 is of log 30" in note for note in made.notes)
    assert "stream/40" not in made.changes


def test_replicas_that_moved_are_found_and_sealed() -> None:
    found = held()
    found.streams[1] = {1: stream(1, 6), 2: stream(2, 3), 3: stream(3, 6)}
    brought = draft(found).changes["stream/1"]
    assert isinstance(brought, StreamRecord)
    assert (brought.replicas, brought.epoch, brought.sealed) == ((1, 3), 7, True)
    assert brought.left == (2,)
    assert dict(brought.births) == {1: 10, 2: 20, 3: 30}


def test_another_stream_of_the_same_number_is_not_taken_for_it() -> None:
    found = held()
    found.streams[1][3] = stream(3, 9, stamp=78)
    brought = draft(found).changes["stream/1"]
    assert isinstance(brought, StreamRecord)
    assert (brought.replicas, brought.epoch) == ((1, 2), 3)


def test_a_stream_that_was_added_to_a_log_is_taken_in() -> None:
    found = held()
    found.streams[12] = {2: stream(2, 2, stamp=99), 3: stream(3, 2, stamp=99)}
    found.log_of[12] = 1
    made = draft(found)
    added = made.changes["stream/12"]
    assert isinstance(added, StreamRecord)
    assert (added.replicas, added.stamp, added.epoch, added.sealed) == ((2, 3), 99, 3, True)
    assert (added.log_id, added.loglet) == (1, 1)


def test_chains_and_copysets_go_on_above_their_epochs() -> None:
    found = held()
    found.chains[2] = {
        Replica(1, 2, 0, 5): ReplicaEpochs(4, 4),
        Replica(2, 2, 0, 5): ReplicaEpochs(2, 2),
        Replica(3, 2, 0, 8): ReplicaEpochs(4, 4),
    }
    found.copysets[3] = 9
    made = draft(found)
    chained, copyset = made.changes["chained/2"], made.changes["copyset/3"]
    assert isinstance(chained, ChainedRecord)
    assert chained.projection.epoch == 4
    assert [replica.node_id for replica in chained.projection.replicas] == [1]
    assert isinstance(copyset, CopysetRecord)
    assert (copyset.state.epoch, copyset.holders) == (10, (1, 2, 3))


def test_logs_are_trimmed_as_far_as_a_node_did() -> None:
    found = held()
    ordered, chained, copyset = found.trims
    ordered |= {(1, 1): 4, (1, 2): 6}
    chained[2], copyset[3] = 7, 8
    made = draft(found)
    assert [_trimmed(made, name) for name in "abc"] == [6, 7, 8]
    assert sum("since: so it is again" in note for note in made.notes) == 3
    found.streams[1][2] = stream(2, 3, stamp=78)  # another stream had the number
    assert _trimmed(draft(found), "a") == 4


def test_the_end_of_older_segments_is_not_taken_for_a_trim() -> None:
    found = held()
    _, chained, copyset = found.trims
    older = Segment(3, Settings("copyset", 1, 2), 1, 9)
    log = LogRecord(2, "b", (older, *(each._replace(start=10) for each in LONE)))
    more: dict[str, MetadataRecord] = {"log/b": log}
    chained[2] = 9
    assert _trimmed(draft(found, more), "b") == 0
    copyset[3] = 5
    assert _trimmed(draft(found, more), "b") == 5


def test_segments_that_were_trimmed_as_a_whole_leave_their_log() -> None:
    """Nodes have nothing of them any more, so there is nothing to find out about them."""
    found = held()
    copyset = found.trims[2]
    older = Segment(9, Settings("chained", 1, 2), 1, 9)
    log = LogRecord(3, "c", (older, Segment(3, Settings("copyset", 1, 2), 10)))
    gone = replace(CHAINED, loglet=9, log_id=3)
    more: dict[str, MetadataRecord] = {"log/c": log, "chained/9": gone}
    assert draft(found, more).log("c") == log
    copyset[3] = 12
    made = draft(found, more)
    assert not made.reasons
    assert _trimmed(made, "c") == 12
    assert [segment.loglet for segment in made.log("c").segments] == [3]
    assert "chained/9" not in made.changes, "the vmr removes what is left of it"


def test_a_log_is_not_trimmed_by_whole_segments_with_streams() -> None:
    found = held()
    copyset = found.trims[2]
    ordered = Segment(1, Settings("ordered", 1, 2), 1, 9)
    log = LogRecord(1, "a", (ordered, Segment(3, Settings("copyset", 1, 2), 10)))
    copyset[3] = 12
    made = draft(found, {"log/a": log})
    assert _trimmed(made, "a") == 0
    assert made.notes.count("log a was trimmed up to position 12 since: trim it again") == 1


def _trimmed(made: Draft, name: str) -> int:
    return made.log(name).trimmed


def test_a_segment_that_is_not_known_may_be_part_of_a_log() -> None:
    found = held()
    found.copysets[5] = 1
    assert any("--leave 5" in reason for reason in draft(found).reasons)
    made = draft(found, leave=[5])
    assert not made.reasons
    assert any("segment 5 (copyset)" in note for note in made.notes)


def test_a_log_that_nobody_has_is_given_up_only_by_an_operator() -> None:
    """The log's nodes may have been added since the copy was made, or have lost their disks."""
    found = held()
    del found.streams[1], found.chains[2], found.copysets[3]
    keys = "log/a", "stream/1", "log/b", "chained/2", "log/c", "copyset/3"
    made = draft(found)
    assert all(f"--deleted {log}" in why for log, why in zip("abc", made.reasons, strict=True))
    assert not [key for key in keys if key in made.changes and made.changes[key] is None]
    made = draft(found, deleted="abc")
    assert not made.reasons
    assert [made.changes[key] for key in keys] == [None] * 6


def test_nobody_holds_a_lease() -> None:
    lease = LeaseRecord("l", "holder", 7, 10.0)
    items = {"lease/l": StoredItem(encode(lease), 1)}
    made = Draft(items, held().drafts, NODES, lease_epochs=1000)
    made.make(NODES, (), ())
    assert made.changes["lease/l"] == replace(lease, holder="", epoch=1000)


def test_a_node_that_was_added_or_replaced_is_taken_in() -> None:
    came = {**NODES, 4: replace(NODES[1], node_id=4), 1: replace(NODES[1], node_secret="new")}
    items = {key: StoredItem(encode(record), 1) for key, record in COPY.items()}
    made = Draft(items, held().drafts, came)
    made.make(came, (), ())
    assert made.changes["node/4"] == came[4]
    replaced = made.changes["node/1"]
    assert isinstance(replaced, NodeRecord)
    assert replaced.losses_of("copyset") == ((3, STATE.epoch),)


def test_notes_name_pipelines_and_archives_that_may_be_ahead_of_the_copy() -> None:
    info = ArchiveInfo(3, "file:///a", 1, 50, 2, 100, "manifest-50.ab.json", 1, "run")
    registers = {
        "register/pipeline/sums": RegisterRecord(b"{}", 1),
        "register/pipeline/gone": RegisterRecord(None, 1),
        "register/archive/c": RegisterRecord(info.encode(), 1),
        "register/other": RegisterRecord(b"x", 1),
    }
    items = {key: StoredItem(record.encode(), 1) for key, record in registers.items()}
    log = LogRecord(3, "c", (Segment(3, Settings("copyset", 1, 2), 1),), trimmed=80)
    pipelines, archive = register_notes(items, [log])
    assert pipelines.startswith("pipeline sums: as in the copy")
    assert archive.startswith("log c: positions 51 to 80 are trimmed")
    assert "`loom archive run c`" in archive
    assert len([*register_notes(items, [replace(log, trimmed=50)])]) == 1
    assert len([*register_notes(items, [replace(log, log_id=4)])]) == 1


def test_where_a_log_ends_is_not_known_if_all_that_had_its_last_entries_may_be_older_copies() -> (
    None
):
    def reasons(outdated: Collection[int], gone: Collection[int] = ()) -> str:
        made = draft(held(), {"log/b": LogRecord(2, "b", LONE), "log/a": single})
        made.doubt_ends(dict.fromkeys(outdated, "it knows less"), gone)
        return " ".join(made.reasons)

    single = LogRecord(1, "a", (Segment(1, Settings("ordered", 1, 1), 1),))
    assert not reasons([])
    assert not reasons([], gone=[1, 2])
    assert "where log a ends" in reasons([1])
    assert "where log a, b, c ends" in reasons([1, 2])
    assert "where log a, b, c ends" in reasons([1], gone=[2])
    assert "node 2 may be: it knows less" in reasons([1, 2])
    assert "--was-away" in reasons([1, 2])


def test_a_stream_whose_replicas_cannot_be_opened_was_not_removed() -> None:
    relief = StreamRecord(6, 1, 1, (1, 2), 3, sealed=False, stamp=79, relief=True)
    found = held()
    found.unopened[6] = {2}
    made = draft(found, {"stream/6": relief})
    (reason,) = made.reasons
    assert "stream 6 of log a has a replica on node 2 that cannot be opened" in reason
    assert "stream/6" not in made.changes
    assert made.changes["counters"] == CountersRecord(3 + NUMBERS_ABOVE, 9 + NUMBERS_ABOVE)


def test_replicas_that_cannot_be_opened_may_be_the_newest() -> None:
    found = held()
    found.unopened[1] = {3}
    assert not draft(found).reasons, "an append needs two"
    found.unopened[1] = {3, 4}
    (reason,) = draft(found).reasons
    assert "stream 1 of log a has a replica on node 3, 4 that cannot be opened" in reason


def test_a_log_whose_replicas_cannot_be_opened_was_not_deleted() -> None:
    found = held()
    del found.streams[1]
    found.unopened[1] = {1, 2}
    (reason,) = draft(found, deleted="a").reasons
    assert "node 1, 2 that cannot be opened" in reason


def test_a_stream_that_is_not_known_and_cannot_be_opened_may_be_of_any_log() -> None:
    found = held()
    found.unopened[40] = {1}
    made = draft(found)
    (reason,) = made.reasons
    assert reason.startswith("stream 40 has a replica on node 1 that cannot be opened")
    assert made.changes["counters"] == CountersRecord(3 + NUMBERS_ABOVE, 40 + NUMBERS_ABOVE)


def test_chains_that_cannot_be_opened_may_be_the_newest() -> None:
    found = held()
    found.unserved.add(3)
    assert not draft(found).reasons
    found.unserved.add(2)
    (reason,) = draft(found).reasons
    assert "segment 2 (chained) of log b: chains on node 2, 3 cannot be opened" in reason
    found.unserved.discard(2)
    del found.chains[2]
    (reason,) = draft(found, deleted="b").reasons
    assert "chains on node 3 cannot be opened" in reason

"""Events in words: changes between two looks at a cluster, and what operators did."""

from __future__ import annotations

from dataclasses import replace

from loomlog.core.conditions import Condition, Kind
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.events import (
    Change,
    NodeState,
    action,
    condition_changes,
    log_changes,
    node_changes,
)
from loomlog.wire.info import LogInfo, ReplicaInfo, SegmentInfo, StreamInfo
from loomlog.wire.permissions import AUDITED

STREAM = StreamInfo(5, "running", 1, (ReplicaInfo(1, "a:1"), ReplicaInfo(2, "a:2")), 10, segment=3)
SEGMENT = SegmentInfo(3, "ordered", 1, 2, 1, None)
LOG = LogInfo(1, "orders", "ordered", 2, 1, 10, (STREAM,), segments=(SEGMENT,))
NODE = NodeState("a:1", "p1", draining=False, is_empty=False)


def test_nodes_join_restart_are_drained_and_leave() -> None:
    before = {1: NODE, 2: NODE, 3: NODE}
    drained = NODE._replace(draining=True)
    after = {1: NODE._replace(process="p2"), 2: drained, 4: NODE._replace(address="a:4")}
    assert list(node_changes(before, before)) == []
    assert set(node_changes(before, after)) == {
        Change("info", "node 1", "was restarted"),
        Change("work", "node 2", "is being drained"),
        Change("info", "node 3", "was removed"),
        Change("good", "node 4", "joined at a:4"),
    }
    empty = {2: drained._replace(is_empty=True)}
    [change] = node_changes({2: drained}, empty)
    assert change.text == "is empty: it may be stopped"


def test_epochs_seals_placements_and_switches_are_told() -> None:
    moved = replace(STREAM, epoch=2, state="sealed", replicas=STREAM.replicas[::-1])
    chained = SegmentInfo(4, "chained", 1, 2, 11, None)
    after = replace(
        LOG, head=7, streams=(moved, replace(STREAM, id=6)), segments=(SEGMENT, chained)
    )
    assert [change.text for change in log_changes(LOG, after)] == [
        "switched to chained, from position 11 on",
        "stream 5 began epoch 2",
        "stream 5 is sealed",
        "nodes of stream 5: 2 (primary), 1",
        "got stream 6",
    ]
    assert next(log_changes(after, LOG)).text == "stream 6 was removed"
    assert list(log_changes(LOG, replace(LOG, head=9, tail=99))) == []
    [created] = log_changes(None, LOG)
    assert created == Change("good", "log orders", "was created: ordered, 2 replicas", "orders")


def test_conditions_begin_and_end() -> None:
    away = Condition(Kind.NODE_AWAY, "is away", "start it", node=2)
    short = Condition(Kind.UNDER_REPLICATED, "has 2 of 3 copies", log="orders")
    assert list(condition_changes([away, short], [replace(short, text="1 of 3"), away])) == []
    assert list(condition_changes([], [away, short])) == [
        Change(away.severity, "node 2", "is away"),
        Change(short.severity, "log orders", "has 2 of 3 copies", "orders"),
    ]
    assert [change.text for change in condition_changes([away, short], [])] == [
        "is back",
        "no longer lacks copies",
    ]


def test_every_audited_request_is_an_action_in_the_words_of_the_command() -> None:
    for kind in AUDITED:
        assert action(kind, pb.Frame(), "ops", "") is not None
    frame = pb.Frame(
        change_node=pb.ChangeNode(action=pb.ChangeNode.MARK_UNRECOVERABLE, storage_node_id=3)
    )
    assert action("change_node", frame, "ops", "") == Change(
        "action", "ops", "node mark-unrecoverable 3"
    )
    for kind in ("change_stream", "change_node", "change_metadata"):
        frame = pb.Frame()
        getattr(frame, kind).action = 99  # a number without a name, as anybody may send
        assert "action 99" in getattr(action(kind, frame, "ops", ""), "text", "")
    scrub = pb.ChangeStream(action=pb.ChangeStream.SCRUB, log="orders", tell_only=True)
    assert action("change_stream", pb.Frame(change_stream=scrub), "ops", "") is None
    scrub.tell_only = False
    told = action("change_stream", pb.Frame(change_stream=scrub), "ops", " failed: no")
    assert told == Change("action", "ops", "stream scrub of log orders failed: no", "orders")
    assert action("get_status", pb.Frame(), "ops", "") is None


def test_a_long_action_still_tells_that_it_failed() -> None:
    frame = pb.Frame(create_log=pb.CreateLog(name="a" * 1000))
    done = action("create_log", frame, "ann", " failed: too long")
    assert done is not None
    assert done.text.startswith("log create aaa")
    assert done.text.endswith("a… failed: too long")
    assert len(done.text) < 300

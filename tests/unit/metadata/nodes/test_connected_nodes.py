"""The nodes that count as alive, and the parties that are notified when that changes."""

from __future__ import annotations

import asyncio

import pytest
from scripted_node import Peer

from loomlog.core.conditions import Condition, Kind
from loomlog.core.presence import ASK_S, QUIET_S
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.conditions import condition_to_wire
from loomlog.wire.link import Connection


def connection() -> Connection:
    return Connection(Codec("vmr"), Peer())


class Story:
    """ConnectedNodes with its calls; silence is simulated by setting back the time of a node."""

    def __init__(self) -> None:
        self.told: list[tuple[int, bool]] = []
        self.members = ConnectedNodes(10.0, lambda node, alive: self.told.append((node, alive)))

    def silence(self, node: int, seconds: float) -> None:
        member = self.members.get(node)
        assert member is not None
        member.presence.heard_at -= seconds


async def test_a_known_node_has_the_detection_time_to_come_back_after_a_start() -> None:
    story = Story()
    story.members.start([1])
    assert story.members.alive(1)
    assert not story.members.connected(1)
    story.silence(1, 9.0)
    assert story.members.alive(1)
    story.silence(1, 2.0)
    assert not story.members.alive(1)
    story.members.stop()


async def test_a_lost_connection_has_a_short_grace() -> None:
    story = Story()
    link = connection()
    story.members.joined(1, link)
    story.members.lost(link)
    assert story.members.alive(1)
    assert story.members.all_reachable() == []
    story.silence(1, 1.1)
    assert not story.members.alive(1)
    story.members.stop()


async def test_a_node_that_ended_is_missed_at_once_and_given_up_after_the_grace() -> None:
    story = Story()
    link = connection()
    story.members.joined(1, link)
    known = story.members.lost(link)
    assert known is not None
    assert story.members.may_come_back(known)
    story.members.refused(known)
    assert not story.members.alive(1)
    assert not story.members.silent(1)
    story.silence(1, 1.1)
    story.members._grace_over(1)
    assert story.members.silent(1)
    assert not story.members.may_come_back(known)
    assert story.told == [(1, True), (1, False), (1, False)]
    story.members.stop()


async def test_a_node_that_ended_and_registers_again_is_alive_and_told_so() -> None:
    story = Story()
    link = connection()
    story.members.joined(1, link)
    known = story.members.lost(link)
    assert known is not None
    story.members.refused(known)
    story.members.joined(1, connection())
    assert story.members.alive(1)
    assert not story.members.may_come_back(known)  # a late answer of its old address means nothing
    assert story.told == [(1, True), (1, False), (1, True)]
    story.members.stop()


async def test_silence_is_told_once_and_so_is_the_return() -> None:
    story = Story()
    story.members.joined(1, connection())
    story.silence(1, 11.0)
    story.members._check_all()
    story.members._check_all()
    story.members.heard(1)
    story.members.heard(1)
    assert story.told == [(1, True), (1, False), (1, True)]
    story.members.stop()


async def test_a_return_is_told_even_if_the_silence_was_not_noticed_yet() -> None:
    """Whoever asked in between took the node for dead and waits for news."""
    story = Story()
    story.members.joined(1, connection())
    story.silence(1, 11.0)
    assert not story.members.alive(1)
    story.members.heard(1)
    assert story.told == [(1, True), (1, True)]
    story.members.stop()


async def test_a_replaced_connection_speaks_for_nobody() -> None:
    story = Story()
    old, new = connection(), connection()
    story.members.joined(1, old)
    story.members.joined(1, new)
    assert old.closed
    assert story.members.node_of(old) is None
    assert story.members.node_of(new) == 1
    story.members.lost(old)
    assert story.members.connected(1)
    story.members.stop()


async def test_our_own_sleep_is_not_the_nodes_silence() -> None:
    """A frozen process wakes up to old clocks and unread reports: nobody is dead for that."""
    story = Story()
    story.members.start([])
    story.members.joined(1, connection())
    story.silence(1, 60.0)
    story.members._due -= 60.0  # the check should have come a minute ago
    assert story.members.alive(1)
    story.members._check_all()
    assert story.told == [(1, True)]
    story.silence(1, 11.0)  # a real silence afterwards
    story.members._check_all()
    assert story.told == [(1, True), (1, False)]
    story.members.stop()


async def test_why_a_node_takes_nothing_names_its_disks_and_the_stream_in_question() -> None:
    story = Story()
    story.members.joined(1, connection())
    full = Condition(Kind.VOLUME_FULL, "volume /a failed", "free space", volume="/a")
    damaged = Condition(Kind.DATA_DAMAGED, "stream 7 is damaged", stream=7)
    aside = Condition(Kind.DATA_LEFT_OVER, "/a/logs.damaged was set aside", volume="/a")
    listed = [condition_to_wire(each) for each in (aside, full, damaged)]
    story.members.take_conditions(1, pb.NodeConditions(conditions=listed, takes_nothing=True))
    assert story.members.complaints(1) == "volume /a failed: free space"
    assert story.members.complaints(1, 7) == "volume /a failed: free space; stream 7 is damaged"
    assert story.members.complaints(2) == ""
    story.members.stop()


async def test_nodes_that_are_heard_of_are_checked_seldom() -> None:
    story = Story()
    story.members.start([])
    story.members.joined(1, connection())
    story.members._check_all()
    assert due_s(story.members) == pytest.approx(ASK_S, abs=0.1)
    story.silence(1, ASK_S)
    story.members._check_all()  # asks
    assert due_s(story.members) == pytest.approx(QUIET_S / 12, abs=0.05)
    story.members.heard(1)
    story.members._check_all()
    assert due_s(story.members) == pytest.approx(ASK_S, abs=0.1)
    story.members.stop()


def due_s(members: ConnectedNodes) -> float:
    """Return in how many seconds nodes are checked again."""
    assert members._timer is not None
    return members._timer.when() - asyncio.get_running_loop().time()

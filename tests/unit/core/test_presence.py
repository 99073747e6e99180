"""When a node is missed, and when it is given up."""

from __future__ import annotations

from loomlog.core.presence import Presence, Standing

DETECTION_S, GRACE_S = 3.0, 1.0


def test_a_node_that_is_heard_of_is_here() -> None:
    node = Presence(10.0, DETECTION_S)
    assert node.standing(12.9) is Standing.HERE
    assert node.standing(13.0) is Standing.SILENT
    node.heard(13.0)
    assert node.standing(15.9) is Standing.HERE


def test_a_lost_connection_alone_is_waited_for() -> None:
    node = Presence(10.0, DETECTION_S)
    node.disconnected(12.0, GRACE_S)
    assert node.standing(12.9) is Standing.HERE
    assert node.standing(13.0) is Standing.SILENT


def test_a_node_whose_address_refuses_is_missed_at_once_and_silent_no_sooner() -> None:
    node = Presence(10.0, DETECTION_S)
    node.disconnected(12.0, GRACE_S)
    node.refused()
    assert node.standing(12.0) is Standing.MISSED
    assert node.standing(12.9) is Standing.MISSED
    assert node.standing(13.0) is Standing.SILENT

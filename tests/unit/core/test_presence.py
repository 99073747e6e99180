"""The rules by which a node is missed, and is given up."""

from __future__ import annotations

from math import inf

from loomlog.core.presence import ANSWER_S, ASK_S, QUIET_S, TRUST_S, Presence, Standing

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
    node.process_ends()
    assert node.standing(12.0) is Standing.MISSED
    assert node.standing(12.9) is Standing.MISSED
    assert node.standing(13.0) is Standing.SILENT


def quiet() -> Presence:
    """Return a connected node that was heard at 0 and asked in time."""
    node = Presence(0.0, DETECTION_S, connected=True)
    assert not node.ask(ASK_S - 0.01)
    assert node.ask(ASK_S)
    assert not node.ask(ASK_S + 0.1)  # once
    return node


def test_a_node_that_does_not_answer_is_missed_before_it_is_silent() -> None:
    node = quiet()
    assert node.standing(QUIET_S - 0.01) is Standing.HERE
    assert node.standing(QUIET_S) is Standing.MISSED
    assert node.standing(DETECTION_S) is Standing.SILENT


def test_a_node_is_not_missed_before_it_had_time_to_answer() -> None:
    node = Presence(10.0, DETECTION_S, connected=True)
    late = 10.0 + QUIET_S  # the metadata repository was busy
    assert node.standing(late) is Standing.HERE
    assert node.ask(late)
    assert node.standing(late + ANSWER_S - 0.01) is Standing.HERE
    assert node.standing(late + ANSWER_S + 0.01) is Standing.MISSED


def test_a_slow_node_is_missed_once_and_then_trusted_for_a_while() -> None:
    node = quiet()
    back = QUIET_S + 0.1
    node.heard(back)
    assert node.standing(back) is Standing.HERE
    node.ask(back + ASK_S)
    assert node.standing(back + QUIET_S) is Standing.HERE
    assert node.standing(back + DETECTION_S + 0.01) is Standing.SILENT
    node.heard(back + ASK_S)
    node.heard(back + TRUST_S)
    node.ask(back + TRUST_S + ASK_S)
    assert node.standing(back + TRUST_S + QUIET_S + 0.01) is Standing.MISSED


def test_an_answer_in_time_says_nothing_about_trust() -> None:
    node = quiet()
    node.heard(1.0)
    assert node.ask(1.0 + ASK_S)
    assert node.standing(1.0 + QUIET_S + 0.01) is Standing.MISSED


def test_only_a_connected_node_is_asked() -> None:
    node = Presence(10.0, DETECTION_S)
    assert not node.ask(12.0)
    assert node.standing(12.0) is Standing.HERE


def test_a_node_that_says_that_it_stops_is_missed_while_it_is_there() -> None:
    node = Presence(0.0, DETECTION_S, connected=True)
    node.process_ends()
    node.heard(1.0)
    assert node.standing(1.0) is Standing.MISSED


def test_a_node_is_looked_at_when_it_has_to_be_asked() -> None:
    node = Presence(10.0, DETECTION_S, connected=True)
    assert node.look_at(10.1) == 10.0 + ASK_S
    node.heard(10.5)
    assert node.look_at(10.6) == 10.5 + ASK_S


def test_a_node_whose_silence_counts_is_looked_at_all_the_time() -> None:
    asked = quiet()
    assert asked.look_at(ASK_S + 0.1) == -inf
    away = Presence(10.0, DETECTION_S)
    assert away.look_at(12.9) == -inf
    assert away.look_at(13.0) == inf  # it does not become more silent

"""Conditions that many streams share are shown once, and nothing else is put together."""

from __future__ import annotations

from loomlog.wire.condition_groups import group_conditions
from loomlog.wire.conditions import ConditionInfo


def waits(log: str, stream: int, text: str = "sealed: waiting for node 4") -> ConditionInfo:
    return ConditionInfo("appends-wait", "warning", text, "start it", log=log, stream=stream)


AWAY = ConditionInfo("node-away", "warning", "is away", "start its vsn", node=4)
FEWER = ConditionInfo("copies", "warning", "up to 7 entries", log="a", records=7, bytes=9)


def subjects(*conditions: ConditionInfo) -> list[str]:
    return [group.subject for group in group_conditions(conditions)]


def test_streams_that_wait_for_the_same_are_one_group() -> None:
    assert subjects(waits("a", 1)) == ["log a, stream 1"]
    assert subjects(waits("a", 1), waits("a", 5)) == ["log a, streams 1, 5"]
    many = [waits(f"log-{n % 9}", n) for n in range(1, 101)]
    [group] = group_conditions(many)
    names = ", ".join(f"log-{n}" for n in range(1, 7))
    assert (group.subject, group.count) == (f"100 streams of logs {names} and 3 more", 100)
    assert group.condition.help == "start it"
    assert subjects(*(waits("a", n) for n in range(1, 10))) == [
        "log a, streams 1, 2, 3, 4, 5, 6 and 3 more"
    ]


def test_other_conditions_stay_as_they_are_and_in_their_order() -> None:
    other = waits("a", 2, "sealed by an operator")
    found = subjects(AWAY, FEWER, waits("a", 1), other, waits("b", 3))
    assert found == ["node 4", "log a", "2 streams of logs a, b", "log a, stream 2"]
    assert [group.condition.bytes for group in group_conditions([FEWER, AWAY])] == [9, None]
    assert group_conditions([]) == []

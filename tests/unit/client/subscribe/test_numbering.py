"""The parts of a log that a reader passes, and their streams."""

from __future__ import annotations

import pytest

from loomlog.client.loglets.ordered.loglet import OrderedLoglet
from loomlog.client.subscribe.numbering import ByPosition, InStream
from loomlog.errors import NotFound
from loomlog.wire import loomlog_pb2 as pb


class Traits:
    """Traits as the registry has them."""

    def joins_neighbours(self, protocol: str) -> bool:
        return OrderedLoglet.joins_neighbours if protocol == "ordered" else False

    def counts_llsns(self, protocol: str) -> bool:
        return OrderedLoglet.counts_llsns if protocol == "ordered" else False


TRAITS = Traits()


def log(*segments: tuple[str, int, int | None], next_protocol: str = "") -> pb.Log:
    """Segment n has loglet n and stream 10 n; `next_protocol`: of one that is being made."""
    found = pb.Log(name="events", head=1, tail=1000)
    for number, (protocol, start, end) in enumerate(segments, 1):
        found.segments.add(loglet_id=number, protocol=protocol, start=start, end=end)
        found.streams.add(log_stream_id=10 * number, loglet_id=number, protocol=protocol)
    if next_protocol:
        number = len(segments) + 1
        found.streams.add(log_stream_id=10 * number, loglet_id=number, protocol=next_protocol)
    return found


def run(described: pb.Log, number: int) -> tuple[str, list[int], int | None]:
    found = ByPosition(TRAITS).run(described, number)
    return found.protocol, [stream.log_stream_id for stream in found.streams], found.last


MIXED = log(
    ("ordered", 1, 10),
    ("ordered", 11, 20),
    ("chained", 21, 30),
    ("chained", 31, 40),
    ("ordered", 41, None),
)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, ("ordered", [10, 20], 20)),
        (11, ("ordered", [20], 20)),
        (21, ("chained", [30], 30)),
        (30, ("chained", [30], 30)),
        (31, ("chained", [40], 40)),
        (41, ("ordered", [50], None)),
        (5000, ("ordered", [50], None)),
    ],
)
def test_neighbours_are_one_run_if_their_protocol_joins_them(
    number: int, expected: tuple[str, list[int], int | None]
) -> None:
    assert run(MIXED, number) == expected


def test_an_empty_segment_is_passed_over() -> None:
    described = log(("ordered", 1, 10), ("chained", 11, 10), ("ordered", 11, None))
    assert run(described, 10) == ("ordered", [10], 10)
    assert run(described, 11) == ("ordered", [30], None)


def test_streams_of_what_is_to_follow_are_known_early_where_they_are_joined() -> None:
    ordered = log(("ordered", 1, None), next_protocol="ordered")
    assert run(ordered, 1) == ("ordered", [10, 20], None)
    other = log(("ordered", 1, None), next_protocol="chained")
    assert run(other, 1) == ("ordered", [10], None)
    chained = log(("chained", 1, None), next_protocol="chained")
    assert run(chained, 1) == ("chained", [10], None)


def test_a_stream_by_itself_has_no_end() -> None:
    found = InStream(30, TRAITS).run(MIXED, 25)
    assert (found.protocol, found.last) == ("chained", None)
    assert InStream(30, TRAITS).bounds(MIXED) == (1, 1000)
    with pytest.raises(NotFound):
        InStream(99, TRAITS).run(MIXED, 1)

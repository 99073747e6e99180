"""Arguments as users give them: times, durations, sizes, names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from loomlog.client.arguments import duration_s, retention_bytes, retention_s, timestamp_us
from loomlog.client.cluster import parse_addresses
from loomlog.client.groups.group import GroupOptions
from loomlog.client.queues.queue import QueueOptions
from loomlog.errors import InvalidArgument
from loomlog.limits import RETENTION_S_MAX
from loomlog.net.address import split_address


@pytest.mark.parametrize(
    ("moment", "expected_us"),
    [
        (0, 0),
        (1.5, 1_500_000),
        (-2, -2_000_000),
        (datetime(1970, 1, 1, 0, 0, 1, 7, tzinfo=UTC), 1_000_007),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
    ],
)
def test_times(moment: datetime | float, expected_us: int) -> None:
    assert timestamp_us(moment) == expected_us


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), "now", None, True, float("nan"), 1e13])
def test_what_is_no_time(moment: object) -> None:
    with pytest.raises(InvalidArgument):
        timestamp_us(moment)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("retention", "expected_s"),
    [(None, 0), ("7d", 604_800), ("1.5h", 5400), (60, 60), (1.2, 2), (RETENTION_S_MAX, 3162240000)],
)
def test_retentions(retention: str | float | None, expected_s: int) -> None:
    assert retention_s(retention) == expected_s


@pytest.mark.parametrize("retention", ["7", "d", "7y", "", "-1d", "0s", 0, -1, True, float("inf")])
def test_what_is_no_retention(retention: str | float) -> None:
    with pytest.raises(InvalidArgument):
        retention_s(retention)


def test_durations() -> None:
    assert [duration_s(text) for text in ("2s", "2m", "2h", "2d", "2w", " 3s ")] == [
        *(2.0, 120.0, 7200.0, 172_800.0, 1_209_600.0, 3.0)
    ]


def test_sizes_that_are_retained() -> None:
    wanted = (None, "10G", "1.5M", "2GiB", 1 << 20)
    found = [retention_bytes(each) for each in wanted]
    assert found == [0, 10 << 30, 3 << 19, 2 << 30, 1 << 20]


@pytest.mark.parametrize(
    "size", ["10", "", "-1G", "1P", "lots", "9" * 400 + "G", 0, -1, 1.5e6, True, 1 << 61]
)
def test_sizes_that_cannot_be_retained(size: str | int) -> None:
    with pytest.raises(InvalidArgument, match="1 MiB to 1 EiB"):
        retention_bytes(size)


@pytest.mark.parametrize("name", ["", 7, "x" * 101])
def test_what_is_no_name_of_a_member(name: str) -> None:
    for options in (GroupOptions, QueueOptions):
        with pytest.raises(InvalidArgument, match="member must be a text of 1 to 100 printable"):
            options(member=name)


@pytest.mark.parametrize("addresses", [7400, None, [7400], b"127.0.0.1:7400"])
def test_what_are_no_addresses(addresses: str) -> None:
    with pytest.raises(
        InvalidArgument, match=r"addresses must be strings such as 127\.0\.0\.1:7400"
    ):
        parse_addresses(addresses)


def test_an_address_with_a_huge_port_is_none() -> None:
    with pytest.raises(InvalidArgument, match=r"is not host:port"):
        split_address("localhost:" + "9" * 5000)

"""Lines become values, and values become lines of text."""

from __future__ import annotations

import json
import os
import tempfile

import pytest

from loomlog import limits
from loomlog.cli.commands.append import batches, lines_as_they_come
from loomlog.cli.console.entry_input import split_key
from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import parse_moment
from loomlog.cli.console.output import age, duration, size, visible
from loomlog.console.entries import entry_fields
from loomlog.errors import InvalidArgument
from loomlog.types import Entry


async def read_all(data: bytes) -> list[bytes]:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    lines = [line async for some in lines_as_they_come(reading) for line in some]
    os.close(reading)
    return lines


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"dos\r\nline\r\n", [b"dos", b"line"]),
        (b"\n", [b""]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
async def test_lines_of_a_pipe(data: bytes, lines: list[bytes]) -> None:
    assert await read_all(data) == lines


async def test_a_line_is_whole_however_it_arrives() -> None:
    reading, writing = os.pipe()
    arriving = lines_as_they_come(reading)
    os.write(writing, b"one\ntw")
    assert await anext(arriving) == [b"one"]
    os.write(writing, b"o\nthree\nfo")
    assert await anext(arriving) == [b"two", b"three"]
    os.close(writing)
    assert await anext(arriving) == [b"fo"]
    os.close(reading)


async def test_lines_of_a_file() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 300_000 + b"\nend")
        file.seek(0)
        lines = [line async for some in lines_as_they_come(file.fileno()) for line in some]
    assert [len(line) for line in lines] == [300_000, 3]


def test_batches_are_bounded_by_count_and_bytes_and_keep_the_order() -> None:
    small = [b"%d" % n for n in range(10)]
    assert [len(batch) for batch in batches(small, 4)] == [4, 4, 2]
    assert [line for batch in batches(small, 4) for line in batch] == small
    big = [b"x" * limits.APPEND_BATCH_BYTES, b"y", b"z"]
    assert [len(batch) for batch in batches(big, 100)] == [1, 2]


def test_a_line_without_a_key_is_named() -> None:
    assert split_key(b"user-1=a=b", b"=", 1) == (b"user-1", b"a=b")
    with pytest.raises(InvalidArgument, match="line 7 has no key"):
        split_key(b"no separator", b"=", 7)


def test_values_are_one_line_and_cannot_steer_the_terminal() -> None:
    assert visible("grüße\tdu".encode()) == "grüße\tdu"
    assert visible(b"a\nb\x1b[2J\xff") == "a\\nb\\x1b[2J\\xff"


def test_an_entry_as_json_says_when_bytes_are_not_text() -> None:
    fields = entry_fields(Entry(7, 1, 3, 1_000_000, b"key", b"\xff\x00"))
    assert json.loads(json.dumps(fields)) == {
        "position": 7,
        "stream": 1,
        "llsn": 3,
        "timestamp": "1970-01-01T00:00:01+00:00",
        "key": "key",
        "value_base64": "/wA=",
    }


def test_sizes_and_durations_as_people_read_them() -> None:
    assert [size(n) for n in (0, 1536, 5 << 30)] == ["0 B", "1.5 KiB", "5.0 GiB"]
    assert [duration(s) for s in (0.25, 93, 7300)] == ["0.2 s", "1 m 33 s", "2 h 1 m"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-11-16T03:00", "2026-11-16T03:00:00+00:00"),
        ("2026-11-16T03:00:01.5+01:00", "2026-11-16T03:00:01.500000+01:00"),
        ("2026-11-16", "2026-11-16T00:00:00+00:00"),
        ("2026-11-16T03:00Z", "2026-11-16T03:00:00+00:00"),
    ],
)
def test_a_time_is_in_utc_unless_it_says_so(text: str, found: str) -> None:
    assert parse_moment(text).isoformat() == found


def test_what_is_no_time_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="2026-11-16T03:00"):
        parse_moment("noon")
    with pytest.raises(UsageError, match="before the first year"):
        parse_moment("9999999d")
    with pytest.raises(UsageError, match="not a duration"):
        parse_moment("-1h")


@pytest.mark.parametrize(
    ("seconds", "text"), [(7 * 86_400, "7d"), (5400, "90m"), (7200, "2h"), (61, "61s")]
)
def test_how_long_entries_stay(seconds: int, text: str) -> None:
    assert age(seconds) == text

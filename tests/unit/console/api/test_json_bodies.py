"""JSON of requests: what would take much more memory than its text is not even parsed."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest
from starlette.requests import Request

from loomlog.console import route
from loomlog.console.api.records import APPEND_BODY_BYTES, ROUTES
from loomlog.console.failures import TooLarge
from loomlog.errors import InvalidArgument

APPEND = next(each for each in ROUTES if each.method == "POST")
PARTS_MAX = 10_000
PART_BYTES_MAX = 100  # in memory


@pytest.fixture(autouse=True)
def fewer_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "JSON_PARTS_MAX", PARTS_MAX)


def parsed(body: bytes) -> dict[str, Any]:
    scope = {
        "type": "http",
        "method": "POST",
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
        "path_params": {"log": "events"},
    }
    return route.checked_values(APPEND, Request(scope), body)


@pytest.mark.parametrize(
    ("begin", "part", "end", "parts"),
    [
        (b'{"records": [', b"[],", b"[]]}", 2),
        (b'{"records": [', b"{},", b"{}]}", 2),
        (b'{"records": [{"value": [', b"1000,", b"1]}]}", 1),
        (b'{"records": [', b'"a",', b'"a"]}', 2),
        (b'{"records": [', b'{"value":""},', b"{}]}", 4),
    ],
)
def test_parts_take_bounded_memory_or_are_refused(
    begin: bytes, part: bytes, end: bytes, parts: int
) -> None:
    with pytest.raises(TooLarge, match="more than 10,000 parts"):
        parsed(begin + part * (PARTS_MAX // parts) + end)
    body = begin + part * (PARTS_MAX // parts - 10) + end
    tracemalloc.start()
    try:
        assert parsed(body)["records"]
        assert tracemalloc.get_traced_memory()[1] < PARTS_MAX * PART_BYTES_MAX + 2 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body", [b'{"records": ' + b"[" * PARTS_MAX, b'{"records": ' + b'"' * 20_002]
)
def test_nonsense_with_many_parts_is_refused(body: bytes) -> None:
    with pytest.raises(TooLarge):
        parsed(body)


@pytest.mark.parametrize("part", [b",[{", b'\\",'])
def test_signs_in_a_text_are_no_parts(part: bytes) -> None:
    text = part * PARTS_MAX
    found = parsed(b'{"records": [{"value": "' + text + b'"}]}')
    assert found["records"] == [{"value": text.replace(b"\\", b"").decode()}]


@pytest.mark.parametrize("part", [b'\\",', b'\\"'])
def test_a_text_that_does_not_end_is_looked_at_once(part: bytes) -> None:
    begun_s = time.process_time()
    with pytest.raises(InvalidArgument, match="not JSON"):
        parsed(b'{"records": "' + part * (APPEND_BODY_BYTES // 4))
    assert time.process_time() - begun_s < 60, "millions of looks take hours"

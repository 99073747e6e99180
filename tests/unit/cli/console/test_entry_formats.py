"""Entries as `loom append` reads them and `loom tail` shows them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from loomlog.cli.console import entry_format
from loomlog.cli.console.entry_input import parser
from loomlog.cli.console.failures import UsageError
from loomlog.console.entries import Record, as_arrow
from loomlog.errors import InvalidArgument
from loomlog.types import Entry

AT = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
ENTRY = Entry(7, 2, 5, int(AT.timestamp() * 1e6), b"user", b"\xffhi")


@pytest.mark.parametrize(
    ("form", "line", "record"),
    [
        ("text", b"hi", Record(b"hi")),
        ("base64", b"/2hp", Record(b"\xffhi")),
        ("json", b'{"value": "hi"}', Record(b"hi")),
        ("json", b'{"value_base64": "/2hp", "key": "user"}', Record(b"\xffhi", b"user")),
        ("json", b'{"value": "", "key": null}', Record(b"")),
        ("json", b'{"value": {"n": 1}, "key": 7}', Record(b'{"n":1}', b"7")),
        ("json", b'{"value": "hi", "timestamp": "2026-11-16T03:00:00"}', Record(b"hi", None, AT)),
        (
            "json",
            b'{"value": "hi", "timestamp": "2026-11-16T03:00:00Z"}',
            Record(b"hi", None, AT),
        ),
        (
            "json",
            b'{"value": "hi", "headers": {"trace": "7"}}',
            Record(b"hi", headers={"trace": b"7"}),
        ),
        (
            "json",
            b'{"value": "hi", "headers": {"raw": {"base64": "/wA="}}}',
            Record(b"hi", headers={"raw": b"\xff\0"}),
        ),
    ],
)
def test_a_line_is_parsed(form: str, line: bytes, record: Record) -> None:
    assert parser(form, None)(line, 1) == record


def test_a_key_has_the_form_of_its_value() -> None:
    assert parser("text", b"=")(b"a=1=2", 1) == Record(b"1=2", b"a")
    assert parser("base64", b":")(b"YQ==:/2hp", 1) == Record(b"\xffhi", b"a")


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("base64", b"no!"),
        ("json", b"not json"),
        ("json", b"[]"),
        ("json", b"[" * 100_000),
        ("json", b'{"value": NaN}'),
        ("json", b'{"value": {"n": -1e999}}'),
        ("json", b'{"key": "without a value"}'),
        ("json", b'{"value": "hi", "value_base64": "aGk="}'),
        ("json", b'{"value": "hi", "colour": "red"}'),
        ("json", b'{"value": "hi", "headers": ["trace"]}'),
        ("json", b'{"value": "hi", "headers": {"trace": 7}}'),
        ("json", b'{"value": "hi", "headers": {"trace": {"base64": "no!"}}}'),
        ("json", b'{"value": "hi", "timestamp": 5}'),
        ("json", b"\xff"),
    ],
)
def test_a_line_of_another_form_is_named(form: str, line: bytes) -> None:
    with pytest.raises(InvalidArgument, match="line 3"):
        parser(form, None)(line, 3)


def test_what_is_shown_as_json_can_be_appended() -> None:
    record = parser("json", None)(entry_format.as_json(ENTRY), 1)
    assert record == Record(ENTRY.value, ENTRY.key, AT)
    headers = {"text": "grüße".encode(), "raw": b"\xff\0"}
    again = parser("json", None)(entry_format.as_json(ENTRY._replace(headers=headers)), 1)
    assert again == record._replace(headers=headers)
    (row,) = as_arrow([record]).to_pylist()
    assert row == {"value": ENTRY.value, "key": ENTRY.key, "timestamp": AT}


@pytest.mark.parametrize(
    ("template", "raw", "line"),
    [
        ("{value}", False, b"\\xffhi"),
        ("{value}", True, b"\xffhi"),
        (r"{position}\t{stream} {{{key}}}", False, b"7\t2 {user}"),
        ("{time}", False, b"2026-11-16T03:00:00.000+00:00"),
    ],
)
def test_a_template_is_filled_in(template: str, raw: bool, line: bytes) -> None:
    assert entry_format.as_template(template, raw=raw)(ENTRY) == line


@pytest.mark.parametrize("template", ["{offset}", "{", "{value", "{}", "}", "{key:5}", "json", ""])
def test_a_wrong_template_is_refused_with_the_fields_there_are(template: str) -> None:
    with pytest.raises(UsageError, match=r"\{position\}, \{time\}"):
        entry_format.as_template(template, raw=False)


def test_a_key_is_shown_before_its_value() -> None:
    assert entry_format.as_text(positions=False, raw=False)(ENTRY) == b"user\t\\xffhi"
    without = ENTRY._replace(key=None)
    assert entry_format.as_text(positions=True, raw=True)(without) == b"7\t\xffhi"

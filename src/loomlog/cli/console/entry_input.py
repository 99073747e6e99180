"""Reads entries as `loom append` takes them: one a line, as text, base64 or JSON."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from loomlog.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS: Final = ("text", "base64", "json")
_JSON_FIELDS: Final = {"value", "value_base64", "key", "key_base64", "timestamp"}
_SHOWN_FIELDS: Final = {"position", "stream", "llsn"}  # of `loom tail --json`; they get new values


class Record(NamedTuple):
    """An entry before it is appended. Without `timestamp`, it gets the time of its append."""

    value: bytes
    key: bytes | None = None
    timestamp: datetime | None = None


Parse = Callable[[bytes, int], Record]  # a line and its number


def parser(form: str, key_separator: bytes | None) -> Parse:
    """Return the function that parses a line of this form."""
    parse = {"text": _text, "base64": _base64, "json": _json}[form]
    if key_separator is None:
        return parse

    def parse_with_key(line: bytes, number: int) -> Record:
        key, value = split_key(line, key_separator, number)
        return parse(value, number)._replace(key=parse(key, number).value)

    return parse_with_key


def split_key(line: bytes, separator: bytes, number: int) -> tuple[bytes, bytes]:
    """Split a line into key and value."""
    key, found, value = line.partition(separator)
    if not found:
        shown = separator.decode(errors="backslashreplace")
        raise InvalidArgument(f"line {number} has no key: there is no {shown!r} in it")
    return key, value


def _text(line: bytes, number: int) -> Record:
    return Record(line)


def _base64(line: bytes, number: int) -> Record:
    try:
        return Record(b64decode(line, validate=True))
    except binascii.Error:
        raise InvalidArgument(f"line {number} is not base64") from None


def _json(line: bytes, number: int) -> Record:
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict) or not fields.keys() <= _JSON_FIELDS | _SHOWN_FIELDS:
            raise ValueError
        value = _bytes(fields, "value")
        if value is None:
            raise ValueError
        at = fields.get("timestamp")
        return Record(value, _bytes(fields, "key"), None if at is None else _moment(at))
    except (ValueError, TypeError, AttributeError):
        raise InvalidArgument(
            f"line {number} is not an entry: write a JSON object with value or value_base64, and "
            "optionally key or key_base64, and timestamp, as `loom tail --json` shows it"
        ) from None


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    text, encoded = fields.get(name), fields.get(f"{name}_base64")
    if text is not None and encoded is not None:
        raise ValueError
    if encoded is not None:
        return b64decode(encoded, validate=True)
    return None if text is None else text.encode()


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError
    return moment


def as_arrow(records: Sequence[Record]) -> pa.RecordBatch:
    """Return records with timestamps as columns; those without get the present time."""
    import pyarrow as pa

    now = datetime.now().astimezone()
    columns = {
        "value": pa.array([record.value for record in records], pa.binary()),
        "key": pa.array([record.key for record in records], pa.binary()),
        "timestamp": pa.array(
            [record.timestamp or now for record in records], pa.timestamp("us", tz="UTC")
        ),
    }
    return pa.RecordBatch.from_pydict(columns)

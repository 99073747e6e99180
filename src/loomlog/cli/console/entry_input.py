"""Reads entries as `loom append` takes them: one a line, as text, base64 or JSON."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from loomlog.console.entries import Record
from loomlog.errors import InvalidArgument

FORMATS: Final = ("text", "base64", "json")
_JSON_FIELDS: Final = {"value", "value_base64", "key", "key_base64", "timestamp"}
_SHOWN_FIELDS: Final = {"position", "stream", "llsn"}  # of `loom tail --json`; they get new values

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

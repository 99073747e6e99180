"""Entries as JSON, in both directions."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from loomlog.errors import InvalidArgument
from loomlog.types import Entry, Glsn, Position

if TYPE_CHECKING:
    import pyarrow as pa

    from loomlog.client.log import Log

_FIELDS: Final = {"value", "value_base64", "key", "key_base64", "timestamp", "headers"}


class Record(NamedTuple):
    """An entry before it is appended. Without `timestamp`, it gets the time of its append."""

    value: bytes
    key: bytes | None = None
    timestamp: datetime | None = None
    headers: Mapping[str, bytes] | None = None


def entry_fields(entry: Entry) -> dict[str, Any]:
    """Return an entry for JSON; bytes that are not UTF-8 are in `value_base64`, `key_base64`, and
    in headers `{"base64": …}`."""
    fields: dict[str, Any] = {
        "position": entry.position,
        "stream": entry.stream,
        "llsn": entry.llsn,
        "timestamp": entry.timestamp.isoformat(),
    }
    if entry.key is not None:
        fields |= bytes_field("key", entry.key)
    if entry.headers:
        fields["headers"] = {name: _header(value) for name, value in entry.headers.items()}
    return fields | bytes_field("value", entry.value)


def _header(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def shown_headers(entry: Entry) -> dict[str, str]:
    """Return headers for people; what is not UTF-8 or cannot be printed is escaped."""
    texts = {
        name: value.decode("utf-8", "backslashreplace") for name, value in entry.headers.items()
    }
    return {
        name: "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
        for name, text in texts.items()
    }


def bytes_field(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def parse_record(fields: object, name: str) -> Record:
    """Return the record that a JSON object describes; messages use the name."""
    if not isinstance(fields, dict) or not fields.keys() <= _FIELDS:
        allowed = ", ".join(sorted(_FIELDS))
        raise InvalidArgument(f"{name} must be an object with some of {allowed}")
    value = _bytes(name, fields, "value")
    if value is None:
        raise InvalidArgument(f"{name} has no value: give value or value_base64")
    key = _bytes(name, fields, "key")
    moment = fields.get("timestamp")
    headers = _headers(name, fields.get("headers"))
    return Record(value, key, None if moment is None else _moment(name, moment), headers)


def _headers(record: str, fields: object) -> dict[str, bytes] | None:
    """Return headers: each is a text, or {"base64": …}."""
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise InvalidArgument(f"{record}.headers must be an object of names and texts")
    found: dict[str, bytes] = {}
    for header, value in fields.items():
        name = f"{record}.headers.{header}"
        if isinstance(value, dict) and value.keys() == {"base64"}:
            found[header] = decode_base64(name, value["base64"])
        elif isinstance(value, str):
            try:
                found[header] = value.encode()
            except UnicodeEncodeError:
                raise InvalidArgument(f"{name} is not valid Unicode") from None
        else:
            raise InvalidArgument(f'{name} must be a text, or {{"base64": "…"}}')
    return found


def _bytes(record: str, fields: dict[str, Any], name: str) -> bytes | None:
    """Return the bytes of a text as they are, and anything else that JSON can say as JSON."""
    plain, encoded = fields.get(name), fields.get(f"{name}_base64")
    if encoded is None:
        if plain is None:
            return None
        try:
            return (plain if isinstance(plain, str) else _json(plain)).encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"{record}.{name} is not valid Unicode") from None
        except (ValueError, RecursionError):
            raise InvalidArgument(
                f"{record}.{name} is not JSON that others can read: it is nested too deeply, or "
                "has a number that is none (NaN, Infinity)"
            ) from None
    if plain is not None:
        raise InvalidArgument(f"{record} has both {name} and {name}_base64: give one of them")
    return decode_base64(f"{record}.{name}_base64", encoded)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def decode_base64(name: str, text: object) -> bytes:
    try:
        if not isinstance(text, str):
            raise ValueError
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise InvalidArgument(f"{name} is not base64") from None


def _moment(record: str, text: object) -> datetime:
    try:
        if not isinstance(text, str):
            raise ValueError
        return parse_moment(text)
    except ValueError:
        raise InvalidArgument(
            f"{record}.timestamp must be a time such as 2026-11-16T03:00:00Z"
        ) from None


def parse_moment(text: str) -> datetime:
    """Parse a time of ISO 8601, in UTC unless it names a zone; raise ValueError if it is none."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


async def append_records(
    log: Log, records: Sequence[Record], expected_tail: Glsn | None = None
) -> list[Position]:
    """Append records atomically; with an expected tail, only behind that."""
    if any(record.timestamp or record.headers for record in records):
        return await log.append_arrow(as_arrow(records), expected_tail=expected_tail)
    keys = [record.key for record in records]
    keyed = keys if any(key is not None for key in keys) else None
    values = [record.value for record in records]
    return await log.append_many(values, keyed, expected_tail=expected_tail)


def as_arrow(records: Sequence[Record]) -> pa.RecordBatch:
    """Return records as columns; those without a timestamp get the present time."""
    import pyarrow as pa

    from loomlog.client.append.encoders import encoded_headers

    now = datetime.now(UTC)
    columns = {
        "value": pa.array([record.value for record in records], pa.binary()),
        "key": pa.array([record.key for record in records], pa.binary()),
        "timestamp": pa.array(
            [record.timestamp or now for record in records], pa.timestamp("us", tz="UTC")
        ),
    }
    headers = [encoded_headers(record.headers) for record in records]
    if any(headers):
        columns["headers"] = pa.array(headers, pa.binary())
    return pa.RecordBatch.from_pydict(columns)

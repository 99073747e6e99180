"""Append to several logs, all or nothing."""

from __future__ import annotations

from typing import Any, Final

from loomlog.console.api.records import APPEND_BODY_BYTES, appended
from loomlog.console.entries import parse_record
from loomlog.console.route import Call, Route, in_body
from loomlog.errors import InvalidArgument


async def append(call: Call) -> dict[str, Any]:
    logs = call.take("logs")
    if not isinstance(logs, dict) or not logs:
        raise InvalidArgument('give {"logs": {"NAME": [{"value": …}, …], …}}')
    transaction = call.cluster.transaction()
    for name, given in logs.items():
        if not isinstance(given, list) or not given:
            raise InvalidArgument(f"logs.{name} must be a list of records, with at least one")
        for number, fields in enumerate(given):
            record = parse_record(fields, f"logs.{name}[{number}]")
            transaction.append(
                name, record.value, record.key, headers=record.headers, timestamp=record.timestamp
            )
    await transaction.commit()
    return {"logs": {name: appended(found) for name, found in transaction.positions.items()}}


ROUTES: Final = (
    Route(
        "POST",
        "/v1/transactions",
        "Append entries to several logs: all of them become visible together, or none.",
        append,
        (
            in_body(
                "logs",
                "An object of log names; for each, records as for one log.",
                {"type": "object", "additionalProperties": {"type": "array"}},
            ),
        ),
        answer="logs: for each, first and last position and count.",
        body_bytes_max=APPEND_BODY_BYTES,
    ),
)

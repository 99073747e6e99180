"""Append, read and follow the entries of a log."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final, TypeVar

from starlette.responses import Response, StreamingResponse

from loomlog.client.log import Log
from loomlog.console.entries import (
    Record,
    append_records,
    as_arrow,
    decode_base64,
    entry_fields,
    parse_moment,
    parse_record,
)
from loomlog.console.failures import fields_of
from loomlog.console.route import (
    ANY,
    FLAG,
    NUMBER,
    NUMBER_OR_0,
    Call,
    Parameter,
    Route,
    in_body,
    in_path,
    is_binary,
)
from loomlog.errors import Conflict, InvalidArgument, LoomError
from loomlog.limits import BATCH_BYTES_MAX, MIB, POSITION_MAX
from loomlog.types import Entry, Gap, Position
from loomlog.wire.info import parse_position

T = TypeVar("T")

APPEND_BODY_BYTES: Final = BATCH_BYTES_MAX * 3 // 2  # base64 is a third larger
READ_BYTES: Final = 8 * MIB  # of values in one answer
LIMIT: Final = 100
LIMIT_MAX: Final = 10_000
PULSE_S: Final = 15.0  # a comment this often tells both sides that the other is there
_PRODUCER: Final = re.compile(r"([A-Za-z0-9._-]{1,90})/(\d{1,18})")

LOG: Final = in_path("log", "Name of the log.")
POSITION: Final = in_path("position", "Position of the entry.", NUMBER)
FROM: Final = Parameter(
    "from",
    "The first position; earliest; latest (one past the last); or a time such as "
    "2026-11-16T03:00Z: the first entry that is not older.",
)


async def append(call: Call) -> dict[str, Any]:
    records = _records(call)
    log = call.cluster.log(call["log"])
    expected_tail = call["expected_tail"]
    if (key := call["idempotency-key"]) is not None:
        if expected_tail is not None:
            raise InvalidArgument("give expected_tail or Idempotency-Key, not both")
        return await _append_once(log, key, records)
    return appended(await append_records(log, records, expected_tail)) | {"repeated": False}


def appended(positions: list[Position]) -> dict[str, Any]:
    """Return where entries were appended."""
    first, last = positions[0].position, positions[-1].position
    return {"first": first, "last": last, "count": len(positions)}


async def _append_once(log: Log, key: str, records: list[Record]) -> dict[str, Any]:
    """Publish as the writer that the key names: whoever repeats a number changes nothing."""
    parts = _PRODUCER.fullmatch(key)
    if parts is None or not int(parts[2]):
        raise InvalidArgument(
            "Idempotency-Key must be PRODUCER/NUMBER, such as billing-7/42, with a number that "
            "grows from request to request"
        )
    number = int(parts[2])
    writer = await log.writer(f"http.{parts[1]}")
    last = await writer.sequence()
    if number < last:
        raise Conflict(
            f"producer {parts[1]!r} is at {last} already: {number} was appended before, or was "
            "left out; send the next requests with larger numbers"
        )
    staged = await log.stage(as_arrow(records))
    published = await writer.publish(number, staged)
    count = published.last - published.first + 1
    return {
        "first": published.first,
        "last": published.last,
        "count": count,
        "repeated": number == last,
    }


def _records(call: Call) -> list[Record]:
    if is_binary(call.request):
        return [Record(call.body, _key(call))]
    if call["key"] is not None or call["key_base64"] is not None:
        raise InvalidArgument("key is for bodies of application/octet-stream: put it into records")
    given = call.take("records")
    if not isinstance(given, list) or not given:
        raise InvalidArgument(
            'give {"records": [{"value": …}, …]}, or a body of application/octet-stream'
        )
    return [parse_record(each, f"records[{number}]") for number, each in enumerate(given)]


def _key(call: Call) -> bytes | None:
    text, encoded = call["key"], call["key_base64"]
    if text is not None and encoded is not None:
        raise InvalidArgument("give key or key_base64, not both")
    if encoded is not None:
        return decode_base64("key_base64", encoded)
    return None if text is None else text.encode()


# ---- reading


async def first_position(log: Log, start: str | None) -> int:
    """Return the position that `from` names."""
    if start is None or start == "earliest":
        return await log.earliest()
    if start == "latest":
        return await log.tail() + 1
    position = parse_position(start)
    if position is not None and 1 <= position <= POSITION_MAX:
        return position
    try:
        moment = parse_moment(start)
    except ValueError:
        raise InvalidArgument(
            f"from must be a position, earliest, latest or a time such as 2026-11-16T03:00Z, "
            f"not {start[:100]!r}"
        ) from None
    return await log.find_time(moment)


async def read(call: Call) -> dict[str, Any]:
    log = call.cluster.log(call["log"])
    tail = await log.tail()
    if call["last"] is not None:
        if call["from"] is not None:
            raise InvalidArgument("give from or last, not both")
        start = await log.find_last(call["last"])
        limit = call["last"]
    else:
        start, limit = await first_position(log, call["from"]), call["limit"]
    rows: list[dict[str, Any]] = []
    after, size = start, 0
    if start <= tail:
        async with aclosing(log.subscribe(start, tail, gaps=call["gaps"])) as found:
            async for row in found:
                rows.append(_row(row))
                after = (row.last if isinstance(row, Gap) else row.position) + 1
                size += 0 if isinstance(row, Gap) else len(row.value)
                if len(rows) >= limit or size >= READ_BYTES:
                    break
            else:
                after = tail + 1
    return {"records": rows, "next": after, "tail": tail}


def _row(row: Entry | Gap) -> dict[str, Any]:
    return {"gap": row._asdict()} if isinstance(row, Gap) else entry_fields(row)


async def read_one(call: Call) -> dict[str, Any]:
    return entry_fields(await call.cluster.log(call["log"]).read(call["position"]))


async def read_value(call: Call) -> Response:
    """Return the bytes; a browser must save them, and not show them as a page of this site."""
    entry = await call.cluster.log(call["log"]).read(call["position"])
    name = f"{call['log']}-{entry.position}.bin"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(entry.value, headers=headers, media_type="application/octet-stream")


async def follow(call: Call) -> Response:
    log = call.cluster.log(call["log"])
    if (last := call["last-event-id"]) is not None:
        start = last + 1
    else:
        start = await first_position(log, call["from"] or "latest")
    await log.tail()  # raises before the answer begins if the log may not be read
    return events(_entries(log, start))


async def _entries(log: Log, start: int) -> AsyncIterator[str]:
    async with aclosing(with_pulse(log.subscribe(start), PULSE_S)) as found:
        async for entry in found:
            yield event("entry", entry_fields(entry), entry.position) if entry else ":\n\n"


def event(name: str, data: object, number: int | None = None) -> str:
    """Return one server-sent event."""
    mark = "" if number is None else f"id: {number}\n"
    return f"{mark}event: {name}\ndata: {json.dumps(data)}\n\n"


def events(source: AsyncIterator[str]) -> Response:
    """Return an answer of server-sent events; an error becomes the last of them."""

    async def told() -> AsyncIterator[str]:
        try:
            async for each in source:
                yield each
        except LoomError as error:
            yield event("failure", fields_of(error))

    headers = {"X-Accel-Buffering": "no"}  # proxies pass events on at once
    return StreamingResponse(told(), headers=headers, media_type="text/event-stream")


async def with_pulse(
    source: AsyncGenerator[T, None], every_s: float
) -> AsyncGenerator[T | None, None]:
    """Yield what the source yields, and None when it is silent for `every_s`."""
    try:
        pending = asyncio.ensure_future(anext(source))
        try:
            while True:
                done, _ = await asyncio.wait([pending], timeout=every_s)
                if not done:
                    yield None
                    continue
                yield pending.result()
                pending = asyncio.ensure_future(anext(source))
        except StopAsyncIteration:
            return
        finally:
            if not pending.done():
                pending.cancel()
                await asyncio.wait([pending])
    finally:
        await source.aclose()


ROUTES: Final = (
    Route(
        "POST",
        "/v1/logs/{log}/records",
        "Append entries, atomically and at consecutive positions.",
        append,
        (
            LOG,
            in_body(
                "records",
                "Objects with value (a text as it is, anything else as JSON) or value_base64, and "
                'optionally key or key_base64, timestamp, and headers ({"name": "text"}, or '
                '{"name": {"base64": "…"}}).',
                {"type": "array", "items": ANY},
            ),
            Parameter("key", "The key of a body of application/octet-stream."),
            Parameter("key_base64", "The same in base64."),
            Parameter(
                "expected_tail",
                "Append only if no entry stands behind this position (0: the log is empty); else "
                "nothing is appended, and the answer is 409.",
                NUMBER_OR_0,
            ),
            Parameter(
                "idempotency-key",
                "PRODUCER/NUMBER: a request with the number of the producer's last one is "
                "answered and not appended again, also by another console after a crash.",
                place="header",
            ),
        ),
        command="loom append",
        answer="first and last position, count, and whether it was there already (repeated).",
        body_bytes_max=APPEND_BODY_BYTES,
        also_bytes=True,
    ),
    Route(
        "GET",
        "/v1/logs/{log}/records",
        "Read entries.",
        read,
        (
            LOG,
            FROM,
            Parameter(
                "last", "The last so many entries instead.", {**NUMBER, "maximum": LIMIT_MAX}
            ),
            Parameter(
                "limit", "At most this many.", {**NUMBER, "maximum": LIMIT_MAX}, default=LIMIT
            ),
            Parameter("gaps", "Also positions that never have an entry.", FLAG, default=False),
        ),
        command="loom tail --json",
        answer="records, next (where to continue) and tail; fewer records if they are large.",
    ),
    Route(
        "GET",
        "/v1/logs/{log}/records/{position}",
        "Read one entry.",
        read_one,
        (LOG, POSITION),
        answer="The entry.",
    ),
    Route(
        "GET",
        "/v1/logs/{log}/records/{position}/value",
        "Read the value of an entry as it is.",
        read_value,
        (LOG, POSITION),
        answer="The bytes.",
        answer_type="application/octet-stream",
    ),
    Route(
        "GET",
        "/v1/logs/{log}/follow",
        "Follow a log: server-sent events of kind entry, whose ids are positions.",
        follow,
        (
            LOG,
            FROM,
            Parameter("last-event-id", "Continue after this position.", NUMBER, place="header"),
        ),
        command="loom tail -f",
        answer="Events until either side ends it; the last may be of kind failure.",
        answer_type="text/event-stream",
    ),
)

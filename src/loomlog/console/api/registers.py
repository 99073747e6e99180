"""Registers: small named values that change by compare-and-swap."""

from __future__ import annotations

from typing import Any, Final

from loomlog.client.kv.registers import Versioned
from loomlog.console.entries import bytes_field, decode_base64
from loomlog.console.route import (
    NUMBER,
    NUMBER_OR_0,
    TEXT,
    Call,
    Parameter,
    Route,
    in_body,
    in_path,
)
from loomlog.errors import InvalidArgument, NotFound
from loomlog.limits import REGISTER_BYTES_MAX

NAME: Final = in_path("name", "Name of the register; it may have slashes.")


async def list_all(call: Call) -> dict[str, Any]:
    found = await call.cluster.registers(call["prefix"])
    return {"registers": [_fields(name, each) for name, each in found.items()]}


def _fields(name: str, register: Versioned) -> dict[str, Any]:
    return {"name": name, "version": register.version, **bytes_field("value", register.value)}


async def get(call: Call) -> dict[str, Any]:
    found = await call.cluster.register(call["name"]).get()
    if found is None:
        raise NotFound(f"there is no register {call['name']!r}")
    return _fields(call["name"], found)


async def swap(call: Call) -> dict[str, Any]:
    text, encoded = call["value"], call["value_base64"]
    if (text is None) == (encoded is None):
        raise InvalidArgument("give value or value_base64")
    value = text.encode() if encoded is None else decode_base64("value_base64", encoded)
    lease = None
    if call["lease"] is not None:
        lease = call.cluster.held_lease(call["lease"], "", call["lease_epoch"] or 0)
    version = await call.cluster.register(call["name"]).swap(value, call["expected"], lease)
    return {"name": call["name"], "version": version}


async def delete(call: Call) -> dict[str, Any]:
    await call.cluster.register(call["name"]).swap(None, call["expected"])
    return {"deleted": call["name"]}


ROUTES: Final = (
    Route(
        "GET",
        "/v1/registers",
        "List registers.",
        list_all,
        (Parameter("prefix", "Only those whose names begin so.", default=""),),
        answer="registers, with value or value_base64, and version.",
    ),
    Route(
        "GET",
        "/v1/registers/{name:path}",
        "Get a register.",
        get,
        (NAME,),
        answer="value or value_base64, and version.",
    ),
    Route(
        "PUT",
        "/v1/registers/{name:path}",
        "Replace the value of a register if it has the expected version.",
        swap,
        (
            NAME,
            in_body("expected", "Its version; 0 creates it.", NUMBER_OR_0, required=True),
            in_body("value", "The new value.", TEXT),
            in_body("value_base64", "The new value in base64.", TEXT),
            in_body("lease", "Replace it only while this lease is held.", TEXT),
            in_body("lease_epoch", "The epoch in which the lease was acquired.", NUMBER),
        ),
        answer="version: the new one.",
        body_bytes_max=2 * REGISTER_BYTES_MAX,
    ),
    Route(
        "DELETE",
        "/v1/registers/{name:path}",
        "Delete a register if it has the expected version.",
        delete,
        (NAME, Parameter("expected", "Its version.", NUMBER, required=True)),
    ),
)

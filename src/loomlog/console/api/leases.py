"""Leases: names that one program holds at a time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from loomlog.client.kv.leases import LeaseInfo
from loomlog.console.route import NUMBER, TEXT, Call, Parameter, Route, in_body, in_path
from loomlog.errors import NotFound
from loomlog.limits import LEASE_TTL_S_MAX

_PATH: Final = in_path("name", "Name of the lease; it may have slashes.")
NAME: Final = in_body("name", "Name of the lease.", TEXT, required=True)
HOLDER: Final = in_body("holder", "Who holds it.", TEXT, required=True)
EPOCH: Final = in_body("epoch", "As it was acquired.", NUMBER, required=True)
_SECONDS: Final = {"type": "number", "minimum": 0.1, "maximum": LEASE_TTL_S_MAX}


async def list_all(call: Call) -> dict[str, Any]:
    return {"leases": [asdict(lease) for lease in await call.cluster.leases(call["prefix"])]}


async def get(call: Call) -> dict[str, Any]:
    return asdict(await _existing(call))


async def _existing(call: Call) -> LeaseInfo:
    found = await call.cluster.lease(call["name"])
    if found is None:
        raise NotFound(f"there is no lease {call['name']!r}")
    return found


async def acquire(call: Call) -> dict[str, Any]:
    lease = await call.cluster.acquire_lease(call["name"], call["holder"], call["ttl_s"])
    return {"acquired": lease is not None, **asdict(await _existing(call))}


async def renew(call: Call) -> dict[str, Any]:
    await call.cluster.held_lease(call["name"], call["holder"], call["epoch"]).renew()
    return asdict(await _existing(call))


async def release(call: Call) -> dict[str, Any]:
    await call.cluster.held_lease(call["name"], call["holder"], call["epoch"]).release()
    return {"released": call["name"]}


ROUTES: Final = (
    Route(
        "GET",
        "/v1/leases",
        "List leases.",
        list_all,
        (Parameter("prefix", "Only those whose names begin so.", default=""),),
        answer="leases, with holder, epoch, ttl_s, and left_s until they expire.",
    ),
    Route("GET", "/v1/leases/{name:path}", "Get a lease.", get, (_PATH,)),
    Route(
        "POST",
        "/v1/leases",
        "Acquire a lease that is free or expired.",
        acquire,
        (
            NAME,
            HOLDER,
            in_body("ttl_s", "Seconds until it expires.", _SECONDS, required=True),
        ),
        answer="acquired, and the lease as it is now.",
    ),
    Route(
        "POST",
        "/v1/leases/renew",
        "Keep a lease for as long again.",
        renew,
        (NAME, HOLDER, EPOCH),
    ),
    Route(
        "POST",
        "/v1/leases/release",
        "Give up a lease.",
        release,
        (NAME, HOLDER, EPOCH),
    ),
)

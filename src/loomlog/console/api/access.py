"""Permissions and tokens."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from loomlog.client.access import AccessInfo
from loomlog.console.route import (
    FLAG,
    NUMBERS,
    TEXT,
    TEXTS,
    Call,
    Parameter,
    Route,
    in_body,
    in_path,
)
from loomlog.core.permissions import Grant, Verb
from loomlog.errors import InvalidArgument

GRANT: Final = (
    in_body("who", "A client's name, anonymous, * for everybody, or role:NAME.", required=True),
    in_body("what", "A verb, a role, or role:NAME.", required=True),
    in_body("pattern", "Names that it is for, such as orders.*", required=True),
)


def _access(info: AccessInfo) -> dict[str, Any]:
    return {
        "enforced": info.rules.enforced,
        "grants": [
            {"who": each.subject, "what": each.what, "pattern": each.pattern}
            for each in info.rules.grants
        ],
        "behind": list(info.behind),
    }


async def list_all(call: Call) -> dict[str, Any]:
    return _access(await call.cluster.access())


async def grant(call: Call) -> dict[str, Any]:
    return _access(await call.cluster.grant(Grant(call["who"], call["what"], call["pattern"])))


async def revoke(call: Call) -> dict[str, Any]:
    return _access(await call.cluster.revoke(Grant(call["who"], call["what"], call["pattern"])))


async def remove(call: Call) -> dict[str, Any]:
    return _access(await call.cluster.remove_subject(call["who"]))


async def enforce(call: Call) -> dict[str, Any]:
    return _access(await call.cluster.enforce_access(call["enforced"]))


async def check(call: Call) -> dict[str, Any]:
    rules = (await call.cluster.access()).rules
    try:
        verb = Verb(call["verb"])
    except ValueError:
        raise InvalidArgument(f"verb must be one of {', '.join(Verb)}") from None
    by = rules.reasons(call["who"], verb, call["name"])
    return {"allowed": bool(by) or not rules.enforced, "enforced": rules.enforced, "by": by}


async def list_tokens(call: Call) -> dict[str, Any]:
    info = await call.cluster.access()
    return {"tokens": [asdict(each) for each in info.tokens], "keys": list(info.keys)}


async def create_token(call: Call) -> dict[str, Any]:
    new = await call.cluster.create_token(call["name"], call["allow"], call["expires"] or "90d")
    return {"token": new.text, **asdict(new.info)}


async def revoke_token(call: Call) -> dict[str, Any]:
    if not call["id"]:
        raise InvalidArgument("a token is named by its id, or the beginning of it")
    await call.cluster.revoke_tokens(call["id"])
    return {"revoked": call["id"]}


async def rotate_key(call: Call) -> dict[str, Any]:
    info = await call.cluster.rotate_token_key(drop=call["drop"] or ())
    return {"keys": list(info.keys)}


ROUTES: Final = (
    Route("GET", "/v1/acl", "List grants.", list_all, command="loom acl list"),
    Route("POST", "/v1/acl/grant", "Grant a verb or a role.", grant, GRANT, "loom acl grant"),
    Route("POST", "/v1/acl/revoke", "Take a grant away.", revoke, GRANT, "loom acl revoke"),
    Route(
        "DELETE",
        "/v1/acl/{who}",
        "Take all grants of a subject away; if it is a role, also from all who have it.",
        remove,
        (in_path("who", "The name of a client, or role:NAME."),),
        command="loom acl remove",
    ),
    Route(
        "GET",
        "/v1/acl/check",
        "Say whether grants allow a request.",
        check,
        (
            Parameter("who", "The name of a client, or anonymous.", required=True),
            Parameter("verb", "What they would do.", required=True),
            Parameter("name", "With which log or the like.", default=""),
        ),
        command="loom acl check",
        answer="allowed, and the grants that allow it (by).",
    ),
    Route(
        "PUT",
        "/v1/acl/enforced",
        "Deny from now on what is not granted, or allow everything again.",
        enforce,
        (in_body("enforced", "Whether grants are enforced.", FLAG, required=True),),
        command="loom acl enable",
    ),
    Route("GET", "/v1/tokens", "List tokens that were issued.", list_tokens, (), "loom token list"),
    Route(
        "POST",
        "/v1/tokens",
        "Create a token. The answer is the only place where its text is shown.",
        create_token,
        (
            in_body("name", "For messages and the audit log.", required=True),
            in_body("allow", "What it permits, such as append:orders.*", TEXTS, required=True),
            in_body("expires", "As 90d.", TEXT),
        ),
        command="loom token create",
    ),
    Route(
        "DELETE",
        "/v1/tokens/{id}",
        "Revoke a token.",
        revoke_token,
        (in_path("id", "Its id, or a unique beginning of it."),),
        command="loom token revoke",
    ),
    Route(
        "POST",
        "/v1/tokens/rotate",
        "Sign tokens with a new key, or accept none that old keys signed.",
        rotate_key,
        (in_body("drop", "Numbers of keys to drop.", NUMBERS),),
        command="loom token rotate",
    ),
)

"""Random requests to a live console, shaped by its own description of the HTTP API.

Every answer has to be right or a uniform error of one line that is no bug, and a request that is
refused must not have changed anything.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import string
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from http_rig import Answer, Http

from loomlog.console.server import ConsoleServer
from loomlog.testing import LocalCluster

_LEFT_OUT: Final = re.compile(r"/v1/(acl/enforced|metadata/|doctor)|/follow$|/scrub$")
_REFUSED: Final = (400, 404, 405, 413, 415)
_STATE: Final = ("logs?all=true", "registers", "checkpoints", "acl", "tokens")
_NAMES: Final = (
    "orders",
    "clicks",
    "1",
    "2",
    "a",
    "read:*",
    "role:ops",
    "1h",
    "earliest",
    "latest",
)
_NUMBERS: Final = (-1, 0, 1, 2, 3, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64)
_JUNK: Final[tuple[Any, ...]] = (
    *("", "ä☃", "\x00", "../x", "a/b", "x" * 300, "NaN", "4,200", "e1n5", "'\"<>%", "9999-12-31"),
    *(1.5, -0.0, 1e308, True, False, None, [], {}, [1], ["a"], {"a": 1}, [[[]]], [{"value": "x"}]),
)


@dataclass
class Outcome:
    """The number of requests, and the findings."""

    requests: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


async def fuzz_own_console(seed: int, count: int) -> Outcome:
    """Do that with a console and a cluster in this process."""
    servers = LocalCluster(nodes=2)
    async with servers as cluster:
        for name, protocol in (("orders", "ordered"), ("clicks", "chained"), ("a", "copyset")):
            log = await cluster.create_log(name, protocol, replicas=1)
            await log.append(b"first", key=b"k")
        console = ConsoleServer(servers.address, "127.0.0.1:0")
        await console.start()
        try:
            http = Http(console.url.rstrip("/"))
            return await asyncio.to_thread(fuzz_console, http, seed, count)
        finally:
            await console.stop()


def fuzz_console(http: Http, seed: int, count: int) -> Outcome:
    """Send that many requests; the console must have no other visitors that change something."""
    rng, outcome = random.Random(seed), Outcome()
    operations = [
        (path, method, operation)
        for path, methods in http.get("/openapi.json")["paths"].items()
        for method, operation in methods.items()
        if not _LEFT_OUT.search(path)
    ]
    before = _state(http)
    for _ in range(count):
        path, method, operation = rng.choice(operations)
        url, body, headers = _request(rng, path, operation)
        answer = http.ask(method.upper(), url, body, headers)
        request = f"{method} {url} {body!r:.300}"
        outcome.requests += 1
        if problem := _problem(answer):
            outcome.wrong.append(f"{request}: {problem}")
        if method == "get":
            continue
        after = _state(http)
        if answer.status in _REFUSED:
            outcome.refused += 1
            if after != before:
                changed = [part for part in after if after[part] != before.get(part)]
                outcome.wrong.append(f"{request}: it was refused, and changed {changed}")
        before = after
    return outcome


def _problem(answer: Answer) -> str:
    """Return what is wrong with an answer; nothing if it is right."""
    if answer.status < 400:
        return ""
    error = answer.json.get("error", {})
    if set(error) != {"kind", "message", "retryable", "outcome"}:
        return f"an error of another form: {answer.body!r:.300}"
    if answer.status == 500 or "\n" in error["message"] or len(error["message"]) > 1200:
        return f"{answer.status} {error}"
    return ""


def _state(http: Http) -> dict[str, Any]:
    """Return what requests may change and nothing else does."""
    found = {path: http.get(f"/v1/{path}") for path in _STATE}
    names = [log["name"] for log in found.pop("logs?all=true")["logs"]]
    logs = {name: http.get(f"/v1/logs/{quote(name)}") for name in names}  # with their exact tails
    kept = ("head", "tail", "retention_s", "retention_bytes")
    return found | {name: [log[field] for field in kept] for name, log in logs.items()}


def _request(
    rng: random.Random, path: str, operation: dict[str, Any]
) -> tuple[str, bytes | None, dict[str, str]]:
    query, headers = [], {}
    for each in operation["parameters"]:
        value = _text(_value(rng, each["schema"]))
        if each["in"] == "path":
            value = value if rng.random() < 0.4 else rng.choice(_NAMES)
            path = path.replace(f"{{{each['name']}}}", quote(value, safe=""))
        elif each["in"] == "query" and rng.random() < 0.4:
            query.append(f"{each['name']}={quote(value)}")
        elif each["in"] == "header" and rng.random() < 0.3:
            headers[each["name"]] = rng.choice(("a/1", "a/0", "x", "a/-1", "a/9999999999999999999"))
    content = operation.get("requestBody", {}).get("content")
    body = None
    if content:
        kind = rng.choice(list(content)) if rng.random() < 0.95 else "text/plain"
        headers["Content-Type"] = kind
        body = _body(rng, content[kind]["schema"] if kind in content else {})
    return f"{path}?{'&'.join(query)}" if query else path, body, headers


def _body(rng: random.Random, schema: dict[str, Any]) -> bytes:
    if "properties" not in schema or rng.random() < 0.05:
        return rng.randbytes(rng.randrange(30))
    if rng.random() < 0.05:
        return json.dumps(rng.choice(_JUNK)).encode()
    required = schema.get("required", ())
    fields = {
        name: _value(rng, each)
        for name, each in schema["properties"].items()
        if rng.random() < (0.95 if name in required else 0.4)
    }
    return json.dumps(fields).encode()


def _value(rng: random.Random, schema: dict[str, Any], depth: int = 0) -> Any:
    """Return a value of the described type, or often something else."""
    if rng.random() < 0.3:
        return rng.choice(_JUNK)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema.get("type", "string")
    if kind in ("integer", "number"):
        return rng.choice(_NUMBERS)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array" and depth < 3:
        return [_value(rng, schema.get("items", {}), depth + 1) for _ in range(rng.randrange(4))]
    if kind == "object":
        return {rng.choice(_NAMES): [{"value": "v"}]}
    letters = "".join(rng.choice(string.printable) for _ in range(rng.randrange(12)))
    return rng.choice((*_NAMES, letters))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)

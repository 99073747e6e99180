"""The table of routes: every route is described, checked as described, and every error has a
status."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from starlette.requests import Request

from loomlog import errors
from loomlog.cli import loom
from loomlog.console.api import ROUTES
from loomlog.console.failures import STATUSES, answer_to, fields_of, status_of
from loomlog.console.openapi import document
from loomlog.console.route import NUMBER, Parameter, Route, checked, checked_values, in_body
from loomlog.errors import InvalidArgument, LoomError, PermissionDenied
from loomlog.net.credentials import HandshakeFailed


def described() -> dict[str, Any]:
    return dict(json.loads(json.dumps(document(ROUTES))))


def test_every_route_is_described() -> None:
    paths = described()["paths"]
    for route in ROUTES:
        operation = paths[re.sub(r":\w+}", "}", route.path)][route.method.lower()]
        assert operation["summary"].endswith(".")
        in_path = re.findall(r"{(\w+)", route.path)
        assert in_path == [each.name for each in route.of("path")]
        named = [each["name"] for each in operation["parameters"]]
        fields = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        named += fields.get("schema", {}).get("properties", {})
        assert sorted(named) == sorted(each.name for each in route.parameters)
        assert all(each.help.endswith((".", "*")) for each in route.parameters), route.path
    count = sum(len(operations) for operations in paths.values())
    assert count == len(ROUTES)
    ids = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert len(set(ids)) == len(ids)


FILES = "it works on files of its own machine"
PROGRAMS = "it starts programs, or takes long and shows its progress"
STOPPED = "it is for a cluster whose metadata repository is stopped"
NO_ROUTE = {
    "up": PROGRAMS,
    "console": PROGRAMS,
    "maintenance": PROGRAMS,
    "bench": PROGRAMS,
    "version": "/openapi.json has the version",
    "certs": FILES,
    "context": FILES,
    "backup": FILES,
    "archive run": PROGRAMS,
    "archive list": FILES,
    "archive verify": PROGRAMS,
    "archive restore": PROGRAMS,
    "pipeline run": PROGRAMS,
    "pipeline backfill": PROGRAMS,
    "pipeline dead-letters replay": PROGRAMS,
    "metadata export": STOPPED,
    "metadata import": STOPPED,
    "metadata catch-up": STOPPED,
    "metadata rebuild": STOPPED,
    "acl disable": "PUT /v1/acl/enforced does both",
}
"""Commands, or groups of them, and why they have no route."""


def commands(command: Any, path: str = "") -> Iterator[str]:
    for name, each in getattr(command, "commands", {}).items():
        here = f"{path} {name}".strip()
        yield from commands(each, here) if hasattr(each, "commands") else [here]


def test_every_command_has_a_route_or_a_reason() -> None:
    def begins(words: str, *beginnings: str) -> bool:
        return any(f"{words} ".startswith(f"{each} ") for each in beginnings)

    known = list(commands(typer.main.get_command(loom.app)))
    assert "log create" in known
    served = [route.command.removeprefix("loom ") for route in ROUTES if route.command]
    assert [each for each in served if not begins(each, *known)] == [], "no such command"
    without = [each for each in known if not any(begins(command, each) for command in served)]
    assert [each for each in without if not begins(each, *NO_ROUTE)] == []
    assert [each for each in NO_ROUTE if not any(begins(c, each) for c in without)] == []


def test_every_error_has_a_status_and_the_same_form() -> None:
    def tree(kind: type[LoomError]) -> list[type[LoomError]]:
        return [kind, *(each for child in kind.__subclasses__() for each in tree(child))]

    public = [kind for kind in tree(LoomError) if kind.__module__ == errors.__name__]
    assert not set(public) - set(STATUSES)
    for kind in public:
        fields = fields_of(kind("what happened"))["error"]
        assert fields["kind"] == kind.__name__
        assert fields["message"] == "what happened"
        assert fields["retryable"] == issubclass(kind, errors.Retryable)
    assert fields_of(errors.AppendUnknown("?"))["error"]["outcome"] == "unknown"
    assert status_of(HandshakeFailed("of a class that is not listed")) == 503
    assert answer_to(PermissionDenied("no"), named=False).status_code == 401
    assert answer_to(PermissionDenied("no"), named=True).status_code == 403
    assert b"a bug" in bytes(answer_to(ZeroDivisionError(), named=True).body)


async def _nothing(_: object) -> None:
    return None


ROUTE = Route(
    "POST",
    "/v1/x",
    "X.",
    _nothing,
    (
        Parameter("n", "A number.", NUMBER, default=7),
        in_body("name", "A text.", required=True),
        in_body("many", "Numbers.", {"type": "array", "items": NUMBER}),
    ),
)


def values(query: str, body: bytes) -> dict[str, Any]:
    scope = {"type": "http", "headers": [], "query_string": query.encode(), "path_params": {}}
    return checked_values(ROUTE, Request(scope), body)


def test_values_are_checked_as_they_are_described() -> None:
    assert values("", b'{"name": "a"}') == {"n": 7, "name": "a", "many": None}
    assert values("n=3", b'{"name": "a", "many": [1, 2]}')["many"] == [1, 2]
    for query, body, message in (
        ("n=x", b'{"name": "a"}', "n must be a whole number from 1 to"),
        ("n=0", b'{"name": "a"}', "n must be a whole number from 1 to"),
        ("n=-1", b'{"name": "a"}', "n must be"),
        ("n=1&n=2", b'{"name": "a"}', "'n' twice"),
        ("m=1", b'{"name": "a"}', "no 'm': it may have n"),
        ("", b"", "'name' is missing: A text."),
        ("", b"{", "not JSON"),
        ("", b"[1]", "must be a JSON object: it may have many, name"),
        ("", b'{"name": 1}', "name must be a text, not 1$"),
        ("", b'{"name": NaN}', "name must be a text, not NaN$"),
        ("", b'{"name": "a", "many": "1"}', 'many must be an array, not "1"$'),
        ("", b'{"name": "a", "many": [1, true]}', r"many\[1\] must be .*, not true$"),
        ("", b'{"name": "a", "many": [1.5]}', "a whole number from 1 to .*, not 1.5$"),
        ("", b'{"name": "a", "name": "b"}', "the body has 'name' twice"),
        ("", b'{"name": "a", "many": [{"x": 1, "x": 2}]}', "the body has 'x' twice"),
        ("", b'{"name": "a", "many": [true]}', r"many\[0\] must be a whole number"),
        ("", b'{"name": "a", "other": 1}', "no 'other'"),
        ("", b"[" * 100_000, "not JSON"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            values(query, body)


def test_a_bool_is_no_number() -> None:
    with pytest.raises(InvalidArgument):
        checked("x", True, NUMBER)

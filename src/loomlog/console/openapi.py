"""The description of the HTTP API in the form of OpenAPI 3.1, from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from loomlog.console.failures import STATUSES
from loomlog.console.route import Parameter, Route
from loomlog.wire.server_check import software_version

_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["kind", "message", "retryable", "outcome"],
            "properties": {
                "kind": {"type": "string", "enum": sorted({kind.__name__ for kind in STATUSES})},
                "message": {"type": "string", "description": "What happened and what to do."},
                "retryable": {"type": "boolean"},
                "outcome": {
                    "enum": ["nothing happened", "unknown"],
                    "description": "unknown: the request may or may not have been carried out.",
                },
            },
        }
    },
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = re.sub(r":\w+}", "}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "loomlog",
            "version": software_version(),
            "description": "A distributed shared log. docs/http.md is the manual.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    by_command = f"As `{route.command}`." if route.command else ""
    operation: dict[str, Any] = {
        "operationId": f"{route.handle.__module__.split('.')[-1]}.{route.handle.__name__}",
        "summary": route.summary,
        "description": by_command,
        "tags": [route.tag],
        "parameters": [_parameter(each) for each in route.parameters if each.place != "body"],
        "responses": {
            "200": {"description": route.answer, "content": {route.answer_type: {}}},
            "default": {
                "description": "An error.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    if content := _content(route):
        operation["requestBody"] = {"content": content}
    return operation


def _content(route: Route) -> dict[str, Any]:
    fields = route.of("body")
    content: dict[str, Any] = {}
    if fields:
        schema = {
            "type": "object",
            "additionalProperties": False,
            "properties": {f.name: {**f.schema, "description": f.help} for f in fields},
        }
        required = [each.name for each in fields if each.required]
        content["application/json"] = {
            "schema": schema | ({"required": required} if required else {})
        }
    if route.also_bytes:
        binary = {"schema": {"type": "string", "format": "binary"}}
        content["application/octet-stream"] = binary
    return content


def _parameter(parameter: Parameter) -> dict[str, Any]:
    default = {} if parameter.default is None else {"default": parameter.default}
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.help,
        "required": parameter.required,
        "schema": {**parameter.schema, **default},
    }

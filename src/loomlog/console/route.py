"""Routes of the HTTP API: requests are checked, and OpenAPI is written, from the same table."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from loomlog import limits
from loomlog.client.cluster import Cluster
from loomlog.config import parse_number
from loomlog.console.failures import TooLarge
from loomlog.errors import InvalidArgument
from loomlog.limits import KIB

Schema: TypeAlias = Mapping[str, Any]  # the part of JSON Schema that `checked` knows

TEXT: Final[Schema] = {"type": "string"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": limits.STREAMS_PER_LOG_MAX}
NUMBER: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": (1 << 63) - 1}
NUMBER_OR_0: Final[Schema] = {**NUMBER, "minimum": 0}
FLAG: Final[Schema] = {"type": "boolean"}
NUMBERS: Final[Schema] = {"type": "array", "items": NUMBER}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
ANY: Final[Schema] = {}

SMALL_BODY_BYTES: Final = 64 * KIB
JSON_PARTS_MAX: Final = 1 << 21  # each may take a hundred bytes once it is parsed
# Each byte is looked at once, also in a text that does not end.
_PART: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that a route takes, from its path, its query, its headers or its body."""

    name: str
    help: str
    schema: Schema = field(default_factory=lambda: TEXT)
    place: str = "query"  # path, query, header, body
    required: bool = False
    default: Any = None


def in_path(name: str, text: str, schema: Schema = TEXT) -> Parameter:
    return Parameter(name, text, schema, "path", required=True)


def in_body(name: str, text: str, schema: Schema = TEXT, *, required: bool = False) -> Parameter:
    return Parameter(name, text, schema, "body", required)


@dataclass(frozen=True, slots=True)
class Call:
    """A checked request."""

    cluster: Cluster
    request: Request
    values: dict[str, Any]  # of all parameters
    body: bytes = b""

    @property
    def fields(self) -> frozenset[str]:
        """The names that the JSON of the body has, those with null included."""
        return frozenset(json.loads(self.body) if self.body.strip() else {})

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def take(self, name: str) -> Any:
        """Return a value that may be large, and keep it no longer."""
        return self.values.pop(name)


Handler: TypeAlias = Callable[[Call], Awaitable[Any]]  # -> what JSON can say, or a Response


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the API."""

    method: str
    path: str
    summary: str
    handle: Handler
    parameters: tuple[Parameter, ...] = ()
    command: str = ""  # the command of `loom` that does the same
    answer: str = "The result."
    answer_type: str = "application/json"
    body_bytes_max: int = SMALL_BODY_BYTES
    also_bytes: bool = False  # the body may also be application/octet-stream

    @property
    def tag(self) -> str:
        return self.path.removeprefix("/v1").split("/")[1]

    def of(self, place: str) -> list[Parameter]:
        return [parameter for parameter in self.parameters if parameter.place == place]


# ---- checks


def checked_values(route: Route, request: Request, body: bytes) -> dict[str, Any]:
    """Return the values of all parameters; raise InvalidArgument if the request is wrong."""
    _check_encoding(request)
    query = {parameter.name for parameter in route.of("query")}
    if unknown := sorted(set(request.query_params) - query):
        raise InvalidArgument(f"the query has no {unknown[0]!r}{_known(query)}")
    if doubled := sorted(name for name in query if len(request.query_params.getlist(name)) > 1):
        raise InvalidArgument(f"the query has {doubled[0]!r} twice")
    fields = _fields(route, request, body)
    sources: dict[str, Mapping[str, Any]] = {
        "path": request.path_params,
        "query": request.query_params,
        "header": request.headers,
        "body": fields,
    }
    values: dict[str, Any] = {}
    for parameter in route.parameters:
        value = sources[parameter.place].get(parameter.name)
        if value is None:
            if parameter.required:
                raise InvalidArgument(f"{parameter.name!r} is missing: {parameter.help}")
            values[parameter.name] = parameter.default
            continue
        if parameter.place != "body":
            value = _parsed(parameter.name, value, parameter.schema)
        values[parameter.name] = checked(parameter.name, value, parameter.schema)
    return values


def _check_encoding(request: Request) -> None:
    """Raise InvalidArgument if a name in the address is not UTF-8: decoded, it would be another."""
    for part in (request.scope.get("raw_path", b""), request.scope["query_string"]):
        try:
            unquote_to_bytes(part).decode()
        except UnicodeDecodeError:
            raise InvalidArgument("the path and the query must be UTF-8") from None


def _fields(route: Route, request: Request, body: bytes) -> dict[str, Any]:
    known = {parameter.name for parameter in route.of("body")}
    if not body.strip() or is_binary(request):
        return {}
    _check_parts(body)
    try:
        fields = json.loads(body, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise InvalidArgument("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise InvalidArgument(f"the body must be a JSON object{_known(known)}")
    if unknown := sorted(set(fields) - known):
        raise InvalidArgument(f"the body has no {unknown[0]!r}{_known(known)}")
    return fields


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raise InvalidArgument if it has a name twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidArgument(f"the body has {name[:100]!r} twice in an object")
    return found


def _check_parts(body: bytes) -> None:
    """Raise TooLarge if JSON would take much more memory than its text."""
    signs = body.count(b",") + body.count(b"[") + body.count(b"{")
    if signs + body.count(b'"') // 2 <= JSON_PARTS_MAX:
        return  # at most as many, even if some signs are in texts
    if next(islice(_PART.finditer(body), JSON_PARTS_MAX, None), None) is not None:
        raise TooLarge(
            f"the JSON has more than {JSON_PARTS_MAX:,} parts (texts, objects, lists, commas): "
            "send less at a time"
        )


def is_binary(request: Request) -> bool:
    """Return whether the body is one value as it is."""
    return request.headers.get("content-type", "").startswith("application/octet-stream")


def _known(names: set[str]) -> str:
    return f": it may have {', '.join(sorted(names))}" if names else ": it takes nothing"


def _parsed(name: str, text: str, schema: Schema) -> Any:
    """Return the value of a text in a query, a path or a header."""
    kind = schema.get("type")
    try:
        if kind == "integer":
            if (number := parse_number(text)) is None:
                raise ValueError
            return number
        if kind == "number":
            return float(text)
        if kind == "boolean":
            return {"true": True, "false": False, "1": True, "0": False}[text]
        if kind == "array":
            return [_parsed(name, part, schema["items"]) for part in text.split(",")]
    except (ValueError, KeyError):
        raise InvalidArgument(f"{name} must be {_words(schema)}, not {text[:100]!r}") from None
    return text


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


_KINDS: Final[Mapping[str, str]] = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
}


def checked(name: str, value: Any, schema: Schema) -> Any:
    """Return the value; raise InvalidArgument if it is none of its schema."""
    kind = schema.get("type")
    if kind is None:
        return value
    fits = isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
    if fits and kind in ("integer", "number"):
        fits = schema.get("minimum", value) <= value <= schema.get("maximum", value)
    if fits and "enum" in schema:
        fits = value in schema["enum"]
    if not fits:
        raise InvalidArgument(f"{name} must be {_words(schema)}, not {_shown(value)}")
    if kind == "array":
        return [checked(f"{name}[{n}]", each, schema["items"]) for n, each in enumerate(value)]
    return value


def _shown(value: Any) -> str:
    """Return the beginning of a value as JSON."""
    try:
        return json.dumps(value)[:100]
    except RecursionError:
        return "one that is nested so deeply"


def _words(schema: Schema) -> str:
    kind = schema["type"]
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if kind in ("integer", "number") and "minimum" in schema:
        return f"{_KINDS[kind]} from {schema['minimum']} to {schema['maximum']}"
    return _KINDS[kind]

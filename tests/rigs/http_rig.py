"""Requests to a console, as a program in any language makes them."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Answer:
    """The answer of a console."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        return self.status, self.json["error"]["kind"]


@dataclass(frozen=True)
class Http:
    """A console at an address."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Send a request; a body that is no bytes is sent as JSON."""
        sent = self.headers | (headers or {})
        if body is not None and not isinstance(body, bytes):
            body, sent = json.dumps(body).encode(), {"Content-Type": "application/json"} | sent
        response, connection = self._send(method, path, body, sent)
        with connection:
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())

    def get(self, path: str, **headers: str) -> Any:
        """Return the JSON of an answer that must be good."""
        answer = self.ask("GET", path, headers=headers)
        assert answer.status == 200, answer.body
        return answer.json

    def post(self, path: str, body: object = None, **headers: str) -> Any:
        answer = self.ask("POST", path, {} if body is None else body, headers)
        assert answer.status == 200, answer.body
        return answer.json

    def events(self, path: str, **headers: str) -> Iterator[tuple[str, Any, str]]:
        """Yield server-sent events: their kinds, their data and their ids."""
        response, connection = self._send("GET", path, None, self.headers | headers)
        with connection:
            assert response.status == 200, response.read()
            kind = number = ""
            while line := response.readline().decode().rstrip("\n"):
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "id":
                    number = value
                elif name == "data":
                    yield kind, json.loads(value), number
                    response.readline()
                else:
                    response.readline()

    def _send(
        self, method: str, path: str, body: object, headers: dict[str, str]
    ) -> tuple[HTTPResponse, Any]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        if parts.scheme == "https":
            connection: HTTPConnection = HTTPSConnection(
                parts.hostname, parts.port, timeout=PATIENCE_S, context=self.tls
            )
        else:
            connection = HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE_S)
        assert body is None or isinstance(body, bytes)
        connection.request(method, path, body, headers)
        return connection.getresponse(), closing(connection)

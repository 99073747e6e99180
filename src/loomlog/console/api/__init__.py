"""The operations of the HTTP API, in one table."""

from __future__ import annotations

from typing import Final

from loomlog.console.api import access, logs, nodes, pipelines, records, registers, streams
from loomlog.console.route import Route

ROUTES: Final[tuple[Route, ...]] = (
    *records.ROUTES,
    *logs.ROUTES,
    *registers.ROUTES,
    *nodes.ROUTES,
    *streams.ROUTES,
    *pipelines.ROUTES,
    *access.ROUTES,
)

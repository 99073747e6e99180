"""The operations of the HTTP API, in one table."""

from __future__ import annotations

from typing import Final

from loomlog.console.api import (
    access,
    leases,
    logs,
    nodes,
    pipelines,
    queues,
    records,
    registers,
    streams,
    transactions,
)
from loomlog.console.route import Route

ROUTES: Final[tuple[Route, ...]] = (
    *records.ROUTES,
    *transactions.ROUTES,
    *logs.ROUTES,
    *queues.ROUTES,
    *registers.ROUTES,
    *leases.ROUTES,
    *nodes.ROUTES,
    *streams.ROUTES,
    *pipelines.ROUTES,
    *access.ROUTES,
)

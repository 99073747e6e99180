"""How a command reaches the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from loomlog import limits
from loomlog.errors import Timeout, Unavailable

if TYPE_CHECKING:
    from loomlog import Cluster


@asynccontextmanager
async def connected(
    address: str, request_timeout_s: float = limits.REQUEST_TIMEOUT_S
) -> AsyncIterator[Cluster]:
    """The cluster at `address`; Unavailable says what to do if there is none."""
    import loomlog

    try:
        cluster = await loomlog.connect(address, request_timeout_s=request_timeout_s)
    except (Unavailable, Timeout, OSError):
        raise Unavailable(
            f"cannot reach {address}: start a cluster with `loom up` or give --cluster"
        ) from None
    async with cluster:
        yield cluster

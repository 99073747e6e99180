"""Connections of commands to the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from loomlog import limits
from loomlog.errors import Timeout, Unavailable

if TYPE_CHECKING:
    from loomlog import BlockingCluster, Cluster


@asynccontextmanager
async def connected(
    address: str, request_timeout_s: float = limits.REQUEST_TIMEOUT_S
) -> AsyncIterator[Cluster]:
    """The cluster at `address`; Unavailable says what to do if there is none."""
    import loomlog

    try:
        cluster = await loomlog.connect(address, request_timeout_s=request_timeout_s)
    except (Unavailable, Timeout, OSError):
        raise _unreachable(address) from None
    async with cluster:
        yield cluster


@contextmanager
def connected_sync(address: str) -> Iterator[BlockingCluster]:
    """Connect for commands without an event loop."""
    import loomlog

    try:
        cluster = loomlog.connect_sync(address)
    except (Unavailable, Timeout, OSError):
        raise _unreachable(address) from None
    with cluster:
        yield cluster


def _unreachable(address: str) -> Unavailable:
    return Unavailable(f"cannot reach {address}: start a cluster with `loom up` or give --cluster")

"""Find data of streams on nodes that are no replicas of them; `node cleanup` deletes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from loomlog.core.ordered.rounds import StreamRounds
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.ordered.committer import Committer
from loomlog.metadata.ordered.orders import Orders
from loomlog.metadata.protocol import Cleanup
from loomlog.types import NodeId, StreamId


class UnknownStreams:
    """Compares what nodes report with the catalog."""

    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        nodes: ConnectedNodes,
        orders: Orders,
        whole: Callable[[StreamRounds], list[NodeId]],
    ) -> None:
        """`whole` returns the live replicas that have every committed entry of a stream."""
        self._catalog = catalog
        self._committer = committer
        self._nodes = nodes
        self._orders = orders
        self._whole = whole

    def on(self, node: NodeId) -> list[StreamId]:
        """Return the streams that the node holds without being, or becoming, a replica."""
        known = self._nodes.get(node)
        return sorted(s for s in (known.reports if known else ()) if not self._owns(node, s))

    def _owns(self, node: NodeId, stream_id: StreamId) -> bool:
        stream = self._catalog.streams.get(stream_id)
        if stream is None or stream.stamp != self._nodes.stamp_of(node, stream_id):
            return False
        return node in (*stream.replicas, stream.joining)

    async def delete(self, node: NodeId) -> Cleanup:
        unknown = self.on(node)
        kept = [stream_id for stream_id in unknown if self._may_be_needed(stream_id)]
        going = [stream_id for stream_id in unknown if stream_id not in kept]
        gone = await asyncio.gather(*(self._orders.clean_up(node, s) for s in going))
        removed = [s for s, is_gone in zip(going, gone, strict=True) if is_gone]
        left = ""
        if kept:
            left = (
                f"kept: {_streams(kept)}, of which no replica has everything now; "
                "clean up again when they run"
            )
        elif failed := len(going) - len(removed):
            left = f"{failed} failed: see the node's log, then try again"
        return Cleanup(f"its data of {_streams(removed)}" if removed else "", left)

    def _may_be_needed(self, stream_id: StreamId) -> bool:
        """Return whether no replica of the stream has everything: remains may be all there is."""
        stream = self._committer.stream(stream_id)
        return stream is not None and not self._whole(stream)


def _streams(streams: Iterable[StreamId]) -> str:
    listed = [str(stream_id) for stream_id in streams]
    return f"stream{'s' * (len(listed) != 1)} {', '.join(listed)}"

"""Scrub all stored data of a log or a stream at an operator's request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from loomlog.errors import LoomError, NotFound
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.nodes.connected_nodes import ConnectedNodes
from loomlog.metadata.protocol import Keepers
from loomlog.types import NodeId
from loomlog.wire import loomlog_pb2 as pb

WAIT_S: Final = 5.0  # for the answer of a node; less than a client waits for an answer


class LogScrubs:
    """Asks the nodes to scrub, for all protocols."""

    def __init__(self, catalog: Catalog, nodes: ConnectedNodes, keepers: Keepers) -> None:
        self._catalog = catalog
        self._nodes = nodes
        self._keepers = keepers

    async def scrub(self, request: pb.ChangeStream) -> pb.Changed:
        """Begin a scrub, unless one is in progress or the request is a query, and return its
        progress."""
        streams, what = self._streams(request)
        nodes = sorted({node for stream in streams for node in self._nodes_of(stream)})
        order = pb.Scrub(
            log_stream_ids=[stream.log_stream_id for stream in streams],
            loglet_ids=sorted({stream.loglet_id for stream in streams}),
            replicas=self._catalog.addressed(nodes),
            start=not request.tell_only,
        )
        # A replica that was damaged may have left its node since it began.
        asked = sorted({*nodes, *self._catalog.nodes}) if request.tell_only else nodes
        answers = await asyncio.gather(*(self._scrub_on(node, order) for node in asked))
        scrubs = [s for s in answers if s.storage_node_id in nodes or s.progress.stored_bytes]
        return pb.Changed(done=_done(what, scrubs), next=_next(scrubs), scrubs=scrubs)

    def _streams(self, request: pb.ChangeStream) -> tuple[list[pb.LogStream], str]:
        if request.log:
            log = self._catalog.log(request.log)
            streams = [s for keeper in self._keepers.values() for s in keeper.streams(log)]
            return streams, f"log {log.name!r}"
        for log in self._catalog.logs.values():
            for keeper in self._keepers.values():
                for stream in keeper.streams(log):
                    if stream.log_stream_id == request.log_stream_id:
                        return [stream], f"stream {stream.log_stream_id}"
        raise NotFound(f"there is no stream {request.log_stream_id}: look at `loom stream list`")

    def _nodes_of(self, stream: pb.LogStream) -> list[NodeId]:
        keeper = self._keepers.of(stream.protocol)
        described = keeper.describe_replicas(stream.log_stream_id)
        return [replica.storage_node_id for replica in described]

    async def _scrub_on(self, node: NodeId, order: pb.Scrub) -> pb.ReplicaScrub:
        try:
            answer = await self._nodes.request(node, pb.Frame(scrub=order), WAIT_S)
            progress = answer.scrub_response
        except LoomError as error:
            progress = pb.ScrubResponse(error=str(error))
        return pb.ReplicaScrub(storage_node_id=node, progress=progress)


def _done(what: str, scrubs: Sequence[pb.ReplicaScrub]) -> str:
    corrupt, missing, repaired = (
        sum(getattr(scrub.progress, field) for scrub in scrubs)
        for field in ("corrupt_batches", "missing_copies", "repaired_batches")
    )
    found = f"{corrupt} corrupt batches and {missing} missing copies found, {repaired} repaired"
    nodes = ", ".join(str(scrub.storage_node_id) for scrub in scrubs)
    return f"{what} is checked on nodes {nodes}: {found}"


def _next(scrubs: Sequence[pb.ReplicaScrub]) -> str:
    finished = sum(scrub.progress.finished for scrub in scrubs)
    if finished == len(scrubs):
        return "the check is finished"
    return f"{finished} of {len(scrubs)} nodes are finished; ask again to see how far"

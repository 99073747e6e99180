"""The epoch store, as a node sees it: requests to the metadata repository, over the connection that
this node made to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeAlias

from loomlog.core.copyset.messages import EpochStoreRequest, GetState, LogState
from loomlog.errors import LoomError, NotLeader, Unavailable
from loomlog.types import LogId, NodeId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import KnownNode, state_from_wire, store_request_to_wire
from loomlog.wire.link import Frame

logger = logging.getLogger(__name__)

AskMetadata: TypeAlias = Callable[[Frame], Awaitable[Frame]]


class Known(NamedTuple):
    """The state of a log, as the metadata repository answered."""

    log: LogId
    stream: StreamId
    state: LogState
    nodes: Mapping[NodeId, KnownNode]
    asked_at: float  # by the loop's clock
    taken: bool = False  # its newest epoch, by the request that this answers
    now_us: int = 0  # the time by most clocks; 0: not known


class EpochStore:
    """`learned` is called with every answer."""

    def __init__(self, ask: AskMetadata, learned: Callable[[Known], None]) -> None:
        self._ask = ask
        self._learned = learned
        self._known: dict[LogId, Known] = {}
        self._asking: dict[LogId, asyncio.Task[Known]] = {}  # for a state that is not too old

    async def ask(self, request: EpochStoreRequest) -> LogState | None:
        """Return the state afterwards; None: it is not known whether anything happened."""
        try:
            return (await self.request(request)).state
        except LoomError as error:
            logger.debug("the epoch store of loglet %d: %s", request.log, error)
            return None

    async def request(self, request: EpochStoreRequest) -> Known:
        """Return the answer; raises what the metadata repository answers, or Unavailable."""
        asked_at = asyncio.get_running_loop().time()
        try:
            answer = await self._ask(pb.Frame(epoch_store_request=store_request_to_wire(request)))
        except NotLeader as error:  # of the metadata: clients would take it for a sequencer
            raise Unavailable(f"the epoch store of loglet {request.log}: {error}") from None
        message = answer.copyset_state
        state, nodes = state_from_wire(message)
        known = Known(
            log=request.log,
            stream=message.log_stream_id,
            state=state,
            nodes=nodes,
            asked_at=asked_at,
            taken=message.taken,
            now_us=message.now_us,
        )
        self._note(known)
        self._learned(known)
        return known

    async def get(self, log: LogId, max_age_s: float) -> Known:
        """Return the state, at most this old. Raises what `request` raises."""
        known = self._known.get(log)
        if known is not None and known.asked_at + max_age_s > asyncio.get_running_loop().time():
            return known
        asking = self._asking.get(log)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self.request(GetState(log)))
            self._asking[log] = asking
            asking.add_done_callback(lambda _: self._asked(log))
        return await asyncio.shield(asking)

    def forget(self, log: LogId) -> None:
        self._known.pop(log, None)

    def stop(self) -> None:
        for asking in self._asking.values():
            asking.cancel()

    def _asked(self, log: LogId) -> None:
        asking = self._asking.pop(log)
        if not asking.cancelled():
            asking.exception()  # callers that still wait get it, too

    def _note(self, known: Known) -> None:
        before = self._known.get(known.log)
        if before is None or before.asked_at <= known.asked_at:
            self._known[known.log] = known

"""A node's client of the epoch store. It sends requests to the metadata repository over the node's
own connection, and caches the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeAlias

from loomlog.core.copyset.messages import EpochStoreRequest, GetState, LogState
from loomlog.core.copyset.nodeset import node_of
from loomlog.core.copyset.presumption import Presume
from loomlog.core.copyset.record import Epoch
from loomlog.errors import InvalidArgument, LoomError, NotLeader, Unavailable
from loomlog.types import LogId, NodeId, ShardId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.copyset import (
    KnownNode,
    gone_shards,
    state_from_wire,
    store_request_to_wire,
)
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
    rebuilt: Mapping[ShardId, Epoch] = {}  # shards that are rebuilt, and up to which epoch
    gone: frozenset[ShardId] = frozenset()  # those that are away and lost what they had


Request: TypeAlias = Callable[[EpochStoreRequest], Coroutine[Any, Any, Known]]


class EpochStoreClient:
    """`learned` is called with every state of the epoch store."""

    def __init__(self, ask: AskMetadata, learned: Callable[[Known], None]) -> None:
        self._ask = ask
        self._learned = learned
        self.stamps: dict[LogId, int] = {}  # of the creation of logs
        self.granted: dict[LogId, Epoch] = {}  # the highest epoch of each log
        self._granted_in: dict[LogId, LogState] = {}  # as the metadata repository answered last
        self.gone: dict[LogId, frozenset[ShardId]] = {}  # of each log, if there are any
        self._known: dict[LogId, Known] = {}
        self._asking: dict[tuple[LogId, Request], asyncio.Task[Known]] = {}

    async def ask(self, request: EpochStoreRequest) -> LogState | None:
        """Return the state afterwards; None if the outcome is unknown."""
        try:
            return (await self.request(request)).state
        except InvalidArgument:
            # A metadata repository that is older than this node keeps no presumptions.
            return await self.ask(GetState(request.log)) if isinstance(request, Presume) else None
        except LoomError as error:
            logger.debug("the epoch store of loglet %d: %s", request.log, error)
            return None

    async def request(self, request: EpochStoreRequest) -> Known:
        """Return the answer; raise an error of the metadata repository, or Unavailable."""
        known = await self._request(request)
        before = self._known.get(known.log)
        if before is None or before.asked_at <= known.asked_at:
            self._known[known.log] = known
        self.note(known)
        return known

    async def _request(self, request: EpochStoreRequest) -> Known:
        asked_at = asyncio.get_running_loop().time()
        try:
            answer = await self._ask(pb.Frame(epoch_store_request=store_request_to_wire(request)))
        except NotLeader as error:  # of the metadata: clients would take it for a sequencer
            raise Unavailable(f"the epoch store of loglet {request.log}: {error}") from None
        message = answer.copyset_state
        state, nodes = state_from_wire(message)
        return Known(
            log=request.log,
            stream=message.log_stream_id,
            state=state,
            nodes=nodes,
            asked_at=asked_at,
            taken=message.taken,
            now_us=message.now_us,
            rebuilt={each.shard: each.epoch for each in message.rebuilt},
            gone=frozenset(gone_shards(message)),
        )

    async def get(self, log: LogId, max_age_s: float) -> Known:
        """Return the state, at most this old. The errors are those of `request`."""
        known = self._known.get(log)
        if known is not None and known.asked_at + max_age_s > asyncio.get_running_loop().time():
            return known
        return await self._get(log, self.request)

    async def ask_granted(self, log: LogId) -> None:
        """Ask only which epoch of the log was granted last, since any peer can cause this request.
        The errors are those of `request`."""
        self._note_granted(await self._get(log, self._request))

    async def _get(self, log: LogId, request: Request) -> Known:
        """Ask for the state; concurrent callers wait for the same answer."""
        key = (log, request)
        if key not in self._asking:
            asking = asyncio.get_running_loop().create_task(request(GetState(log)))
            self._asking[key] = asking
            asking.add_done_callback(lambda _: self._asked(key))
        return await asyncio.shield(self._asking[key])

    def _note_granted(self, known: Known) -> None:
        log, state = known.log, known.state
        self.granted[log] = max(state.epoch, self.granted.get(log, 0))
        if log not in self._granted_in or self._granted_in[log].epoch <= state.epoch:
            self._granted_in[log] = state

    def is_sequencer(self, log: LogId, node: NodeId, epoch: Epoch) -> bool:
        """Return whether the node is known to have taken the epoch or a later one."""
        state = self._granted_in.get(log)
        return state is not None and node in state.sequencers_since(epoch)

    def is_holder(self, log: LogId, node: NodeId) -> bool:
        """Return whether the node is known to be in a nodeset of the log."""
        state = self._granted_in.get(log)
        return state is not None and node in map(node_of, state.all_shards)

    def note(self, known: Known) -> None:
        """Update the cache with a state that the metadata repository sent."""
        self._note_granted(known)
        self.stamps[known.log] = known.state.stamp
        self.gone.pop(known.log, None)
        if known.gone:
            self.gone[known.log] = known.gone
        self._learned(known)

    def expire(self, log: LogId) -> None:
        """Expire the cached state, so that the next use asks again."""
        self._known.pop(log, None)

    def forget(self, log: LogId) -> None:
        """Called when the log is deleted."""
        self._granted_in.pop(log, None)
        for memory in (self._known, self.stamps, self.granted, self.gone):
            memory.pop(log, None)

    def stop(self) -> None:
        for asking in self._asking.values():
            asking.cancel()

    def _asked(self, key: tuple[LogId, Request]) -> None:
        asking = self._asking.pop(key)
        if not asking.cancelled():
            asking.exception()  # callers that still wait get it, too

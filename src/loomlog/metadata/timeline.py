"""The timeline: the newest events of the cluster, kept in the MetaStore.

The leader compares its state with the previous one once a second, less often with many hundreds of
logs, and records changes and operators' requests. Events are best effort: an event that cannot be
stored is missing. After a takeover, changes that happened without a leader are missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from loomlog.core.conditions import Condition
from loomlog.errors import LoomError, NotLeader
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord, NodeRecord, decode, encode
from loomlog.metadata.protocol import Keepers
from loomlog.metadata.rollback.gate import Gate
from loomlog.metadata.status import StatusView
from loomlog.metadata.store.contract import MetaStore
from loomlog.types import LogId, NodeId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.events import (
    Change,
    EventInfo,
    NodeState,
    condition_changes,
    log_changes,
    log_deleted,
    node_changes,
)
from loomlog.wire.info import LogInfo, log_info

logger = logging.getLogger(__name__)

_PREFIX: Final = "events/"
BLOCK_EVENTS: Final = 100  # of one item of the store, which is rewritten with every event
BLOCKS_MAX: Final = 50
WAITING_MAX: Final = 1000  # events to be stored; more are dropped
ANSWER_EVENTS: Final = 1000
TEXT_CHARS_MAX: Final = 500
SAME_S: Final = 60.0  # a repeated operator's action is recorded once in this time
LOOK_S: Final = 1.0
CALM_LOOK_S: Final = 3.0  # when nothing happened
CALM_S: Final = 30.0  # for this long
AT_ONCE: Final = 64  # logs and streams, before other tasks may run
REST_S: Final = 0.0025  # after each of them, so that passes use a few percent of a core
COMING_S: Final = 10.0  # for nodes to come back after a start, before they count as away


@dataclass(frozen=True, slots=True)
class EventsRecord:
    """A block of events, oldest first."""

    events: tuple[Any, ...] = ()


class Timeline:
    """The stored events of the cluster."""

    def __init__(self, store: MetaStore, clock: Callable[[], float]) -> None:
        """`store` must not announce its revisions to nodes: metadata that lacks only events has not
        gone back in time."""
        self._store = store
        self._clock = clock
        self._blocks: dict[int, list[EventInfo]] = {}  # by the id of the first event
        self._versions: dict[int, int] = {}
        self.news = asyncio.Event()  # there are events to store, or to look for
        self._waiting: deque[tuple[float, Change]] = deque()
        self._is_loaded = False
        self._loading = asyncio.Lock()

    def note(self, change: Change) -> None:
        """Add an event, which is durable after the next `save`."""
        now_s = self._clock()
        subject, text = change.subject[:TEXT_CHARS_MAX], change.text[:TEXT_CHARS_MAX]
        change = Change(change.severity, subject, text, change.log[:TEXT_CHARS_MAX])
        is_repeated = change.severity == "action" and self._is_repeated(change, now_s)
        if not is_repeated and len(self._waiting) < WAITING_MAX:
            self._waiting.append((now_s, change))
            self.news.set()

    def _is_repeated(self, change: Change, now_s: float) -> bool:
        recent = [*self._last(), *self._waiting]
        return any(now_s - time_s < SAME_S and change == noted for time_s, noted in recent)

    def _last(self) -> list[tuple[float, Change]]:
        return [_noted(event) for block in list(self._blocks.values())[-2:] for event in block]

    async def part(self, request: pb.ListEvents, sees: Callable[[str], bool]) -> pb.EventList:
        """Return a part of the requested events, only of logs that the peer `sees`."""
        await self.load()
        found = [
            event
            for block in self._blocks.values()
            for event in block
            if event.id > request.after and event.time_s >= request.since_s
        ]
        part = found[:ANSWER_EVENTS]
        return pb.EventList(
            events=[pb.Event(**asdict(e)) for e in part if not e.log or sees(e.log)],
            last=part[-1].id if part else request.after,
            more=len(found) > len(part),
        )

    async def load(self) -> None:
        """Read the stored events, unless they have been read."""
        async with self._loading:
            if not self._is_loaded:
                await self._load()
                self._is_loaded = True

    async def _load(self) -> None:
        for key, item in (await self._store.list(_PREFIX)).items():
            events = [EventInfo(*fields) for fields in decode(EventsRecord, key, item.value).events]
            first = int(key.removeprefix(_PREFIX))
            self._blocks[first], self._versions[first] = events, item.version
        stored = self._last()
        while self._waiting and self._waiting[0] in stored:
            self._waiting.popleft()

    async def save(self) -> None:
        """Store new events. Calls must not overlap."""
        await self.load()
        while self._waiting:
            first, block = self._newest()
            waiting = list(self._waiting)[: BLOCK_EVENTS - len(block)]
            new = [_event(first + len(block) + i, *each) for i, each in enumerate(waiting)]
            await self._write(first, [*block, *new])
            for _ in waiting:
                self._waiting.popleft()
        while len(self._blocks) > BLOCKS_MAX:
            await self._write(next(iter(self._blocks)), None)

    def _newest(self) -> tuple[int, list[EventInfo]]:
        if not self._blocks:
            return 1, []
        first, block = next(reversed(self._blocks.items()))
        return (first, block) if len(block) < BLOCK_EVENTS else (first + BLOCK_EVENTS, [])

    async def _write(self, first: int, block: list[EventInfo] | None) -> None:
        fields = None if block is None else [tuple(asdict(each).values()) for each in block]
        value = None if fields is None else encode(EventsRecord(tuple(fields)))
        key, known = f"{_PREFIX}{first:012d}", self._versions.get(first, 0)
        try:
            version = await self._store.compare_and_swap(key, known, value)
        except LoomError:
            self._is_loaded = False  # it may be written all the same
            raise
        if block is None:
            del self._blocks[first], self._versions[first]
        else:
            self._blocks[first], self._versions[first] = block, version


def _event(number: int, time_s: float, change: Change) -> EventInfo:
    return EventInfo(number, time_s, change.severity, change.subject, change.text, change.log)


def _noted(event: EventInfo) -> tuple[float, Change]:
    return event.time_s, Change(event.severity, event.subject, event.text, event.log)


class TimelineWatch:
    """Periodically compares the state of a term with the previous one, and records changes."""

    def __init__(
        self, timeline: Timeline, catalog: Catalog, keepers: Keepers, view: StatusView, gate: Gate
    ) -> None:
        self._timeline = timeline
        self._catalog = catalog
        self._keepers = keepers
        self._view = view
        self._gate = gate
        self._nodes: dict[NodeId, NodeState] | None = None
        self._logs: dict[LogId, tuple[int, LogInfo]] = {}  # with the version of each
        self._conditions: dict[LogId | None, list[Condition]] = {}  # by log; None: of all others
        self._has_looked = False
        self._happened_s = 0.0  # time of the last event, by the loop's clock

    def wake(self) -> None:
        """Compare soon: a node connected or disconnected."""
        self._timeline.news.set()

    async def run(self) -> None:
        """Record events until the term is over."""
        loop = asyncio.get_running_loop()
        begun_s = self._happened_s = loop.time()
        while True:
            looked_s = loop.time()
            self._timeline.news.clear()
            if not self._gate.condition or looked_s - begun_s > COMING_S:
                await self._look()
            if not self._gate.condition:
                try:
                    await self._timeline.save()
                except NotLeader:
                    raise
                except LoomError as error:
                    logger.info("events cannot be stored now: %s", error)
            await asyncio.sleep(max(LOOK_S - (loop.time() - looked_s), LOOK_S / 2))
            if looked_s - self._happened_s > CALM_S:
                await self._rest(CALM_LOOK_S - LOOK_S)

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._timeline.news.wait()

    async def _look(self) -> None:
        nodes = {node.node_id: self._state(node) for node in self._catalog.nodes.values()}
        if self._nodes is not None:
            self._note(node_changes(self._nodes, nodes))
            of_cluster = self._conditions.get(None, [])  # conditions of a removed node did not end
            self._conditions[None] = [c for c in of_cluster if not c.node or c.node in nodes]
        self._nodes = nodes
        self._compare(None, self._view.conditions.of_cluster(self._view.members()))
        if not self._gate.condition:  # otherwise the state of logs may be old
            await self._look_at_logs()
            self._has_looked = True

    def _state(self, node: NodeRecord) -> NodeState:
        number, draining = node.node_id, node.draining
        is_empty = draining and not any(k.replicas_on(number) for k in self._keepers.values())
        return NodeState(node.address, node.process, draining, is_empty)

    async def _look_at_logs(self) -> None:
        logs = {log.log_id: log for log in self._view.logs()}
        for number in self._logs.keys() - logs.keys():
            self._note([log_deleted(self._logs.pop(number)[1])])
            self._conditions.pop(number, None)
        seen = 0
        for log in logs.values():
            if (now := self._view.now(log)) is not None:
                self._look_at_log(now)
                seen += 1 + sum(segment.settings.streams for segment in now.segments)
            if seen >= AT_ONCE:  # also after the last one: there is always another pass
                await asyncio.sleep(REST_S * seen)
                seen = 0

    def _look_at_log(self, log: LogRecord) -> None:
        version = self._view.version_of(log)
        known = self._logs.get(log.log_id)
        if known is None or known[0] != version:
            info = log_info(self._view.log(log))
            if known is not None or self._has_looked:
                self._note(log_changes(known[1] if known else None, info))
            self._logs[log.log_id] = version, info
        self._compare(log.log_id, self._view.conditions.of_log(log))

    def _compare(self, log: LogId | None, conditions: list[Condition]) -> None:
        self._note(condition_changes(self._conditions.get(log, ()), conditions))
        if conditions or log is None:
            self._conditions[log] = conditions
        else:
            self._conditions.pop(log, None)

    def _note(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._timeline.note(change)
            self._happened_s = asyncio.get_running_loop().time()

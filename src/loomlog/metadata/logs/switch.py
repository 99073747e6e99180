"""Switch logs to other settings while they are used: carries out core.virtual_log on the leader.

Each step of a switch is in the catalog before it is acted upon, so the next leader can complete it.
The keepers of the protocols carry out the steps; a log can be switched from any protocol to any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from loomlog.core import virtual_log
from loomlog.core.requests import drive
from loomlog.core.segments import Layout, Settings, Successor, SwitchState
from loomlog.core.virtual_log import Done, Refused, Request, SwitchSteps
from loomlog.errors import Busy, LoomError, NotFound, NotLeader, Sealed, Unavailable
from loomlog.metadata.background import Background, RetryLoop, StepResult
from loomlog.metadata.catalog.catalog import Catalog
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.protocol import Keepers, ProtocolKeeper
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)


class LogSwitches:
    """The switches of all logs."""

    def __init__(self, catalog: Catalog, keepers: Keepers, background: Background) -> None:
        self._catalog = catalog
        self._keepers = keepers
        self._work = RetryLoop("switch of log", self._finish, background)

    def start(self) -> None:
        """Complete the switches that an earlier leader began."""
        for log in self._catalog.logs.values():
            if log.successor is not None and not log.unfinished:
                self._work.wake(log.name)

    async def switch(self, request: pb.SwitchLog) -> pb.Changed:
        before = self._catalog.log(request.name).layout.active
        wanted = self._wanted(request, before.settings)
        words = self._keepers.of(wanted.protocol).describe(wanted)
        layout = await self._carry_out(request.name, lambda: virtual_log.switch(wanted))
        if layout.active.loglet == before.loglet:
            return pb.Changed(
                done=f"log {request.name!r} runs with {words} already",
                next="nothing changes",
            )
        return self._changed(request.name, layout)

    async def change_stream(
        self, keeper: ProtocolKeeper, request: pb.ChangeStream
    ) -> pb.Changed | None:
        """Make a change of a stream that needs another segment; return None if it needs none."""
        asked = keeper.resized(request)
        if asked is None:
            return None
        name = asked.log

        def steps() -> SwitchSteps[Layout]:
            if self._catalog.log(name).successor is not None:
                raise Busy(f"log {name!r} is just being switched: try again")
            now = keeper.resized(request)  # another change may have been made meanwhile
            return virtual_log.switch(*(now or asked)[1:])

        return self._changed(name, await self._carry_out(name, steps))

    def _changed(self, name: str, layout: Layout) -> pb.Changed:
        active = layout.active
        keeper, log = self._keepers.of(active.settings.protocol), self._catalog.log(name)
        words = keeper.describe(active.settings)
        streams = [s.log_stream_id for s in keeper.streams(log) if s.loglet_id == active.loglet]
        return pb.Changed(
            done=f"log {name!r} runs with {words} from position {active.start} on",
            next="what it had before stays where it is, and readable",
            log_stream_id=streams[-1] if streams else 0,
        )

    def _wanted(self, request: pb.SwitchLog, now: Settings) -> Settings:
        """Return the new settings; omitted ones stay unchanged."""
        keeper = self._keepers.of(request.protocol or now.protocol)
        wanted = Settings(
            keeper.protocol,
            request.streams or (now.streams if keeper.has_streams else 1),
            request.replicas or now.replicas,
            request.nodeset,
            request.min_replicas,
            request.compression or now.compression,
        )
        if not wanted.min_replicas and not request.replicas and keeper.has_min_replicas:
            wanted = wanted._replace(min_replicas=now.min_replicas)
        if not wanted.nodeset and wanted.protocol == now.protocol:
            wanted = wanted._replace(nodeset=now.nodeset)
        self._keepers.check(wanted)
        return wanted

    # ---- steps

    async def _carry_out(self, name: str, steps: Callable[[], SwitchSteps[Layout]]) -> Layout:
        """Carry out a switch, which is decided on when no other one is in progress."""
        try:
            async with self._catalog.lock(name):
                return await self._drive(name, steps())
        except LoomError as error:
            log = self._catalog.logs.get(name)
            if log is None or log.successor is None:
                raise
            self._work.wake(name)
            if isinstance(error, Unavailable) and log.layout.switch is SwitchState.SEALING:
                # A retry would only wait again, silently.
                raise Sealed(
                    f"log {name!r}: appends wait until its switch is finished: {error}"
                ) from None
            raise

    async def _drive(self, name: str, steps: SwitchSteps[Layout]) -> Layout:
        return await drive(steps, lambda request: self._answer(name, request))

    async def _finish(self, name: str) -> StepResult:
        log = self._catalog.logs.get(name)
        if log is not None and log.successor is not None and not log.unfinished:
            try:
                async with self._catalog.lock(name):
                    await self._drive(name, virtual_log.finish())
            except NotFound:
                return StepResult.FAILED if name in self._catalog.logs else StepResult.IDLE
        return StepResult.IDLE

    async def _answer(self, name: str, request: Request) -> Any:
        log = self._catalog.log(name)
        match request:
            case virtual_log.GetLayout():
                return log.layout
            case virtual_log.Swap(expected, layout):
                return await self._swap(log.name, expected, layout)
            case virtual_log.NewLoglet():
                return await self._catalog.new_loglet()
            case virtual_log.Make(successor):
                return await self._make(log, successor)
            case virtual_log.Seal(segment):
                return await self._keepers.of(segment.settings.protocol).seal(log, segment)
            case virtual_log.Begin(segment):
                await self._keepers.of(segment.settings.protocol).begin(log, segment)
                return Done()
            case virtual_log.Discard(loglet):
                for keeper in self._keepers.values():
                    await keeper.discard(log, loglet)
                return Done()
            case _:
                raise AssertionError(f"a switch never asks for {request}")

    async def _swap(self, name: str, expected: Layout, layout: Layout) -> Done | Refused:
        if not await self._catalog.swap_layout(name, expected, layout):
            return Refused()
        log = self._catalog.log(name)
        for keeper in self._keepers.values():
            keeper.log_changed(log)
        logger.info(
            "log %r: switch: %s, active is segment %d from %d on",
            name,
            layout.switch,
            layout.active.loglet,
            layout.active.start,
        )
        return Done()

    async def _make(self, log: LogRecord, successor: Successor) -> Done | Refused:
        active = log.layout.active
        if why := await self._keepers.active(log).why_not_sealed(log, active):
            return Refused(f"log {log.name!r} stays as it is: {why}")
        try:
            await self._keepers.of(successor.settings.protocol).make(log, successor)
        except NotLeader:
            raise
        except LoomError as error:
            return Refused(f"log {log.name!r} stays as it is: {error}")
        return Done()

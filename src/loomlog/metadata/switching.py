"""Logs switched to other settings while they are used: core.virtual_log, carried out by the leader.

Each step of a switch is in the catalog before it is acted upon, so whoever leads next finds it and
finishes it. What a step means is up to the protocols of the segments concerned: every protocol has
a Keeper, and a log is switched from any to any.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from loomlog import limits
from loomlog.core import virtual_log
from loomlog.core.segments import Chain, Settings, Successor, SwitchState
from loomlog.core.virtual_log import Done, Operation, Refused, Request
from loomlog.errors import InvalidArgument, LoomError, NotFound, NotLeader, Sealed, Unavailable
from loomlog.metadata.admin import Admin, check_settings
from loomlog.metadata.background import Background
from loomlog.metadata.catalog import Catalog
from loomlog.metadata.keepers import Keeper
from loomlog.metadata.records import LogRecord
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.5  # after a step that failed


class Switching:
    """The switches of all logs."""

    def __init__(
        self,
        catalog: Catalog,
        admin: Admin,
        keepers: Mapping[str, Keeper],
        background: Background,
    ) -> None:
        self._catalog = catalog
        self._admin = admin
        self._keepers = keepers
        self._background = background

    def start(self) -> None:
        """Finish what an earlier leader began."""
        for log in self._catalog.logs.values():
            if log.successor is not None and not log.creating:
                self._finish_soon(log.name)

    async def switch(self, request: pb.SwitchLog) -> pb.Changed:
        before = self._catalog.log(request.name).chain.active
        wanted = self._wanted(request, before.settings)
        chain = await self._carry_out(request.name, virtual_log.switch(wanted))
        active = chain.active
        if active.loglet == before.loglet:
            return pb.Changed(
                done=f"log {request.name!r} runs with {_words(wanted)} already",
                next="nothing changes",
            )
        return pb.Changed(
            done=f"log {request.name!r} runs with {_words(wanted)} from position {active.start} on",
            next="what it had before stays where it is, and readable",
        )

    def _wanted(self, request: pb.SwitchLog, now: Settings) -> Settings:
        protocol = request.protocol or now.protocol
        wanted = Settings(
            protocol,
            request.streams or (1 if protocol == "copyset" else now.streams),
            request.replicas or now.replicas,
            request.nodeset,
        )
        if not wanted.nodeset and wanted.protocol == now.protocol:
            wanted = wanted._replace(nodeset=now.nodeset)
        if wanted.protocol not in self._keepers:
            known = ", ".join(self._keepers)
            raise InvalidArgument(
                f"there is no protocol {wanted.protocol!r}: available are {known}"
            )
        if wanted.streams > limits.STREAMS_PER_LOG_MAX:
            raise InvalidArgument(f"a log has at most {limits.STREAMS_PER_LOG_MAX} streams")
        check_settings(wanted)
        return wanted

    # ---- carrying out

    async def _carry_out(self, name: str, operation: Operation[Chain]) -> Chain:
        try:
            async with self._admin.one_at_a_time(name):
                return await self._drive(name, operation)
        except LoomError as error:
            log = self._catalog.logs.get(name)
            if log is None or log.successor is None:
                raise
            self._finish_soon(name)
            if isinstance(error, Unavailable) and log.chain.switch is SwitchState.SEALING:
                # To ask again would only be to wait again, without a word.
                raise Sealed(
                    f"log {name!r}: appends wait until its switch is finished: {error}"
                ) from None
            raise

    async def _drive(self, name: str, operation: Operation[Chain]) -> Chain:
        answer: Any = None
        while True:
            try:
                request = operation.send(answer)
            except StopIteration as end:
                chain: Chain = end.value
                return chain
            answer = await self._answer(self._catalog.log(name), request)

    def _finish_soon(self, name: str) -> None:
        async def finish() -> None:
            while True:
                try:
                    async with self._admin.one_at_a_time(name):
                        await self._drive(name, virtual_log.finish())
                    return
                except (NotFound, NotLeader):
                    return  # deleted; or the next leader does it
                except LoomError as error:
                    logger.warning("log %r: the switch is not finished yet: %s", name, error)
                except Exception:  # appends may wait for it
                    logger.exception("log %r: the switch is not finished yet", name)
                await asyncio.sleep(RETRY_S)

        self._background.spawn(finish(), f"switch of log {name!r}")

    async def _answer(self, log: LogRecord, request: Request) -> Any:
        match request:
            case virtual_log.GetChain():
                return log.chain
            case virtual_log.Swap(expected, chain):
                return await self._swap(log.name, expected, chain)
            case virtual_log.NewLoglet():
                return await self._catalog.new_loglet()
            case virtual_log.Make(successor):
                return await self._make(log, successor)
            case virtual_log.Seal(segment):
                return await self._keepers[segment.settings.protocol].seal(log, segment)
            case virtual_log.Begin(segment):
                await self._keepers[segment.settings.protocol].begin(log, segment)
                return Done()
            case virtual_log.Discard(loglet):
                for keeper in self._keepers.values():
                    await keeper.discard(log, loglet)
                return Done()
            case _:
                raise AssertionError(f"a switch never asks for {request}")

    async def _swap(self, name: str, expected: Chain, chain: Chain) -> Done | Refused:
        if not await self._catalog.swap_chain(name, expected, chain):
            return Refused()
        log = self._catalog.log(name)
        for keeper in self._keepers.values():
            keeper.chain_changed(log)
        logger.info(
            "log %r: switch: %s, active is segment %d from %d on",
            *(name, chain.switch, chain.active.loglet, chain.active.start),
        )
        return Done()

    async def _make(self, log: LogRecord, successor: Successor) -> Done | Refused:
        active = log.chain.active
        keeper = self._keepers[active.settings.protocol]
        if why := await keeper.why_not_sealed(active):
            return Refused(f"log {log.name!r} stays as it is: {why}")
        try:
            await self._keepers[successor.settings.protocol].make(log, successor)
        except NotLeader:
            raise
        except LoomError as error:
            return Refused(f"log {log.name!r} stays as it is: {error}")
        return Done()


def _words(settings: Settings) -> str:
    protocol, streams, replicas, nodeset = settings
    lies = f", a nodeset of {nodeset}" if nodeset else ""
    streamed = "" if protocol == "copyset" else f", {streams} streams"
    return f"protocol {protocol!r}{streamed}, {replicas} replicas{lies}"

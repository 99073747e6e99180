"""The protocols that this client supports, and the loglets of one log.

To add a protocol, add an entry to FACTORIES; nothing else in client/ names protocols.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from loomlog.client.append.carriers import Carrier, CarriersByProtocol, Outcomes
from loomlog.client.cached_log import CachedLog
from loomlog.client.context import Client
from loomlog.client.loglets.chained.loglet import ChainedLoglet
from loomlog.client.loglets.contract import Loglet
from loomlog.client.loglets.copyset.loglet import CopysetLoglet
from loomlog.client.loglets.ordered.loglet import OrderedLoglet
from loomlog.errors import VersionMismatch
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.types import Glsn
from loomlog.wire import loomlog_pb2 as pb

FACTORIES: Final[dict[str, type[Loglet]]] = {
    ORDERED: OrderedLoglet,
    CHAINED: ChainedLoglet,
    COPYSET: CopysetLoglet,
}


class Loglets:
    """The loglets of one log, created on first use."""

    def __init__(self, log: CachedLog, client: Client) -> None:
        self._log = log
        self._client = client
        self._loglets: dict[str, Loglet] = {}

    def of(self, protocol: str) -> Loglet:
        """Return the loglet of a protocol; raise VersionMismatch if it is unknown."""
        loglet = self._loglets.get(protocol)
        if loglet is None:
            factory = FACTORIES.get(protocol)
            if factory is None:
                raise VersionMismatch(
                    f"a part of log {self._log.name!r} is kept by protocol {protocol!r}, which "
                    "this client does not know; upgrade it"
                )
            loglet = self._loglets[protocol] = factory(self._log, self._client)
        return loglet

    def joins_neighbours(self, protocol: str) -> bool:
        return self.of(protocol).joins_neighbours

    def counts_llsns(self, protocol: str) -> bool:
        return self.of(protocol).counts_llsns

    def carriers(self) -> CarriersByProtocol:
        """Return a factory of carriers for each protocol."""
        return {name: partial(self._make_carrier, name) for name in FACTORIES}

    def _make_carrier(self, protocol: str, outcomes: Outcomes) -> Carrier:
        return self.of(protocol).carrier(outcomes)

    async def fetch_with_tail(self) -> pb.Log:
        """Return the current log; its tail covers everything acknowledged before this call."""
        log, fresh = self._log.last_known, False
        if log is None:
            log, fresh = await self._log.fetch(), True
        while True:
            protocol = _active_protocol(log)
            if protocol not in FACTORIES:
                return log if fresh else await self._log.fetch()
            log = await self.of(protocol).tail(log, fresh=fresh)
            if _active_protocol(log) == protocol:
                return log
            fresh = True

    async def close(self) -> None:
        for loglet in self._loglets.values():
            await loglet.close()


def cut(first: Glsn, last: Glsn, cuts_max: int) -> list[tuple[Glsn, Glsn]]:
    """Split a range of positions where a protocol may leave a wide gap, in at most `cuts_max`
    places for each protocol."""
    begins: set[Glsn] = set()
    for loglet in FACTORIES.values():
        ends = loglet.gap_ends(first, last)
        begins.update(ends[:: -(-(-len(ends) // cuts_max) or 1)])
    firsts = [first, *sorted(begins)]
    return list(zip(firsts, [*(begin - 1 for begin in firsts[1:]), last], strict=True))


def is_dense(first: Glsn, last: Glsn) -> bool:
    """Return whether no protocol leaves a wide gap in a range of positions."""
    return not any(loglet.gap_ends(first, last) for loglet in FACTORIES.values())


def _active_protocol(log: pb.Log) -> str:
    return log.segments[-1].protocol

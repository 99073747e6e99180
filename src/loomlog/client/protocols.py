"""How the segments of one log are written and read: a table for each purpose, by protocol."""

from __future__ import annotations

import asyncio
import random
from functools import partial

from loomlog.client import feeds
from loomlog.client.chained import chains as chained
from loomlog.client.chained import following as chained_following
from loomlog.client.chained.carrying import ChainedCarrier
from loomlog.client.chained.chains import Chains
from loomlog.client.chained.finding import ChainedFinder
from loomlog.client.chained.reserving import ReservedAppends
from loomlog.client.chained.spinning import Spinning
from loomlog.client.chained.tails import ChainedTails
from loomlog.client.copyset import following as copyset_following
from loomlog.client.copyset import segments as copyset
from loomlog.client.copyset.carrying import CopysetCarrier
from loomlog.client.copyset.finding import CopysetFinder
from loomlog.client.copyset.reserving import EpochAppends
from loomlog.client.copyset.segments import Segments
from loomlog.client.copyset.sequencers import Sequencers
from loomlog.client.copyset.tails import Tails
from loomlog.client.merging import OrderedPart
from loomlog.client.metadata import CachedLog, Metadata
from loomlog.client.nodes import Connections
from loomlog.client.orders import ORDERED, Order
from loomlog.client.outgoing import Producer
from loomlog.client.parts import OpenPart, PartsByProtocol
from loomlog.client.reader import Finder
from loomlog.client.sending import Carrier, CarriersByProtocol, Outcomes
from loomlog.config import ClientSettings


class Protocols:
    """What one client has of one log, besides the log itself."""

    def __init__(
        self,
        log: CachedLog,
        metadata: Metadata,
        connections: Connections,
        producer: Producer,
        settings: ClientSettings,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
        spinning: Spinning,
    ) -> None:
        self.chains = Chains(log, metadata, connections, rng)
        self._log = log
        self._connections = connections
        self._producer = producer
        self._settings = settings
        self._rng = rng
        self._loop = loop
        self._spinning = spinning
        self._segments = Segments(log, connections)
        self._sequencers = Sequencers(self._segments, rng)
        self._tails = Tails(self._segments, self._sequencers, settings.request_timeout_s)
        log.tails[copyset.PROTOCOL] = self._tails.complete
        chained_tails = ChainedTails(log, self.chains, settings.request_timeout_s)
        log.tails[chained.PROTOCOL] = chained_tails.complete

    # ---- appends that several processes carry out

    def reserved_appends(self) -> ReservedAppends:
        return ReservedAppends(self.chains)

    def epoch_appends(self) -> EpochAppends:
        return EpochAppends(self._segments, self._sequencers, self._settings.append_timeout_s)

    async def close(self) -> None:
        await self.chains.close()

    # ---- appends

    def carriers(self) -> CarriersByProtocol:
        return {chained.PROTOCOL: self._chained_carrier, copyset.PROTOCOL: self._copyset_carrier}

    def _chained_carrier(self, outcomes: Outcomes) -> Carrier:
        return ChainedCarrier(
            self.chains,
            self._producer,
            self._settings.compression,
            outcomes,
            self._loop,
            self._spinning,
            at_once=self._at_once,
        )

    def _copyset_carrier(self, outcomes: Outcomes) -> Carrier:
        return CopysetCarrier(
            self._segments,
            self._sequencers,
            self._producer,
            self._settings.compression,
            outcomes,
            self._loop,
            at_once=self._at_once,
        )

    @property
    def _at_once(self) -> bool:
        return self._settings.retry == "at-once"

    # ---- reads

    def finders(self) -> dict[str, Finder]:
        hole_timeout_s = self._settings.hole_timeout_s
        return {
            chained.PROTOCOL: ChainedFinder(self.chains, self._log.name, hole_timeout_s),
            copyset.PROTOCOL: CopysetFinder(self._segments, self._tails),
        }

    def parts(
        self, order: Order, window_bytes: int, *, gaps: bool, payloads: bool
    ) -> PartsByProtocol:
        """Of one subscription."""
        from_feeds = feeds.Source(self._log, self._connections, window_bytes, self._rng, order)
        from_chains = chained_following.Source(
            self._log, self.chains, window_bytes, self._settings.hole_timeout_s, order, gaps
        )
        from_copysets = copyset_following.Source(
            self._segments, window_bytes, order, gaps, payloads
        )
        parts: dict[str, OpenPart] = {
            ORDERED: partial(OrderedPart, from_feeds),
            chained.PROTOCOL: partial(chained_following.ChainedPart, from_chains),
            copyset.PROTOCOL: partial(copyset_following.CopysetPart, from_copysets),
        }
        return parts

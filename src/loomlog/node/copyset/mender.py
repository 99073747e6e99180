"""Mends damaged copies of a shard, with the batches of other shards of their copysets: those that
reads meet, and those that a scrub finds.

Readers do not wait for that: they get another copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from loomlog import limits
from loomlog.core.copyset.comparison import Comparison, compare
from loomlog.core.copyset.procedures import Mending, mend
from loomlog.core.copyset.record import LSN_MAX, Lsn, Record, lsn_words
from loomlog.core.copyset.shards import node_of, shard_name
from loomlog.errors import LoomError
from loomlog.node.copyset.copies import Copies, Spawn, looked_up
from loomlog.node.copyset.epoch_store import EpochStoreClient
from loomlog.node.copyset.procedures import Asker
from loomlog.node.scrubber import ScrubNotes
from loomlog.types import LogId, ShardId

logger = logging.getLogger(__name__)

KNOWN_S: Final = 20.0  # addresses do not change often
AGAIN_S: Final = 60.0  # until a copy that could not be mended is tried again
WAITING_MAX: Final = 1000  # copies; a scrub finds the others
COMPARE_AGAIN_S: Final = 0.5  # until shards show what others show already
COMPARE_AGAIN_MAX: Final = 5


class Mender:
    """Mends one copy after the other."""

    def __init__(
        self, me: ShardId, copies: Copies, epochs: EpochStoreClient, asker: Asker, spawn: Spawn
    ) -> None:
        self._me = me
        self._epochs = epochs
        self._copies = copies
        self._asker = asker
        self._spawn = spawn
        self._waiting: dict[tuple[LogId, Lsn], None] = {}
        self._not_before_s: dict[tuple[LogId, Lsn], float] = {}  # by the loop's clock
        self._one_by_one = asyncio.Lock()
        copies.met_damage = self.met

    async def scrub(self, notes: ScrubNotes) -> None:
        """Read all copies of the shard, mend those that are damaged, and compare them with those
        of other shards."""
        if self._copies.volume.is_closed:
            notes.not_checked(f"the copies at {self._copies.volume.path} cannot be opened")
        for log in filter(notes.want_loglet, self._copies.volume.logs):
            lsn: Lsn = 0
            while lsn <= LSN_MAX and (store := self._copies.volume.store) is not None:
                checked = await looked_up(partial(store.check, log, lsn, limits.SCRUB_BYTES))
                for head in checked.damaged:
                    repaired = await self.mend(log, head)
                    notes.found(f"{lsn_words(head.first)} of loglet {log}", repaired=repaired)
                await notes.checked(checked.size)
                if checked.size:
                    await self._compare(log, lsn, checked.next_lsn - 1, notes)
                lsn = checked.next_lsn

    async def _compare(self, log: LogId, first: Lsn, last: Lsn, notes: ScrubNotes) -> None:
        """Let other shards have what they lack of the records in [first, last]."""
        for attempt in range(COMPARE_AGAIN_MAX):
            known = await self._epochs.get(log, KNOWN_S if not attempt else 0.0)
            there = {n for n, node in known.nodes.items() if node.alive and not node.draining}
            shards = [s for s in known.state.all_shards if node_of(s) in there]
            others = frozenset(shards).difference(known.rebuilt)
            version = self._copies.volume.version
            comparison = Comparison(log, self._me, known.state, others, version)
            result = await self._asker.run(compare(comparison, first, last))
            for shard, lsn, restored in result.missing:
                where = f"the copy of {lsn_words(lsn)} of loglet {log} on shard {shard_name(shard)}"
                notes.found(where, repaired=restored, missing=True)
            left = result.behind | result.silent
            if notes.scope is None or not left:
                return  # the next pass continues
            await asyncio.sleep(COMPARE_AGAIN_S)
        names = ", ".join(map(shard_name, sorted(left)))
        notes.not_checked(f"loglet {log} could not be compared with shard {names}: try again")

    def met(self, log: LogId, ranges: Sequence[tuple[Lsn, Lsn]]) -> None:
        """Mend copies that a read has met, soon."""
        now_s = asyncio.get_running_loop().time()
        is_idle = not self._waiting
        for first, _ in ranges:
            if now_s >= self._not_before_s.get((log, first), now_s):
                self._waiting[log, first] = None
            if len(self._waiting) >= WAITING_MAX:
                break
        if is_idle and self._waiting:
            self._spawn(self._mend_waiting())

    async def _mend_waiting(self) -> None:
        while self._waiting:
            log, first = next(iter(self._waiting))
            try:
                store = self._copies.volume.store
                head = None if store is None else await looked_up(partial(store.head, log, first))
                if head is not None:
                    await self.mend(log, head)
            except LoomError as error:
                logger.info("loglet %d: %s is not mended: %s", log, lsn_words(first), error)
            finally:
                self._waiting.pop((log, first), None)

    async def mend(self, log: LogId, head: Record) -> bool:
        """Mend a copy; return False if no other shard has its batch now."""
        key = log, head.first
        with suppress(LoomError):
            await self._epochs.get(log, KNOWN_S)  # so that the addresses of the others are known
        async with self._one_by_one:
            result = await self._asker.run(mend(log, head, self._me))
        self._copies.volume.note_mending(log, head.first, result)
        if result is Mending.MENDED:
            self._not_before_s.pop(key, None)
            logger.info("loglet %d: the copy at %s is mended", log, lsn_words(head.first))
        else:
            if len(self._not_before_s) >= WAITING_MAX:
                self._not_before_s.clear()
            self._not_before_s[key] = asyncio.get_running_loop().time() + AGAIN_S
        return result is Mending.MENDED

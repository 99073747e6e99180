"""Mends damaged copies of a shard, found by reads or by a scrub, with the batches of other shards
of their copysets.

Readers do not wait for this; they get another copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from loomlog import limits
from loomlog.core.copyset.comparison import Comparison, compare, compare_all
from loomlog.core.copyset.coverage import lost_epochs
from loomlog.core.copyset.messages import GetState
from loomlog.core.copyset.nodeset import node_of, shard_name
from loomlog.core.copyset.procedures import Mending, mend
from loomlog.core.copyset.record import LSN_MAX, Epoch, Lsn, Record, lsn_words
from loomlog.errors import LoomError, NotFound
from loomlog.node.copyset.asker import Asker
from loomlog.node.copyset.copies import Copies, LogCatchUp, Spawn, looked_up
from loomlog.node.copyset.epoch_store import EpochStoreClient, Known
from loomlog.node.scrubber import ScrubNotes, restored
from loomlog.types import LogId, ShardId
from loomlog.wire import loomlog_pb2 as pb

logger = logging.getLogger(__name__)

KNOWN_S: Final = 20.0  # addresses do not change often
STATE_S: Final = 1.0  # which shards are lost changes
AGAIN_S: Final = 60.0  # until a copy that could not be mended is tried again
WAITING_MAX: Final = 1000  # copies; a scrub finds further ones
COMPARE_AGAIN_S: Final = 0.5  # until all shards have applied a release
COMPARE_AGAIN_MAX: Final = 5


class Mender:
    """Mends one copy after the other."""

    def __init__(
        self,
        me: ShardId,
        copies: Copies,
        catch_up: LogCatchUp,
        epochs: EpochStoreClient,
        asker: Asker,
        spawn: Spawn,
    ) -> None:
        self.me = me
        self._epochs = epochs
        self._copies = copies
        self._catch_up = catch_up
        self._asker = asker
        self._spawn = spawn
        self._waiting: dict[tuple[LogId, Lsn], None] = {}
        self._not_before_s: dict[tuple[LogId, Lsn], float] = {}  # by the loop's clock
        self._one_by_one = asyncio.Lock()
        self._checking: dict[
            tuple[LogId, frozenset[ShardId], frozenset[Epoch], bool],
            asyncio.Future[pb.CopysetChecked],
        ] = {}
        copies.met_damage = self.met

    async def scrub(self, notes: ScrubNotes) -> None:
        """Read all copies of the shard, mend those that are damaged, and compare them with those
        of other shards."""
        if notes.scope is not None:
            await self._copies.volume.look()
        if self._copies.volume.is_gone:
            await self._restore_all(notes)
            return
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

    async def _restore_all(self, notes: ScrubNotes) -> None:
        """Have other nodes restore all copies, unless these may be the only ones of a record: then
        wait for the directory to be brought back."""
        logs = self._copies.volume.logs
        if not any(map(notes.want_loglet, logs)):
            return
        repaired = False
        try:
            if not any([await self._may_be_last(log) for log in logs]):
                await self._copies.volume.start_over()
                repaired = await restored(lambda: not any(map(self._copies.may_miss, logs)))
        except LoomError as error:
            logger.warning("the copies at %s: %s", self._copies.volume.path, error)
        notes.found(f"all of {self._copies.volume.path}", repaired=repaired, missing=True)

    async def _may_be_last(self, log: LogId) -> bool:
        """Return whether all copies of some record may be here or on absent or lost shards."""
        known = await self._epochs.get(log, 0.0)
        there = {n for n, node in known.nodes.items() if node.alive}
        away = {s for s in known.state.all_shards if node_of(s) not in there}
        gone = {self.me, *away, *known.rebuilt, *known.gone}
        return any(metadata.can_hold_a_copyset(gone) for metadata in known.state.history)

    async def _compare(self, log: LogId, first: Lsn, last: Lsn, notes: ScrubNotes) -> None:
        """Give other shards the records in [first, last] that they lack."""
        for attempt in range(COMPARE_AGAIN_MAX):
            try:
                known = await self._epochs.get(log, KNOWN_S if not attempt else 0.0)
            except LoomError as error:
                notes.not_checked(f"loglet {log} could not be compared: {error}")
                return
            result = await self._asker.run(compare(self._comparison(known), first, last))
            for shard, lsn, is_restored in result.missing:
                where = f"the copy of {lsn_words(lsn)} of loglet {log} on shard {shard_name(shard)}"
                notes.found(where, repaired=is_restored, missing=True)
            left = result.behind | result.silent
            if notes.scope is None or not left:
                return  # the next pass continues
            await asyncio.sleep(COMPARE_AGAIN_S)
        names = ", ".join(map(shard_name, sorted(left)))
        notes.not_checked(f"loglet {log} could not be compared with shard {names}: try again")

    def _comparison(self, known: Known) -> Comparison:
        there = {n for n, node in known.nodes.items() if node.alive and not node.draining}
        shards = [s for s in known.state.all_shards if node_of(s) in there]
        others = frozenset(shards).difference(known.rebuilt)
        return Comparison(known.log, self.me, known.state, others, self._copies.volume.version)

    # ---- nodes that crashed

    async def check(
        self,
        log: LogId,
        suspects: frozenset[ShardId],
        epochs: frozenset[Epoch],
        *,
        newest: bool = False,
    ) -> pb.CopysetChecked:
        """Give shards whose nodes crashed the stored records that they lack, with `newest` also of
        epochs that are not recovered; if no shards are named, find epochs with entries that no
        shard has. Concurrent calls share the work."""
        key = log, suspects, epochs, newest
        if key not in self._checking:
            self._checking[key] = asyncio.get_running_loop().create_future()
            self._spawn(self._check_once(key))
        return await asyncio.shield(self._checking[key])

    async def _check_once(
        self, key: tuple[LogId, frozenset[ShardId], frozenset[Epoch], bool]
    ) -> None:
        checked = pb.CopysetChecked(left=1)
        try:
            checked = await self._check(*key)
        except LoomError as error:
            logger.debug("loglet %d is not checked: %s", key[0], error)
        finally:
            self._checking.pop(key).set_result(checked)

    async def _check(
        self, log: LogId, suspects: frozenset[ShardId], epochs: frozenset[Epoch], newest: bool
    ) -> pb.CopysetChecked:
        try:
            known = await self._epochs.request(GetState(log))
        except NotFound:
            return pb.CopysetChecked()  # it was deleted
        self._catch_up.recovered(log, known.state.last_clean)
        if not suspects:
            asked = epochs or {end.epoch for end in known.state.ends}  # an older vmr names none
            steps = lost_epochs(log, known.state, asked, known.gone)
            lost = await self._asker.run_gently(steps)
            return pb.CopysetChecked(left=int(lost is None), lost=lost or ())
        others = suspects.intersection(known.state.all_shards).difference(known.rebuilt)
        comparison = self._comparison(known)._replace(others=others - {self.me})
        compared = await self._asker.run_gently(compare_all(comparison, newest=newest))
        for shard, lsn, is_restored in compared.missing:
            what = f"the copy of {lsn_words(lsn)} of loglet {log} on shard {shard_name(shard)}"
            logger.warning("%s was forgotten: %s", what, "made again" if is_restored else "missing")
        return pb.CopysetChecked(left=compared.left)

    def met(self, log: LogId, ranges: Sequence[tuple[Lsn, Lsn]]) -> None:
        """Schedule mending of damaged copies that a read has found."""
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
        key, known = (log, head.first), None
        with suppress(LoomError):
            known = await self._epochs.get(log, STATE_S)
        state = None if known is None else known.state
        gone = {} if known is None else {s: known.rebuilt.get(s, 0) for s in known.gone}
        async with self._one_by_one:
            result = await self._asker.run(mend(log, head, self.me, state, gone))
        self._copies.volume.note_mending(log, head.first, result)
        if result is Mending.MENDED:
            self._not_before_s.pop(key, None)
            logger.info("loglet %d: the copy at %s is mended", log, lsn_words(head.first))
        else:
            if len(self._not_before_s) >= WAITING_MAX:
                self._not_before_s.clear()
            self._not_before_s[key] = asyncio.get_running_loop().time() + AGAIN_S
        return result is Mending.MENDED

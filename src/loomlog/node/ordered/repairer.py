"""Repairs broken batches with the copies of peers: those found by reads, and all in a scrub.

Replicas of a stream store the same bytes, so a sound copy replaces the broken batch in place.
Broken data is never served: if no peer has the batch, the reader gets an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from loomlog import batch, limits
from loomlog.errors import Corrupt, LoomError, NotFound, Trimmed
from loomlog.net.endpoints import connect
from loomlog.node.disks import Disks
from loomlog.node.ordered.replica import ReplicaDriver
from loomlog.node.scrubber import ScrubNotes, restored
from loomlog.node.workers import finish, off_loop
from loomlog.storage.files import Worker
from loomlog.storage.ordered.data_file import Broken, Examined
from loomlog.types import Llsn, ReplicaState
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import OnlyAnswers

logger = logging.getLogger(__name__)


class Repairer:
    """Repairs one replica."""

    def __init__(self, driver: ReplicaDriver, worker: Worker, codec: Codec) -> None:
        self._driver = driver
        self._worker = worker
        self._codec = codec
        self._one_by_one = asyncio.Lock()

    async def repair(self, first_llsn: Llsn, bytes_max: int) -> bool:
        """Repair the batches of a read that begins at `first_llsn`. Return False if one stays
        broken."""
        last = self._driver.core.last_committed_llsn
        llsn, checked = first_llsn, 0
        async with self._one_by_one:  # other reads may have found the same
            while llsn <= last and (llsn <= first_llsn or checked < bytes_max):
                examined = await self.examine(llsn, last)
                if examined.broken is None:
                    llsn, checked = examined.next_llsn, checked + examined.size
                elif not await self.mend(examined.broken, self._driver.peers()):
                    return False
        return True

    async def examine(self, llsn: Llsn, last_llsn: Llsn) -> Examined:
        store = self._driver.store
        return await off_loop(
            self._worker, lambda: store.examine(llsn, last_llsn, limits.SCRUB_BYTES)
        )

    async def mend(self, broken: Broken, peers: Sequence[str]) -> bool:
        """Replace a batch with the copy of a peer. Return False if none has it. It counts as lost
        only if all peers answered, because the others may have it."""
        stream_id, store = self._driver.stream_id, self._driver.store
        lost = self._driver.ran_in >= 0  # otherwise the peers are not known yet
        logger.error("stream %d: LLSN %d is broken: %s", stream_id, broken.llsn, broken.reason)
        for address in peers:
            try:
                view = await self._fetch(broken, address)
                await self._driver.done(partial(store.overwrite, broken, view))
                left = (await self.examine(broken.llsn, broken.llsn)).broken
            except LoomError as error:
                logger.warning("stream %d: no copy from %s: %s", stream_id, address, error)
                lost = lost and isinstance(error, (Corrupt, NotFound))
                continue
            if left is None:
                logger.info("stream %d: LLSN %d is repaired", stream_id, broken.llsn)
                store.set_sound(broken.llsn)
                return True
            lost = False
        known_lost = any(each.lost and each.llsn == broken.llsn for each in store.broken)
        store.set_broken(broken._replace(lost=lost or known_lost))
        return False

    async def repair_known(self, others: Sequence[str] = ()) -> bool:
        """Repair the known broken batches, from peers and from `others`. Return False if one stays
        broken."""
        peers = [*self._driver.peers(), *others]
        ranges = self._driver.store.broken
        return all([await self._repair_range(broken, peers) for broken in ranges])

    async def _repair_range(self, known: Broken, peers: Sequence[str]) -> bool:
        llsn, last = known.llsn, known.next_llsn - 1
        async with self._one_by_one:
            while llsn <= last:
                try:
                    examined = await self.examine(llsn, last)
                except Trimmed:
                    break
                if examined.broken is None:
                    llsn = max(examined.next_llsn, llsn + 1)
                elif not await self.mend(examined.broken, peers):
                    if examined.broken.llsn != known.llsn:  # everything before it was repaired
                        self._driver.store.set_sound(known.llsn)
                    return False
            self._driver.store.set_sound(known.llsn)
        return True

    async def _fetch(self, broken: Broken, address: str) -> memoryview:
        connection = await connect(address, self._codec, OnlyAnswers(), wanted=("node", 0))
        try:
            question = pb.FetchBatches(
                log_stream_id=self._driver.stream_id,
                first_llsn=broken.llsn,
                last_llsn=broken.llsn,
            )
            _, payload = await connection.request(pb.Frame(fetch_batches=question))
        finally:
            connection.close()
        for header, view in batch.split(payload):
            if header.first_llsn == broken.llsn:
                if header.first_position:
                    batch.assign_position(view, 0)
                return view
        raise NotFound(f"no batch that begins with LLSN {broken.llsn}")


class Scrub:
    """Reads and checks all committed data of a replica once, and repairs it."""

    def __init__(
        self, driver: ReplicaDriver, repairer: Repairer, disks: Disks, notes: ScrubNotes
    ) -> None:
        self._notes = notes
        self._driver = driver
        self._repairer = repairer
        self._disks = disks
        self._peers = list(dict.fromkeys([*driver.peers(), *notes.others]))

    async def run(self) -> None:
        try:
            if missing := await self._find_missing():
                await self._restore(missing)
            else:
                await self._check_all()
        except LoomError as error:
            self._notes.not_checked(f"stream {self._driver.stream_id}: {error}")

    async def _find_missing(self) -> str:
        """Return the path of a deleted file, which this process can still read, but no later one;
        "" if none is missing."""
        store, missing = self._driver.store, list[str]()
        volume = self._disks.volume_of(store.path)
        if self._notes.scope is not None:
            await volume.look()
        if volume.lacks(store.path):
            missing.append(store.path)
        elif volume.works:
            await finish(partial(store.find_missing, missing))
        else:  # it may work again
            raise LoomError(volume.condition)
        return missing[0] if missing and not self._driver.closed else ""

    async def _restore(self, missing: str) -> None:
        """Wait until the whole replica is filled again, or replaced by another node."""
        driver = self._driver

        def is_restored() -> bool:
            is_filled = not driver.core.damaged and driver.core.state is not ReplicaState.SEALING
            return driver.closed or is_filled

        driver.damage(f"{missing} is gone")
        repaired = bool(self._peers) and await restored(is_restored)
        where = f"{missing} of stream {driver.stream_id}"
        self._notes.found(where, repaired=repaired, missing=True)

    async def _check_all(self) -> None:
        llsn, last = self._driver.store.first_kept, self._driver.core.last_committed_llsn
        while llsn <= last and not self._driver.closed:
            try:
                examined = await self._repairer.examine(llsn, last)
            except Trimmed:
                llsn = max(llsn + 1, self._driver.store.first_kept)
                continue
            except Corrupt as error:  # of the commits: no peer stores the same bytes
                if self._peers:
                    self._driver.damage(str(error))
                raise
            llsn = max(llsn, examined.next_llsn)
            await self._notes.checked(examined.size)
            if examined.broken is not None and not await self._repair(examined.broken):
                llsn = max(llsn, examined.broken.next_llsn)

    async def _repair(self, broken: Broken) -> bool:
        repaired = await self._repairer.mend(broken, self._peers)
        where = f"LLSN {broken.llsn} of stream {self._driver.stream_id}"
        self._notes.found(where, repaired=repaired)
        return repaired

"""Repairs broken batches with the copies of peers: those that a read meets, and all in a scrub.

Replicas of a stream store the same bytes, so a sound copy replaces the broken batch in place.
Broken data is never served: if no peer has the batch, the reader gets the error.
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
from loomlog.node.scrubber import ScrubNotes
from loomlog.node.workers import Throttle, finish, off_loop
from loomlog.storage.files import Worker
from loomlog.storage.ordered.data_file import Broken, Examined
from loomlog.types import Llsn
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
        """Repair what a read from `first_llsn` on met; return False if a batch stays broken."""
        last = self._driver.core.last_committed_llsn
        llsn, checked = first_llsn, 0
        async with self._one_by_one:  # others may have met the same
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
        """Replace the batch with the copy of a peer."""
        stream_id = self._driver.stream_id
        logger.error("stream %d: LLSN %d is broken: %s", stream_id, broken.llsn, broken.reason)
        for address in peers:
            try:
                view = await self._fetch(broken, address)
                await self._driver.done(partial(self._driver.store.overwrite, broken, view))
                left = (await self.examine(broken.llsn, broken.llsn)).broken
            except LoomError as error:
                logger.warning("stream %d: no copy from %s: %s", stream_id, address, error)
                continue
            if left is None:
                logger.info("stream %d: LLSN %d is repaired", stream_id, broken.llsn)
                self._driver.store.set_sound(broken.llsn)
                return True
        self._driver.store.set_broken(broken)
        return False

    async def repair_known(self, others: Sequence[str] = ()) -> bool:
        """Repair what is known to be broken, from its peers and from `others`; return False if
        something stays broken."""
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
                    if examined.broken.llsn != known.llsn:  # it was repaired up to there
                        self._driver.store.set_sound(known.llsn)
                    return False
            self._driver.store.set_sound(known.llsn)
        return True

    async def _fetch(self, broken: Broken, address: str) -> memoryview:
        connection = await connect(address, self._codec, OnlyAnswers())
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
    """Reads and checks all committed data of a replica once, slowly, and repairs it."""

    def __init__(
        self,
        driver: ReplicaDriver,
        repairer: Repairer,
        disks: Disks,
        peers: Sequence[str],
        notes: ScrubNotes | None = None,
    ) -> None:
        """`notes`: of the pass over the whole node, if it is part of one."""
        self._notes = notes
        self._driver = driver
        self._repairer = repairer
        self._disks = disks
        self._peers = peers
        self._last = driver.core.last_committed_llsn
        self._next: Llsn = driver.store.first_kept
        self._bytes = 0
        self._corrupt = 0
        self._repaired = 0
        self._error = ""
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def done(self) -> bool:
        return self._task.done()

    def progress(self) -> pb.ScrubResponse:
        return pb.ScrubResponse(
            finished=self.done,
            checked_llsn=self._next - 1,
            last_llsn=self._last,
            checked_bytes=self._bytes,
            corrupt_batches=self._corrupt,
            repaired_batches=self._repaired,
            error=self._error,
        )

    async def finish(self) -> None:
        try:
            await self._task
        finally:
            self._task.cancel()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        stream_id = self._driver.stream_id
        try:
            await self._check_files()
            await self._check_all()
        except LoomError as error:
            self._error = str(error)
            logger.warning("scrub of stream %d: %s", stream_id, error)
        except Exception as error:
            self._error = "internal error: see the log of the storage node"
            logger.error("scrub of stream %d", stream_id, exc_info=error)
        logger.info(
            "scrub of stream %d: %d bytes, %d batches corrupt, %d of them repaired",
            stream_id,
            self._bytes,
            self._corrupt,
            self._repaired,
        )

    async def _check_files(self) -> None:
        """Look for deleted files: this process can still read them, but no later one."""
        store, missing = self._driver.store, list[str]()
        volume = self._disks.volume_of(store.path)
        problem = volume.problem_of(store.path)
        is_gone = store.path in volume.vanished
        if not problem:
            await finish(partial(store.find_missing, missing))
            problem = f"{missing[0]} is gone" if missing else ""
        if problem and not self._driver.closed:  # else the replica was removed in the meantime
            if is_gone or missing:  # else the volume failed, and may work again
                self._driver.damage(problem)
            raise LoomError(problem)

    async def _check_all(self) -> None:
        notes = self._notes
        pause = notes.checked if notes else Throttle(limits.SCRUB_BYTES_PER_S).take
        while self._next <= self._last and not self._driver.closed:
            try:
                examined = await self._repairer.examine(self._next, self._last)
            except Trimmed:
                self._next = max(self._next + 1, self._driver.store.first_kept)
                continue
            except Corrupt as error:  # of the commits: no peer stores the same bytes
                if self._peers:
                    self._driver.damage(str(error))
                raise
            self._bytes += examined.size
            self._next = max(self._next, examined.next_llsn)
            await pause(examined.size)
            if examined.broken is not None:
                await self._found(examined.broken)

    async def _found(self, broken: Broken) -> None:
        self._corrupt += 1
        repaired = await self._repairer.mend(broken, self._peers)
        if self._notes is not None:
            where = f"LLSN {broken.llsn} of stream {self._driver.stream_id}"
            self._notes.found(where, repaired=repaired)
        if repaired:
            self._repaired += 1
        else:
            self._error = f"LLSN {broken.llsn} is broken and no peer has it"
            self._next = max(self._next, broken.next_llsn)

"""The shards of a node: the copies on each of its volumes.

A volume that fails affects only its own shard. A shard whose volume is missing refuses everything:
it may come back with that volume, or empty on another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from loomlog.core.copyset.messages import NodeRequest, Refused, Release
from loomlog.core.copyset.nodeset import Trouble, index_of, shard_name, shard_of
from loomlog.core.copyset.record import Epoch, Lsn, offset_of
from loomlog.errors import Unavailable
from loomlog.node.copyset.copies import Copies, LogCatchUp, Spawn
from loomlog.node.copyset.epoch_store import EpochStoreClient
from loomlog.node.copyset.logs_volume import drop_lost, note_lost
from loomlog.node.disks import Disks
from loomlog.node.volume import Volume
from loomlog.storage.logsdb.store import Answered
from loomlog.types import LogId, NodeId, ShardId
from loomlog.wire import loomlog_pb2 as pb


class Shard:
    """The copies on one volume."""

    def __init__(
        self,
        shard: ShardId,
        path: str,
        disks: Disks,
        epochs: EpochStoreClient,
        now_us: Callable[[], int],
        spawn: Spawn,
        register_again: Callable[[], None],
    ) -> None:
        self.id = shard
        self.index = index_of(shard)
        self.copies = Copies(shard, path, disks, epochs, now_us, spawn, register_again)
        self.catch_up = LogCatchUp(shard, self.copies, epochs, spawn)
        self.volume = self.copies.volume
        self.reports_loss = False  # the last registration said that copies are missing

    def condition(self) -> pb.ShardCondition:
        return pb.ShardCondition(
            shard=self.index,
            stores_no_copies=self.volume.is_closed,
            refuses_copies=self.volume.refuses_copies,
            copies_fail=self.volume.fails,
        )


class LocalShards:
    """All shards of the node. The constructor opens their stores, which blocks."""

    def __init__(
        self,
        node: NodeId,
        disks: Disks,
        epochs: EpochStoreClient,
        now_us: Callable[[], int],
        spawn: Spawn,
        register_again: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._register_again = register_again
        self._disks = disks
        self._epochs = epochs
        self._by_index = {
            index: Shard(shard_of(node, index), path, disks, epochs, now_us, spawn, register_again)
            for path, index in disks.opened.shards.items()
        }

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._by_index.values())

    def get(self, index: int) -> Shard:
        shard = self._by_index.get(index)
        if shard is None:
            raise Unavailable(self._missing(index))
        return shard

    def _missing(self, index: int) -> str:
        return f"the volume of shard {shard_name(shard_of(self._node, index))} is not there"

    # ---- requests of this node

    def ask(self, shard: ShardId, request: NodeRequest, done: Answered) -> None:
        here = self._by_index.get(index_of(shard))
        if here is None:
            done(Refused(Trouble.DISABLED, self._missing(index_of(shard))))
        else:
            here.copies.ask(request, self.stamp_of(request.log), done)

    def release(self, shard: ShardId, release: Release) -> None:
        if (here := self._by_index.get(index_of(shard))) is not None:
            here.catch_up.release(release, self.stamp_of(release.log))

    def stamp_of(self, log: LogId) -> int:
        """Return the creation stamp of the log, as reported to this node or else as stored."""
        if stamp := self._epochs.stamps.get(log):
            return stamp
        return next(filter(None, (shard.copies.standing(log).stamp for shard in self)), 0)

    # ---- reports to the metadata repository

    def report_losses(self) -> list[int]:
        """Return the shards whose copies are missing, for a registration."""
        for shard in self:
            shard.reports_loss = shard.volume.is_unreported
        return [shard.index for shard in self if shard.reports_loss]

    def joined(self, lost: Iterable[pb.LostCopies], life: int) -> None:
        """Learn up to which epochs copies of loglets may be lost, and the life of this node.
        Blocking."""
        known = note_lost(self._disks.opened, lost)
        for shard in self:
            if shard.reports_loss:
                shard.volume.note_reported()
            if shard.volume.is_unreported:  # since this node asked to be registered
                self._register_again()
            else:
                shard.copies.joined(known.get(shard.index, {}), life)

    async def restored(self, restored: Iterable[pb.LostCopies]) -> None:
        """Note that lost copies are restored. Blocks from time to time."""
        by_index: dict[int, dict[LogId, Epoch]] = {}
        for each in restored:
            by_index.setdefault(each.shard, {})[each.loglet_id] = each.epoch
        for index, epochs in by_index.items():
            done = await self.get(index).copies.restored(epochs)
            drop_lost(self._disks.opened, index, done)

    def logs(self) -> set[LogId]:
        return {log for shard in self for log in shard.volume.logs}

    def released(self) -> dict[LogId, Lsn]:
        """Return the last released LSN of each log."""
        released: dict[LogId, Lsn] = {}
        for shard in self:
            for log in shard.volume.logs:
                lsn = shard.copies.standing(log).released
                if offset_of(lsn):
                    released[log] = max(lsn, released.get(log, 0))
        return released

    def volume_changed(self, volume: Volume) -> None:
        for shard in self:
            if shard.volume.is_on(volume):
                shard.volume.volume_changed()

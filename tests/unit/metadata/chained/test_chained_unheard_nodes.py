"""A node that was missing after a power failure comes back with blocks that others forgot."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from cluster_requests import chained, nodes_of
from poll import until
from small_cluster import QUICK, SmallCluster

from loomlog.core.chained import reconfigure
from loomlog.core.chained.chain import Projection
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import ACKNOWLEDGED_MAX
from loomlog.core.conditions import Kind
from loomlog.errors import InvalidArgument, NotFound, Unavailable
from loomlog.metadata.chained import comparer, epochs
from loomlog.metadata.chained.epochs import Epochs
from loomlog.storage.volumes import node_path
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.conditions import condition_from_wire

HANDED_OUT_MAX = 1 << 33  # in life more: readers fill what is skipped, a part at a time


@pytest.fixture
def may_begin(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return what lets epochs begin. They wait for nobody."""
    event, real = asyncio.Event(), Epochs.attempt

    async def attempt(self: Epochs, *args: Any, **options: Any) -> Projection:
        await event.wait()
        return await real(self, *args, **options)

    monkeypatch.setattr(Epochs, "attempt", attempt)
    monkeypatch.setattr(epochs, "CRASHED_WAIT_S", 0.0)
    monkeypatch.setattr(reconfigure, "HANDED_OUT_MAX", HANDED_OUT_MAX)
    event.set()
    return event


class ForgetfulCluster(SmallCluster):
    """Three nodes; the last one of the chain is away when the power is back."""

    def __init__(self, directory: Path, may_begin: asyncio.Event) -> None:
        super().__init__(directory, real=3, **QUICK)
        self._may_begin = may_begin

    async def begin(self) -> None:
        log = await self.create_chained()
        *self.others, self.absent = nodes_of(log.streams[0])[0]

    @property
    def record(self) -> ChainedRecord:
        (record,) = self.keeper.records
        return record

    def chains(self, node: int) -> Path:
        return Path(node_path(str(self._directory / f"vsn-{node}"), "test", node)) / "chains"

    def note(self) -> None:
        """Remember what is really on the disks."""
        for node in self.others:
            shutil.copytree(self.chains(node), self._directory / f"copy-{node}")

    async def lose_power(self, *, forget: bool = True, restart: bool = False) -> None:
        """Let all nodes crash, and all but one come back. Their disks may have forgotten what was
        written since."""
        self._may_begin.clear()
        for node in (*self.others, self.absent):
            await self.crash_node(node)
        for node in self.others if forget else ():
            shutil.rmtree(self.chains(node))
            shutil.move(self._directory / f"copy-{node}", self.chains(node))
        if restart:
            await self.restart_repository()
        await asyncio.gather(*map(self.start_node, self.others))
        self._may_begin.set()
        await until(lambda: bool(self.record.unheard))

    async def come_back(self) -> None:
        await self.start_node(self.absent)
        await until(lambda: not self.record.unheard)

    async def kinds(self) -> list[Kind]:
        found = map(condition_from_wire, (await self.status()).conditions)
        return [condition.kind for condition in found if condition.log]

    async def helps(self) -> str:
        """Return what helps against what is not recovered."""
        found = map(condition_from_wire, (await self.status()).conditions)
        return "; ".join(each.help for each in found if each.kind is Kind.NOT_RECOVERED)

    def has_old_replica(self) -> bool:
        births = {ref.birth for ref in self.replicas_of(self.absent)}
        return self.record.projection.chains[0][0].birth in births


@pytest.mark.parametrize("restart", [False, True])
async def test_what_it_alone_has_is_lost_until_it_is_trimmed(
    tmp_path: Path, may_begin: asyncio.Event, *, restart: bool
) -> None:
    async with ForgetfulCluster(tmp_path, may_begin) as cluster:
        await cluster.begin()
        await cluster.log.append(b"kept")
        cluster.note()
        lost = await cluster.log.append(b"forgotten")
        await cluster.lose_power(restart=restart)
        if restart:  # nobody knows how much was handed out
            assert cluster.record.projection.start > HANDED_OUT_MAX
        await cluster.log.append(b"later")
        assert Kind.NOT_RECOVERED in await cluster.kinds()
        assert Kind.DATA_LOST not in await cluster.kinds()

        await cluster.come_back()
        last = await cluster.log.append(b"last")
        assert await cluster.log.lost() == {lost}
        await cluster.log_is(lambda log: len(nodes_of(chained(log))[0]) == 3)
        kinds = await cluster.kinds()
        assert Kind.DATA_LOST in kinds
        assert Kind.NOT_RECOVERED not in kinds
        assert cluster.has_old_replica(), "an operator may want what it has"

        await cluster.trim(last)
        await until(lambda: not cluster.has_old_replica())
        assert Kind.DATA_LOST not in await cluster.kinds()


async def test_it_is_waited_for_while_its_directory_is_moved_away(
    tmp_path: Path, may_begin: asyncio.Event
) -> None:
    async with ForgetfulCluster(tmp_path, may_begin) as cluster:
        await cluster.begin()
        await cluster.log.append(b"kept")
        cluster.note()
        lost = await cluster.log.append(b"forgotten")
        await cluster.lose_power()
        await cluster.log.append(b"later")
        directory = cluster.chains(cluster.absent)
        shutil.move(directory, tmp_path / "aside")
        await cluster.start_node(cluster.absent)
        await cluster.log_is(lambda log: len(nodes_of(chained(log))[0]) == 3)
        helps = await until(cluster.helps, lambda helps: "moved away" in helps)
        assert f"`loom node replace {cluster.absent}`" in helps
        assert cluster.record.unheard

        await cluster.stop_node(cluster.absent)
        shutil.rmtree(directory)
        shutil.move(tmp_path / "aside", directory)
        await cluster.come_back()
        assert await cluster.log.lost() == {lost}
        assert cluster.has_old_replica()


async def test_another_term_compares_it_too(tmp_path: Path, may_begin: asyncio.Event) -> None:
    async with ForgetfulCluster(tmp_path, may_begin) as cluster:
        await cluster.begin()
        await cluster.log.append(b"kept")
        cluster.note()
        lost = await cluster.log.append(b"forgotten", 3)
        await cluster.lose_power()
        await cluster.restart_repository()
        await cluster.come_back()
        await cluster.log.append(b"later")
        assert await cluster.log.lost() == {lost, lost + 1, lost + 2}


async def test_a_segment_that_has_ended_meanwhile_reports_it(
    tmp_path: Path, may_begin: asyncio.Event
) -> None:
    async with ForgetfulCluster(tmp_path, may_begin) as cluster:
        await cluster.begin()
        await cluster.log.append(b"kept")
        cluster.note()
        lost = await cluster.log.append(b"forgotten")
        await cluster.lose_power()
        await cluster.switch("ordered", replicas=2)
        await cluster.log.append(b"later")
        await cluster.come_back()
        assert await cluster.log.lost() == {lost}
        assert Kind.DATA_LOST in await cluster.kinds()


@pytest.mark.parametrize("restart", [False, True])
async def test_positions_that_were_skipped_are_passed_in_a_segment_that_has_ended(
    tmp_path: Path, may_begin: asyncio.Event, *, restart: bool
) -> None:
    """No sequencer is left to confirm blocks far behind those that replicas have."""
    async with ForgetfulCluster(tmp_path, may_begin) as cluster:
        await cluster.begin()
        await cluster.log.append(b"kept")
        await cluster.lose_power(forget=False, restart=True)
        assert cluster.record.projection.start > HANDED_OUT_MAX
        await cluster.switch("ordered", replicas=2)
        await cluster.log.append(b"later")
        if restart:
            await cluster.restart_repository()
        async with asyncio.timeout(20):
            assert await cluster.log.entries() == cluster.log.acknowledged


async def test_with_honest_disks_nothing_is_lost(tmp_path: Path, may_begin: asyncio.Event) -> None:
    async with ForgetfulCluster(tmp_path, may_begin) as cluster:
        await cluster.begin()
        await cluster.log.append(b"kept")
        await cluster.lose_power(forget=False)
        await cluster.log.append(b"later")
        await cluster.come_back()
        await cluster.log_is(lambda log: len(nodes_of(chained(log))[0]) == 3)
        await until(lambda: not cluster.has_old_replica())
        assert await cluster.log.entries() == cluster.log.acknowledged
        assert cluster.record.projection.lost == ()


async def test_a_node_that_is_removed_is_not_waited_for(
    tmp_path: Path, may_begin: asyncio.Event
) -> None:
    async with ForgetfulCluster(tmp_path, may_begin) as cluster:
        await cluster.begin()
        await cluster.log.append(b"kept")
        await cluster.lose_power(forget=False)
        await cluster.node_is(cluster.absent, lambda node: not node.alive)
        await cluster.change_node(pb.ChangeNode.REMOVE, cluster.absent, force=True)
        await until(lambda: not (cluster.record.unheard or cluster.record.needless))
        assert Kind.NOT_RECOVERED not in await cluster.kinds()


async def test_a_node_that_was_given_up_is_compared_if_it_returns_nevertheless(
    tmp_path: Path, may_begin: asyncio.Event
) -> None:
    async with ForgetfulCluster(tmp_path, may_begin) as cluster:
        await cluster.begin()
        await cluster.log.append(b"kept")
        cluster.note()
        lost = await cluster.log.append(b"forgotten")
        await cluster.lose_power()
        await cluster.node_is(cluster.absent, lambda node: not node.alive)
        assert Kind.NOT_RECOVERED in await cluster.kinds()
        await cluster.change_node(pb.ChangeNode.MARK_UNRECOVERABLE, cluster.absent)
        assert Kind.NOT_RECOVERED not in await cluster.kinds()
        assert cluster.record.unheard, "its word may be needed"
        await cluster.log.append(b"later")
        await cluster.come_back()
        await until(cluster.kinds, lambda kinds: Kind.DATA_LOST in kinds)
        assert await cluster.log.lost() == {lost}
        assert cluster.has_old_replica()


async def test_it_is_not_removed_in_passing(tmp_path: Path, may_begin: asyncio.Event) -> None:
    """The chains run without the node, so nothing else of it is needed."""
    async with ForgetfulCluster(tmp_path, may_begin) as cluster:
        await cluster.begin()
        await cluster.log.append(b"kept")
        await cluster.lose_power(forget=False)
        node = cluster.absent
        await cluster.node_is(node, lambda each: not each.alive)
        assert f"`loom node mark-unrecoverable {node}`" in await cluster.helps()
        await cluster.change_node(pb.ChangeNode.DRAIN, node)
        with pytest.raises(InvalidArgument, match="if it never comes back"):
            await cluster.change_node(pb.ChangeNode.REMOVE, node)
        assert cluster.record.unheard
        await cluster.change_node(pb.ChangeNode.REMOVE, node, force=True)
        await until(lambda: not cluster.record.unheard)
        await until(
            cluster.status,
            lambda status: node not in {each.storage_node_id for each in status.nodes},
        )


async def test_a_node_that_is_replaced_has_nothing_to_compare(
    tmp_path: Path, may_begin: asyncio.Event
) -> None:
    async with ForgetfulCluster(tmp_path, may_begin) as cluster:
        await cluster.begin()
        await cluster.log.append(b"kept")
        await cluster.lose_power(forget=False)
        await cluster.replace_node(cluster.absent)
        cluster.lose_disk(cluster.absent)
        await cluster.come_back()
        await until(lambda: not cluster.record.needless)


async def test_writers_report_what_all_nodes_forgot(
    tmp_path: Path, may_begin: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparer, "PAUSE_S", 0.0)
    async with ForgetfulCluster(tmp_path, may_begin) as cluster:
        await cluster.begin()
        kept = await cluster.log.append(b"kept")
        cluster.note()
        lost = await cluster.log.append(b"forgotten")
        loglet = cluster.record.loglet

        async def report(*addresses: int) -> None:
            asked = pb.ReportForgotten(loglet_id=loglet, addresses=addresses)
            await cluster.client.ask(pb.Frame(report_forgotten=asked))

        with pytest.raises(Unavailable):
            await report(lost)  # its epoch is not over
        with pytest.raises(InvalidArgument):
            await report(*range(1, ACKNOWLEDGED_MAX + 2))
        await cluster.lose_power()
        epoch = cluster.record.projection.epoch
        await asyncio.gather(report(lost), report(kept), report(lost, kept))
        assert cluster.record.projection.epoch == epoch + 1
        await report(kept)
        assert cluster.record.projection.epoch == epoch + 1
        await cluster.log.append(b"later")
        assert await cluster.log.lost() == {lost}
        assert Kind.DATA_LOST in await cluster.kinds()
        loglet += 1
        with pytest.raises(NotFound):
            await report(lost)

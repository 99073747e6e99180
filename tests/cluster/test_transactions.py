"""Transactions on a whole cluster: appends to logs of all protocols, as a whole or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from poll import until

from loomlog import Cluster, Gap, codecs, connect, connect_sync, errors
from loomlog.client.transactions import transaction
from loomlog.client.transactions.transaction import Transaction
from loomlog.core.transactions import DECISIONS_LOG
from loomlog.metadata.logs import decisions
from loomlog.testing import LocalCluster

PROTOCOLS = ("ordered", "chained", "copyset")


class DiedError(Exception):
    """The writer died."""


async def values(cluster: Cluster, log: str) -> list[bytes | Gap]:
    tail = await cluster.log(log).tail()
    items = [item async for item in cluster.log(log).subscribe(1, tail, gaps=True)]
    return [item if isinstance(item, Gap) else item.value for item in items]


def begun(cluster: Cluster, text: str) -> Transaction:
    started = cluster.transaction()
    for protocol in PROTOCOLS:
        started.append(protocol, f"{text} 1".encode(), key=b"key", headers={"h": b"1"})
        started.append(protocol, f"{text} 2".encode(), timestamp=1.0)
    return started


async def test_all_parts_or_none_in_every_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = LocalCluster(nodes=3)
    async with servers as cluster:
        for protocol in PROTOCOLS:
            await cluster.create_log(protocol, protocol, replicas=2)
        async with begun(cluster, "whole") as whole:
            pass
        with pytest.raises(errors.InvalidArgument, match="has ended"):
            whole.append("ordered", b"late")

        async def dies(self: Any, cell: Any) -> bool:
            raise DiedError

        with monkeypatch.context() as patch:
            patch.setattr(transaction._Writer, "_write", dies)
            with pytest.raises(DiedError):
                await begun(cluster, "half").commit()
        with pytest.raises(ZeroDivisionError):
            async with begun(cluster, "never") as never:
                never.append("ordered", b"%d" % (1 // 0))
        for protocol in PROTOCOLS:
            log = cluster.log(protocol)
            await log.append(b"after")
            found = await values(cluster, protocol)
            shown = [item for item in found if not isinstance(item, Gap)]
            assert shown == [b"whole 1", b"whole 2", b"after"]
            holes = [item for item in found if isinstance(item, Gap) and item.kind == "hole"]
            assert [hole.last - hole.first for hole in holes] == [1]
            with pytest.raises(errors.NotFound, match="not completed"):
                await log.read(holes[0].first)
            rows = log.subscribe(1, await log.tail(), payloads=False)
            assert len([entry async for entry in rows]) == len(shown)
            at = whole.positions[protocol]
            entry = await log.read(at[0].position)
            assert (entry.value, entry.key, entry.headers) == (b"whole 1", b"key", {"h": b"1"})
            assert (await log.read(at[1].position)).timestamp_us == 1_000_000
            with pytest.raises(errors.Conflict):
                await log.append(b"too late", expected_tail=at[1].position)
        await asyncio.to_thread(blocking, servers.address)
        assert (await values(cluster, "ordered"))[-1] == b"by a thread"


def blocking(address: str) -> None:
    with connect_sync(address) as cluster:
        with cluster.transaction() as both:
            both.append("ordered", b"by a thread")
            both.append("chained", b"by a thread")
        at = both.positions["chained"][0]
        assert cluster.log("chained").read(at.position).value == b"by a thread"


async def test_a_reader_that_waited_long_enough_voids_it_and_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with LocalCluster(nodes=1) as cluster:
        for name in ("a", "b"):
            await cluster.create_log(name, replicas=1)
        write = transaction._Writer._write
        seen: list[bool] = []

        async def overtaken(self: Any, cell: Any) -> bool:
            if not seen:
                seen.append(await self._log.decisions.settle(cell, 0.0))
            return await write(self, cell)

        monkeypatch.setattr(transaction._Writer, "_write", overtaken)
        async with cluster.transaction() as both:
            both.append("a", b"x")
            both.append("b", b"x")
        assert seen == [False]
        assert both.positions["a"][0].position == 2
        assert [item for item in await values(cluster, "b") if not isinstance(item, Gap)] == [b"x"]


async def test_a_decision_that_was_trimmed_before_it_is_known_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The decision may have been written, and read by others."""
    async with LocalCluster(nodes=1) as cluster:
        for name in ("a", "b"):
            await cluster.create_log(name, replicas=1)
        write = transaction._Writer._write

        async def trimmed(self: Any, cell: Any) -> bool:
            monkeypatch.setattr(transaction._Writer, "_write", write)
            async with cluster.transaction() as later:
                later.append("b", b"later")
            decisions = cluster.log("loomlog.transactions")
            await decisions.trim(await decisions.tail())
            return await write(self, cell)

        monkeypatch.setattr(transaction._Writer, "_write", trimmed)
        first = cluster.transaction()
        first.append("a", b"first")
        with pytest.raises(errors.AppendUnknown, match="was trimmed"):
            await first.commit()
        assert await cluster.log("a").tail() == 1


async def test_bad_arguments() -> None:
    async with LocalCluster(nodes=1) as cluster:
        with pytest.raises(errors.InvalidArgument, match="bytes"):
            cluster.transaction().append("a", "text")  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument, match="is reserved for the decisions"):
            cluster.transaction().append("loomlog.transactions", b"x")
        with pytest.raises(errors.InvalidArgument, match="a codec encodes and decodes"):
            cluster.log("a", codec="json")  # type: ignore[call-overload]
        with pytest.raises(errors.InvalidArgument, match="a codec encodes and decodes"):
            cluster.log("a", codec=codecs.MsgpackCodec)  # type: ignore[call-overload]
        with pytest.raises(errors.InvalidArgument, match="timeout_s"):
            cluster.transaction(timeout_s=0)
        with pytest.raises(errors.InvalidArgument, match="value of 16777217 bytes is over"):
            cluster.transaction().append("a", bytes(16 * 2**20 + 1))
        await cluster.create_log("there", replicas=1)
        large = cluster.transaction()
        for _ in range(3):
            large.append("there", bytes(12 * 2**20))
        large.append("missing", b"x")
        with pytest.raises(errors.InvalidArgument, match=r"3 records of .* do not fit"):
            await large.commit()
        assert await values(cluster, "there") == []
        both = cluster.transaction()
        both.append("there", b"x")
        both.append("missing", b"x")
        with pytest.raises(errors.NotFound, match="missing"):
            await both.commit()
        assert await values(cluster, "there") == []
        await cluster.log("there").append(b"first", expected_tail=0)  # what failed is no entry
        await cluster.transaction().commit()  # of nothing


async def test_a_transaction_with_a_missing_log_leaves_nothing_behind() -> None:
    async with LocalCluster(nodes=1) as cluster:
        await cluster.create_log("there", replicas=1)
        both = cluster.transaction()
        both.append("there", b"x")
        both.append("missing", b"x")
        with pytest.raises(errors.NotFound, match="there is no log 'missing'"):
            await both.commit()
        assert [log.name for log in await cluster.logs()] == ["there"], "no log of decisions either"


async def test_the_log_of_decisions_is_switched_and_has_to_be_chained() -> None:
    async with LocalCluster(nodes=2) as cluster:
        for name in ("a", "b"):
            await cluster.create_log(name, replicas=1)

        async def both(value: bytes) -> None:
            async with cluster.transaction() as transaction:
                transaction.append("a", value)
                transaction.append("b", value)

        await both(b"1")
        await cluster.switch_log("loomlog.transactions", replicas=1)
        await both(b"2")
        await cluster.switch_log("loomlog.transactions", protocol="ordered")
        await cluster.log("loomlog.transactions").describe()
        with pytest.raises(errors.InvalidArgument, match=r"loom log switch .* --protocol chained"):
            await both(b"3")
        await cluster.switch_log("loomlog.transactions", protocol="chained")
        await both(b"4")
        for name in ("a", "b"):
            assert await values(cluster, name) == [b"1", b"2", b"4"]


async def test_a_transaction_is_given_up_in_time_while_decisions_wait() -> None:
    local = LocalCluster(nodes=2)
    async with local as cluster:
        await cluster.create_log("a", replicas=1)
        decisions = await cluster.create_log("loomlog.transactions", "chained", replicas=2)
        async with cluster.transaction() as first:
            first.append("a", b"x")
        await local.stop_node(2)

        async def condition() -> str:
            return (await decisions.describe()).streams[0].condition

        await until(condition, lambda said: "needs 2" in said)
        waiting = cluster.transaction(timeout_s=0.5)
        waiting.append("a", b"y")
        async with asyncio.timeout(10):
            with pytest.raises(errors.Unavailable, match=r"no place .* within 0.5 s: .*needs 2"):
                await waiting.commit()


async def test_decisions_may_be_trimmed_after_the_entries_that_they_are_about() -> None:
    servers = LocalCluster(nodes=1)
    async with servers as cluster:
        for name in ("trimmed", "whole"):
            await cluster.create_log(name, replicas=1)
        async with cluster.transaction() as first:
            first.append("trimmed", b"first")
            first.append("whole", b"first")
        await cluster.log("trimmed").trim(first.positions["trimmed"][0].position)
        decisions = cluster.log("loomlog.transactions")
        await decisions.set_retention("8d")
        await decisions.trim(await decisions.tail())
        async with cluster.transaction() as second:
            second.append("trimmed", b"second")
            second.append("whole", b"second")
        async with await connect(servers.address) as other:  # one that remembers no decisions
            assert (await other.log("trimmed").read(2)).value == b"second"
            assert [entry.value async for entry in other.log("trimmed").subscribe(2, 2)] == [
                b"second"
            ]
            with pytest.raises(errors.DataLoss, match="position 1 was trimmed"):
                await other.log("whole").read(1)
            with pytest.raises(errors.DataLoss, match="continue at 2"):
                await anext(other.log("whole").subscribe(1, 2))
            assert await values(other, "whole") == [Gap(1, 1, "dataloss"), b"second"]


async def test_decisions_are_trimmed_by_themselves_when_no_entry_needs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marked, real = asyncio.Event(), decisions.DecisionTrimmer._note

    async def note(self: Any, log_id: int, through: int) -> None:
        await real(self, log_id, through)
        if through and log_id == self._catalog.log(DECISIONS_LOG).log_id:
            marked.set()

    monkeypatch.setattr(decisions.DecisionTrimmer, "_note", note)
    servers = LocalCluster(nodes=2, retention_interval_s=0.02)
    async with servers as cluster:
        for name in (*PROTOCOLS, "other"):
            await cluster.create_log(name, "ordered" if name == "other" else name, replicas=2)
        await cluster.log("other").append(b"kept for good")  # it takes no part
        async with begun(cluster, "first") as first:
            pass
        monkeypatch.setattr(decisions, "LATE_S", 0.0)  # no transaction is under way
        await marked.wait()
        log = cluster.log(DECISIONS_LOG)
        for protocol in PROTOCOLS[:2]:
            await cluster.log(protocol).trim(first.positions[protocol][1].position)
        async with begun(cluster, "second") as second:
            pass
        assert await log.head() == 1, "the copyset log still has the first one"
        await cluster.delete_log("copyset")
        await until(log.head, lambda head: head > 1)
        async with await connect(servers.address) as other:  # one that remembers no decisions
            for protocol in PROTOCOLS[:2]:
                [at, _] = second.positions[protocol]
                assert (await other.log(protocol).read(at.position)).value == b"second 1"
        for protocol in PROTOCOLS[:2]:
            await cluster.log(protocol).trim(second.positions[protocol][1].position)
        await until(log.is_empty)
        monkeypatch.undo()
        await cluster.create_log("copyset", "copyset", replicas=2)
        async with begun(cluster, "third") as third:
            pass
        for protocol in PROTOCOLS:
            at = third.positions[protocol][0]
            assert (await cluster.log(protocol).read(at.position)).value == b"third 1"


async def test_decisions_that_are_gone_with_their_log_are_lost_and_new_ones_are_made() -> None:
    """This is what happens if restored metadata does not know the log of decisions."""
    local = LocalCluster(3, sync="none")
    async with local as cluster, asyncio.timeout(60):
        log = await cluster.create_log("events", replicas=2)
        first = await log.append(b"first")
        async with cluster.transaction() as old:
            old.append("events", b"old")
        [lost] = old.positions["events"]
        async with await connect(local.address) as other:
            await other.delete_log(DECISIONS_LOG)
            with pytest.raises(errors.DataLoss, match="is gone with it: only a newer copy of the"):
                await other.log("events").read(lost.position)
            async with other.transaction() as unread:
                unread.append("events", b"other")
            with pytest.raises(errors.DataLoss, match="was trimmed, or the log was made again"):
                await other.log("events").read(lost.position)
            await other.delete_log(DECISIONS_LOG)
        async with cluster.transaction() as new:
            new.append("events", b"new")
        [there] = new.positions["events"]
        assert (await log.read(there.position)).value == b"new"
        assert (await log.read(first.position)).value == b"first"

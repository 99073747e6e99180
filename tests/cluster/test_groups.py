"""Consumer groups on real servers: sharing, leaving, commits, fences, commands."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from typing import Any

import pytest
from cli_rig import Loom
from poll import until
from proxy import Proxy

import loomlog
from loomlog import errors
from loomlog.columns.key_shards import shard_of_key
from loomlog.testing import LocalCluster
from loomlog.types import Entry

KEYS = [b"key %d" % number for number in range(20)]
SESSION_S = 60.0  # of members that nobody may replace, however slow the machine is


async def take(group: loomlog.Group, count: int) -> list[Entry]:
    taken: list[Entry] = []
    async with asyncio.timeout(30):
        async for entry in group:
            taken.append(entry)
            if len(taken) == count:
                break
    return taken


async def append(log: loomlog.Log, rounds: int, first: int = 0) -> None:
    """Append the next numbers for each key."""
    for number in range(first, first + rounds):
        await log.append_many([b"%d" % number] * len(KEYS), KEYS)


class Worker:
    """Consumes and commits until it is stopped."""

    def __init__(self, log: loomlog.Log, name: str, seen: list[tuple[str, Entry]]) -> None:
        self._group = log.group("g", shards=8, member=name, session_timeout_s=SESSION_S)
        self._name = name
        self._seen = seen

    async def __aenter__(self) -> loomlog.Group:
        await self._group.__aenter__()
        self._task = asyncio.create_task(self._run())
        return self._group

    async def _run(self) -> None:
        async for entry in self._group:
            self._seen.append((self._name, entry))
            await self._group.commit()

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._group.__aexit__(None, None, None)


async def test_members_share_a_log_that_is_switched_in_order_and_once() -> None:
    seen: list[tuple[str, Entry]] = []
    async with LocalCluster(nodes=1) as cluster, AsyncExitStack() as workers:
        log = await cluster.create_log("events", replicas=1)
        await append(log, 3)
        a = await workers.enter_async_context(Worker(log, "a", seen))
        b = await workers.enter_async_context(Worker(log, "b", seen))
        await until(lambda: len(a.shards) == len(b.shards) == 4)
        await cluster.switch_log("events", protocol="chained")
        await append(log, 3, first=3)
        await until(lambda: len(seen) == 6 * len(KEYS))
        c = log.group("g", member="c", session_timeout_s=SESSION_S)
        async with c:
            await until(lambda: len(c.shards) == 2)
            await append(log, 1, first=6)
            mine = [key for key in KEYS if shard_of_key(key, 8) in c.shards]
            seen += [("c", entry) for entry in await take(c, len(mine))]
            await c.commit()
        await until(lambda: len(a.shards | b.shards) == 8)
        await until(lambda: len(seen) == 7 * len(KEYS))
    by_key = defaultdict(list)
    for _, entry in seen:
        by_key[entry.key].append(entry.value)
    assert by_key == {key: [b"%d" % number for number in range(7)] for key in KEYS}
    assert {name for name, _ in seen} == {"a", "b", "c"}


async def test_what_was_not_committed_comes_again() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        await append(log, 1)
        async with log.group("g", shards=3) as group:
            first = await take(group, 4)
            await group.commit()
            rest = await take(group, 16)
        async with log.group("g") as group:
            assert await take(group, 16) == rest
            assert [entry.position for entry in first + rest] == list(range(1, 21))
        with pytest.raises(errors.InvalidArgument, match="has 3 shards, which cannot be changed"):
            await log.group("g", shards=4).__aenter__()


async def fail_at(log: loomlog.Log, position: int) -> None:
    async with log.group("g", commit_every_s=10) as group:
        async for entry in group:
            1 // (entry.position - position)


async def test_periodic_commits_leave_out_the_entry_that_failed() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        await append(log, 1)
        with pytest.raises(ZeroDivisionError):
            await fail_at(log, 5)
        assert (await log.group("g").describe()).position == 4
        async with log.group("g", commit_every_s=0.1) as group:
            taken = asyncio.create_task(take(group, 17))
            info = await until(log.group("g").describe, lambda info: info.position == 20)
            assert info.behind == 0
            await log.append(b"one more")
            (shown,) = (await cluster.status()).logs[0].groups
            assert (shown.name, shown.members) == ("g", 1)
            assert shown.behind == (1,) * 16
            taken.cancel()


SUSPENDED = """
import asyncio, sys, loomlog

async def main():
    async with await loomlog.connect(sys.argv[1]) as cluster:
        async with cluster.log("events").group("g", session_timeout_s=1.0) as group:
            async for entry in group:
                print(entry.position, flush=True)
                await asyncio.to_thread(sys.stdin.readline)
                await group.commit()

asyncio.run(main())
"""


async def test_a_suspended_member_is_replaced_and_cannot_commit() -> None:
    local = LocalCluster(nodes=1)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await append(log, 1)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SUSPENDED, local.address),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"1\n"
        os.kill(process.pid, signal.SIGSTOP)
        async with log.group("g", session_timeout_s=1.0) as group:
            assert [entry.position for entry in await take(group, 20)] == list(range(1, 21))
            await group.commit()
        os.kill(process.pid, signal.SIGCONT)
        _, error = await process.communicate(b"\n")
        assert process.returncode == 1
        assert b"errors.Fenced: member 0.1 was replaced" in error.strip().splitlines()[-1]
        assert b"its session timeout is 1 s" in error.strip().splitlines()[-1]
        assert (await log.group("g").describe()).position == 20


async def test_a_member_that_is_cut_off_hands_out_nothing_that_others_have_got() -> None:
    local = LocalCluster(nodes=1)
    async with local as cluster, Proxy() as proxy:
        proxy.target = local.address
        log = await cluster.create_log("events", replicas=1)
        await append(log, 1)
        async with (
            await loomlog.connect(proxy.address) as other,
            other.log("events").group("g", session_timeout_s=1.0) as cut_off,
        ):
            entries = aiter(cut_off)
            assert (await anext(entries)).position == 1
            proxy.requests_pass = False
            async with log.group("g", session_timeout_s=1.0) as group:
                await take(group, 20)
                await group.commit()
            proxy.heal()
            why = (
                "could not renew its lease for .* s, and its session timeout is 1 s: join it again"
            )
            with pytest.raises(errors.Fenced, match=why):
                await anext(entries)


async def test_a_member_that_blocks_its_event_loop_is_told_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Run the member in a loop of its own, so that the servers are not blocked."""
    blocks, replaced = threading.Event(), threading.Event()

    async def member(address: str) -> None:
        async with (
            await loomlog.connect(address) as cluster,
            cluster.log("events").group("g", session_timeout_s=1.0) as group,
        ):
            async for _ in group:
                blocks.set()
                assert replaced.wait(60)
                await group.commit()

    local = LocalCluster(nodes=1)
    async with local as cluster:
        log = await cluster.create_log("events", replicas=1)
        await append(log, 1)
        task = asyncio.create_task(asyncio.to_thread(asyncio.run, member(local.address)))
        assert await asyncio.to_thread(blocks.wait, 60)
        async with log.group("g", session_timeout_s=1.0) as group:
            assert [entry.position for entry in await take(group, 20)] == list(range(1, 21))
            longer_s = time.monotonic() + 1.0  # than a session, whenever the lease was renewed
            await until(lambda: time.monotonic() > longer_s)
        replaced.set()
        with pytest.raises(
            errors.Fenced,
            match=r"because the event loop stood still for .* s, and its session timeout is 1 s \("
            r"run long work in a thread, as asyncio.to_thread does, or set session_timeout_s\)",
        ):
            await task
    warnings = [r.getMessage() for r in caplog.records if r.name.endswith("groups.membership")]
    assert any("the event loop stood still for" in warning for warning in warnings)


@pytest.mark.parametrize("kind", ["group", "queue"])
async def test_a_blocking_member_keeps_its_place_while_its_code_runs(kind: str) -> None:
    """The lease is renewed in the client's thread, however long the program takes."""

    def story(address: str) -> None:
        with loomlog.connect_sync(address) as cluster:
            log = cluster.log("events")
            member: Any = getattr(log, kind)("g", session_timeout_s=3.0)
            with member:
                held = next(iter(member))
                renewals, left_s = 0, 0.0
                while renewals < 6:  # more than a session, in which this thread did nothing else
                    (lease,) = cluster.leases(f"{kind}/events/g/")
                    renewals += lease.left_s > left_s
                    left_s = lease.left_s
                    time.sleep(0.01)
                if kind == "group":
                    member.commit()
                else:
                    held.ack()

    local = LocalCluster(nodes=1)
    async with local as cluster:
        await append(await cluster.create_log("events", replicas=1), 1)
        await asyncio.to_thread(story, local.address)


async def test_commands() -> None:
    def story(loom: Loom) -> None:
        tail = ("tail", "events", "--group", "printer")
        assert loom.says(*tail, "-n", "2") == "1\n2\n"
        (found,) = loom.json("group", "list")
        assert (found["log"], found["name"], found["position"]) == ("events", "printer", 2)
        assert (found["behind"], found["members"]) == (1, [])
        assert "nobody" in loom.says("group", "describe", "events", "printer")
        reset = loom.json("group", "reset", "events", "printer", "--to", "3", "--yes")
        assert {shard["position"] for shard in reset["shards"]} == {2}
        assert loom.says(*tail, "-n", "1") == "3\n"
        assert loom.json("group", "delete", "events", "printer", "--yes")["deleted"] == "printer"

    servers = LocalCluster(nodes=1)
    async with servers as cluster:
        log = await cluster.create_log("events", replicas=1)
        await log.append_many([b"1", b"2", b"3"])
        await asyncio.to_thread(story, Loom(servers.address))


async def test_members_are_in_the_way_of_operators_and_go_with_their_log() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        await append(log, 1)
        with pytest.raises(errors.NotFound, match="no group 'g'"):
            await log.group("g").describe()
        async with log.group("g", member="ann"):
            with pytest.raises(errors.Conflict, match=r"has members \(ann\): stop them"):
                await log.group("g").reset("latest")
            with pytest.raises(errors.Conflict, match="stop them, then delete it"):
                await log.group("g").delete()
        assert (await log.group("g").reset("latest")).behind == 0
        await cluster.delete_log("events")
        assert not await cluster.registers("group/")
        for of_log in (log.groups, log.queues):
            with pytest.raises(errors.NotFound, match="there is no log 'events'"):
                await of_log()


async def test_without_an_event_loop() -> None:
    def story(address: str) -> None:
        with loomlog.connect_sync(address) as cluster:
            log = cluster.log("events")
            with log.group("g", shards=4) as group:
                assert group.shards == {0, 1, 2, 3}
                for entry in group:
                    group.commit()
                    if entry.position == 20:
                        break
            assert log.groups()["g"].position == 20
            with pytest.raises(errors.InvalidArgument, match="join group 'g' first"):
                log.group("g").commit()

    local = LocalCluster(nodes=1)
    async with local as cluster:
        await append(await cluster.create_log("events", replicas=1), 1)
        await asyncio.to_thread(story, local.address)


async def test_a_task_that_waits_for_entries_ends_when_its_member_leaves() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("events", replicas=1)
        for member in (log.group("g"), log.queue("q")):
            async with member:
                waiting = asyncio.ensure_future(anext(aiter(member)))
                await asyncio.sleep(0)
            with pytest.raises(errors.Fenced, match="because it has left: join it again"):
                async with asyncio.timeout(10):
                    await waiting


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"shards": 0}, "shards must be a number from 1 to 1024, not 0"),
        ({"shards": True}, "shards must be a number"),
        ({"session_timeout_s": 0.1}, "session_timeout_s must be seconds from 0.5 to 3600"),
        ({"commit_every_s": "x"}, "commit_every_s must be seconds"),
        ({"member": ""}, "member must be a text of 1 to 100 printable characters, not ''"),
        ({"member": "\x1b[31m"}, r"100 printable characters, not '\\x1b\[31m'"),
    ],
)
async def test_bad_arguments(options: dict[str, object], why: str) -> None:
    async with LocalCluster(nodes=1) as cluster:
        with pytest.raises(errors.InvalidArgument, match=why):
            cluster.log("events").group("g", **options)  # type: ignore[arg-type]
        for name in ("a/b", "", "a\nb", "g" * 101, 7):
            with pytest.raises(errors.InvalidArgument, match="100 printable characters, no slash"):
                cluster.log("events").group(name)  # type: ignore[arg-type]


async def test_logs_and_groups_may_have_the_longest_names() -> None:
    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("l" * 200, replicas=1)
        await log.append(b"1")
        name = "g" * 100
        async with log.group(name) as group:
            await take(group, 1)
            await group.commit()
        async with log.queue(name) as queue:
            async for job in queue:
                await job.ack()
                break
        await log.checkpoint(name).set(1)
        assert (
            [*await log.groups()] == [*await log.queues()] == [*await log.checkpoints()] == [name]
        )


async def test_others_run_while_a_consumer_awaits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that renews the lease is among the others."""
    monkeypatch.setattr("loomlog.client.groups.group._TURN_S", 0.0)
    turns = 0

    async def run() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with LocalCluster(nodes=1) as cluster:
        log = await cluster.create_log("jobs", replicas=1)
        await log.append_many([b""] * 1000)
        async with log.group("busy") as group:
            others = asyncio.create_task(run())
            async for entry in group:
                if entry.position == 1:
                    turns = 0
                elif entry.position == 1000:
                    break
            others.cancel()
        assert turns >= 4

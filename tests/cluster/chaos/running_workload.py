"""Writers and readers that go on whatever happens, and the proof at the end."""

from __future__ import annotations

import asyncio
from itertools import count

import loomlog
from loomlog.client.cluster import Cluster
from loomlog.client.log import Log
from loomlog.errors import AppendUnknown, LoomError
from loomlog.testing import History, check
from loomlog.wire.info import StreamInfo

HEAL_S = 60.0
REPLICAS = 3


class Workload:
    """Use as a context manager: writers and readers run inside; leaving it proves the history."""

    def __init__(
        self,
        address: str,
        *,
        protocol: str = "ordered",
        streams: int = 2,
        writers: int = 6,
        retention: str | None = None,
        min_replicas: int | None = None,
        tls: str | None = None,
    ) -> None:
        self._address = address
        self._tls = tls
        self._protocol = protocol
        self._streams = streams
        self._writers = writers
        self._retention = retention
        self._min_replicas = min_replicas
        self._ops = count()
        self._tasks: list[asyncio.Task[None]] = []
        self._writing = True
        self._acked = 0
        self._progress = asyncio.Condition()
        self.history = History()
        self.unknown = 0
        self.failures: list[LoomError] = []  # of appends that certainly did not happen
        self.cluster: Cluster
        self.log: Log

    async def __aenter__(self) -> Workload:
        self.cluster = await loomlog.connect(self._address, tls=self._tls)
        self.log = await self.cluster.create_log(
            "chaos",
            protocol=self._protocol,
            streams=self._streams,
            replicas=REPLICAS,
            retention=self._retention,
            min_replicas=self._min_replicas,
        )
        for writer in range(self._writers):
            self._tasks.append(asyncio.create_task(self._write(f"writer-{writer}")))
        for reader in range(2):
            self._tasks.append(asyncio.create_task(self._follow(f"reader-{reader}")))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.acked(50)
                await self._prove()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.cluster.close()

    async def acked(self, more: int) -> None:
        """Wait until `more` appends are acknowledged; raise the error of a writer that crashed."""
        goal = self._acked + more
        async with asyncio.timeout(HEAL_S), self._progress:
            await self._progress.wait_for(lambda: self._acked >= goal or self._broken())
        self._raise_broken()

    async def append_s(self) -> float:
        """Return how long an append that begins now takes."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(HEAL_S):
            while not await self._append("probe"):
                pass
        return loop.time() - began_s

    async def usual_s(self) -> float:
        """Return how long the slowest of some appends takes: what a step costs on this machine now,
        which may have more to do than this test."""
        return max([await self.append_s() for _ in range(20)])

    async def switched(self, *, protocol: str | None = None, streams: int | None = None) -> None:
        """Switch the log; repeat the request until it succeeds."""
        async with asyncio.timeout(HEAL_S):
            while True:
                try:
                    await self.cluster.switch_log("chaos", protocol=protocol, streams=streams)
                except LoomError:
                    await asyncio.sleep(0.1)
                else:
                    return

    async def running(self) -> None:
        """Wait until every stream of the active segment runs again, with all its replicas."""
        async with asyncio.timeout(HEAL_S):
            while not all(map(_is_whole, await self.streams())):  # noqa: ASYNC110 - only asked
                await asyncio.sleep(0.05)

    async def streams(self) -> tuple[StreamInfo, ...]:
        """Return the streams of the active segment; ask until there is an answer."""
        while True:
            try:
                return (await self.log.describe()).active_streams
            except LoomError:
                await asyncio.sleep(0.05)

    # ---- writers and readers

    async def _write(self, client: str) -> None:
        while self._writing:
            await self._append(client)

    async def _append(self, client: str) -> bool:
        op = next(self._ops)
        values = [f"{op}.{i}".encode() for i in range(1 + op % 5)]
        self.history.invoke(client, op, values)
        try:
            positions = await self.log.append_many(values)
        except AppendUnknown:
            self.unknown += 1
            self.history.unknown(op)
        except LoomError as error:
            self.failures.append(error)
            self.history.fail(op)
        else:
            self.history.ack(op, positions)
            async with self._progress:
                self._acked += 1
                self._progress.notify_all()
            return True
        return False

    async def _follow(self, reader: str) -> None:
        self.history.reader(reader)
        async for item in self.log.subscribe(gaps=True):
            self.history.see_entries(reader, [item])

    def _broken(self) -> bool:
        return any(task.done() and task.exception() for task in self._tasks)

    def _raise_broken(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    # ---- the proof

    async def _prove(self) -> None:
        self._writing = False
        await asyncio.wait_for(asyncio.gather(*self._tasks[: self._writers]), HEAL_S)
        self._raise_broken()
        tail = await self.log.tail()
        for number in range(2):
            name = f"final-{number}"
            self.history.reader(name)
            async with asyncio.timeout(HEAL_S):
                async for item in self.log.subscribe(stop=tail, gaps=True):
                    self.history.see_entries(name, [item])
            self.history.final(name)
        violations = check(self.history)
        assert not violations, "\n".join(map(str, violations[:10]))


def _is_whole(stream: StreamInfo) -> bool:
    return stream.state == "running" and all(len(chain) == REPLICAS for chain in stream.chains)

"""A metadata repository whose answers a test scripts, over a real socket, in a separate thread.

It holds one status. Each question after its state consumes one step of the script, so that a
command that waits sees things happen, and no clock decides how fast.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Self

from loomlog.errors import LoomError
from loomlog.testing.ports import free_address
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Route, Server, Service


class ScriptedVmr:
    """`with ScriptedVmr() as vmr`: two nodes, a log `events` with stream 7 on both of them."""

    def __init__(self) -> None:
        self.status = pb.Status(cluster_id="scripted", rounds=3, uptime_s=1.5)
        for number in (1, 2):
            self.add_node(number)
        log = self.status.logs.add(log_id=1, name="events", protocol="ordered", replicas=2, head=1)
        log.tail = 1000
        log.segments.add(loglet_id=1, protocol="ordered", start=1, streams=1, replicas=2)
        self.stream = log.streams.add(
            log_stream_id=7,
            loglet_id=1,
            protocol="ordered",
            state=pb.RUNNING,
            seal_epoch=1,
            entries=1000,
        )
        self.put_on(1, 2)
        self.answer = pb.Changed(done="it is done", next="it goes on")
        self.error: LoomError | None = None
        self.changes: list[Any] = []  # ChangeStream and its likes, as they came
        self.steps: deque[Callable[[], None]] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        codec = Codec("vmr", cluster_id="scripted")
        routes: dict[str, Route] = {
            "get_status": self._status,
            "list_logs": self._logs,
            "describe_log": self._describe,
            "change_stream": self._change,
            "change_node": self._change,
            "change_metadata": self._change,
            "switch_log": self._change,
        }
        self._server = Server(codec, Service(codec, routes))

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._server.start(free_address()))
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def address(self) -> str:
        return self._server.address

    # ---- the cluster

    def add_node(self, number: int) -> pb.NodeStatus:
        return self.status.nodes.add(
            storage_node_id=number,
            address=f"127.0.0.1:{7400 + number}",
            alive=True,
            sync_mode="always",
            replicas=1,
        )

    def put_on(self, *nodes: int) -> None:
        """The replicas of stream 7 are here."""
        del self.stream.replicas[:]
        for number in nodes:
            self.stream.replicas.add(storage_node_id=number, address=f"127.0.0.1:{7400 + number}")
        for node in self.status.nodes:
            node.replicas = int(node.storage_node_id in nodes)

    def then(self, step: Callable[[], None]) -> None:
        """Do this before the next request is answered."""
        self.steps.append(step)

    # ---- answers

    def _step(self) -> None:
        if self.changes and self.steps:
            self.steps.popleft()()

    def _status(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        self._step()
        connection.send(pb.Frame(id=frame.id, reply=True, status=self.status))

    def _logs(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        self._step()
        logs = pb.LogList(logs=self.status.logs)
        connection.send(pb.Frame(id=frame.id, reply=True, log_list=logs))

    def _describe(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        connection.send(pb.Frame(id=frame.id, reply=True, log=self.status.logs[0]))

    def _change(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        self._step()
        self.changes.append(getattr(frame, frame.WhichOneof("body")))
        if self.error is not None:
            raise self.error
        connection.send(pb.Frame(id=frame.id, reply=True, changed=self.answer))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

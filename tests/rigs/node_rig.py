"""Real storage nodes with real files and sockets, and a metadata repository that a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from loomlog.batch import build, read_header, split
from loomlog.config import NodeSettings, StorageSettings
from loomlog.errors import Corrupt, LoomError
from loomlog.limits import KIB
from loomlog.net.endpoints import connect
from loomlog.node import StorageNode
from loomlog.testing.ports import free_address
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Frame, Server, Service

STREAM = 1
STAMP, BIRTH = 0x5EED, 0xB1
PATIENCE_S = 30.0  # never waited for in full, unless something is broken
SMALL_FILES = StorageSettings(data_file_bytes=256 * KIB, commit_file_bytes=8 * KIB)


class PlayedMetadata(Service):
    """Takes reports, commits what a lone replica has written, and orders what the test wants."""

    def __init__(self) -> None:
        codec = Codec("vmr", cluster_id="test")
        super().__init__(
            codec,
            {
                "register": self._register,
                "report": self._report,
                "report_chain": self._report_chain,
                "hold_log": self._hold_log,
            },
        )
        self.server = Server(codec, self)
        self.nodes: dict[int, Connection] = {}
        self.registrations: dict[int, pb.Register] = {}
        self.reports: dict[tuple[int, int], pb.LogStreamUncommitReport] = {}
        self.commits_on: set[int] = set()  # nodes that are the only replica of what they hold
        self.high_watermark = 0
        self.forgetful: list[pb.ChainReplicaRef] = []  # said to each node that registers
        self.loglet_bytes = 0  # as reported last
        self.chains_reported: list[pb.ReportChain] = []
        self.holds: list[asyncio.Future[None]] = []  # asked for; the test answers them
        self._happened = asyncio.Event()

    async def _register(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        node = frame.register.storage_node_id
        self.nodes[node] = connection
        self.registrations[node] = frame.register
        self._take(node, frame.register.uncommit_reports)
        answer = pb.Registered(cluster_id="test", cluster_secret="secret", forgetful=self.forgetful)
        return pb.Frame(registered=answer)

    def _report(self, connection: Connection, frame: Frame, payload: memoryview) -> None:
        self.loglet_bytes = frame.report.loglet_bytes
        self._take(frame.report.storage_node_id, frame.report.uncommit_reports)

    async def _report_chain(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Frame:
        self.chains_reported.append(frame.report_chain)
        self._happened.set()
        return pb.Frame(done=pb.Done())

    async def _hold_log(self, connection: Connection, frame: Frame, payload: memoryview) -> Frame:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.holds.append(answered)
        self._happened.set()
        await answered
        return pb.Frame(done=pb.Done())

    def _take(self, node: int, reports: Any) -> None:
        for report in reports:
            self.reports[node, report.log_stream_id] = report
            if node in self.commits_on and report.uncommitted_llsn_length:
                self._commit(node, report)
        self._happened.set()

    def _commit(self, node: int, report: pb.LogStreamUncommitReport) -> None:
        """Ten GLSNs of other streams come in front of every commit."""
        length = report.uncommitted_llsn_length
        glsn = report.high_watermark + 11
        self.high_watermark = glsn + length - 1
        result = pb.LogStreamCommitResult(
            log_stream_id=report.log_stream_id,
            committed_glsn_offset=glsn,
            committed_glsn_length=length,
            high_watermark=self.high_watermark,
            prev_high_watermark=report.high_watermark,
            committed_llsn_offset=report.uncommitted_llsn_offset,
            seal_epoch=report.seal_epoch,
        )
        request = pb.CommitRequest(storage_node_id=node, commit_results=[result])
        self.nodes[node].send(pb.Frame(commit=request))

    async def order(self, node: int, frame: pb.Frame) -> Any:
        answer, _ = await self.nodes[node].request(frame, timeout_s=PATIENCE_S)
        return answer

    async def until(self, true: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                self._happened.clear()
                await self._happened.wait()

    def committed(self, node: int) -> int:
        """The last LLSN that the node has reported as committed."""
        report = self.reports.get((node, STREAM))
        return report.uncommitted_llsn_offset - 1 if report else 0


class Nodes:
    """`async with Nodes(path, 2) as nodes:` starts them."""

    def __init__(
        self,
        directory: Path,
        count: int,
        storage: StorageSettings = SMALL_FILES,
        volumes: int = 1,
    ) -> None:
        self._directory = directory
        self._count = count
        self._storage = storage
        self.volumes = volumes
        self._listen: dict[int, str] = {}
        self._client = Codec("client")
        self._clients: dict[int, Connection] = {}
        self._sequence = 0
        self.metadata = PlayedMetadata()
        self.nodes: dict[int, StorageNode] = {}

    async def __aenter__(self) -> Self:
        await self.metadata.server.start(free_address())
        for node in range(1, self._count + 1):
            await self.start(node)
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in list(self.nodes):
            await self.stop(node)
        await self.metadata.server.stop()
        await self.metadata.stop()

    async def start(self, node: int) -> None:
        volumes = [self._directory / f"vsn-{node}{'+' * more}" for more in range(self.volumes)]
        for volume in volumes:
            volume.mkdir(exist_ok=True)
        self.nodes[node] = StorageNode(
            NodeSettings(
                node_id=node,
                cluster_id="test",
                volumes=tuple(map(str, volumes)),
                metadata=(self.metadata.server.address,),
                listen=self._listen.get(node) or free_address(),
                storage=self._storage,
            )
        )
        await self.nodes[node].start()
        self._listen[node] = self.nodes[node].address
        await self.nodes[node].registered()

    async def stop(self, node: int) -> None:
        client = self._clients.pop(node, None)
        if client is not None:
            client.close()
        await self.nodes.pop(node).stop()

    async def restart(self, node: int) -> None:
        await self.stop(node)
        await self.start(node)

    def replica(self, node: int) -> pb.Replica:
        return pb.Replica(storage_node_id=node, address=self._listen[node])

    # ---- orders

    async def add(
        self, node: int, log_id: int = 1, *, stamp: int = STAMP, birth: int = BIRTH
    ) -> None:
        order = pb.AddLogStream(log_id=log_id, log_stream_id=STREAM, stamp=stamp, birth=birth)
        await self.metadata.order(node, pb.Frame(add_log_stream=order))

    async def seal(self, node: int, epoch: int, last_llsn: int) -> pb.SealResponse:
        order = pb.Seal(
            log_stream_id=STREAM, seal_epoch=epoch, last_committed_llsn=last_llsn, stamp=STAMP
        )
        answer = await self.metadata.order(node, pb.Frame(seal=order))
        response: pb.SealResponse = answer.seal_response
        return response

    async def unseal(self, node: int, epoch: int, *replicas: int) -> None:
        order = pb.Unseal(
            log_stream_id=STREAM, seal_epoch=epoch, replicas=[self.replica(n) for n in replicas]
        )
        await self.metadata.order(node, pb.Frame(unseal=order))

    async def trim(self, node: int, glsn: int, stamp: int = STAMP) -> None:
        order = pb.TrimLogStream(log_stream_id=STREAM, glsn=glsn, stamp=stamp)
        await self.metadata.order(node, pb.Frame(trim_log_stream=order))

    async def remove(self, node: int, *, stamp: int = STAMP, birth: int = 0) -> None:
        order = pb.RemoveLogStream(log_stream_id=STREAM, stamp=stamp, birth=birth)
        await self.metadata.order(node, pb.Frame(remove_log_stream=order))

    async def ask_to_copy(
        self, source: int, destination: int, epoch: int, bytes_per_s: int = 0
    ) -> pb.SynchroniseResponse:
        order = pb.Synchronise(
            log_stream_id=STREAM,
            seal_epoch=epoch,
            destination=self.replica(destination),
            bytes_per_s=bytes_per_s,
        )
        answer = await self.metadata.order(source, pb.Frame(synchronise=order))
        response: pb.SynchroniseResponse = answer.synchronise_response
        return response

    async def copy(self, source: int, destination: int, epoch: int) -> pb.SynchroniseResponse:
        """Ask again and again until it is finished or has failed."""
        while True:
            progress = await self.ask_to_copy(source, destination, epoch)
            if progress.finished or progress.error:
                return progress

    async def scrub(self, node: int, *replicas: int) -> pb.ScrubResponse:
        start = True
        while True:
            order = pb.Scrub(
                log_stream_ids=[STREAM], start=start, replicas=[self.replica(n) for n in replicas]
            )
            answer = await self.metadata.order(node, pb.Frame(scrub=order))
            progress: pb.ScrubResponse = answer.scrub_response
            if progress.finished:
                return progress
            start = False
            await asyncio.sleep(0.001)

    # ---- a stream with entries

    async def run_alone(self, node: int, epoch: int = 1, last_llsn: int = 0) -> None:
        """The stream runs on this node only; what is written is committed at once."""
        self.metadata.commits_on.add(node)
        assert (await self.seal(node, epoch, last_llsn)).state == pb.STREAM_SEALED
        await self.unseal(node, epoch, node)

    async def append(self, node: int, epoch: int, count: int, size: int = 4000) -> int:
        """Append that many batches of ten entries; the last LLSN."""
        client = await self.client(node)
        answers = []
        for _ in range(count):
            self._sequence += 1
            body = (b"%d " % self._sequence * size)[:size]
            batch = build(
                body,
                codec=0,
                flags=0,
                count=10,
                raw_size=size,
                producer_id=7,
                sequence=self._sequence,
                min_timestamp_us=1,
                max_timestamp_us=2,
            )
            message = pb.Append(log_stream_id=STREAM, seal_epoch=epoch)
            answers.append(client.request(pb.Frame(append=message), [batch], timeout_s=PATIENCE_S))
        results = await asyncio.gather(*answers)
        return max(int(frame.appended.first_llsn) for frame, _ in results) + 9

    async def client(self, node: int) -> Connection:
        client = self._clients.get(node)
        if client is None or client.closed:
            client = await connect(self._listen[node], self._client, self)
            self._clients[node] = client
        return client

    async def read(self, node: int, glsn: int) -> list[int]:
        """The GLSNs of the batch that holds this one."""
        client = await self.client(node)
        question = pb.Frame(read=pb.Read(log_stream_id=STREAM, glsn=glsn))
        _, payload = await client.request(question)
        ((header, _),) = split(payload)
        return list(range(header.first_position, header.last_position + 1))

    async def read_stream(self, node: int, first_llsn: int, last_llsn: int) -> list[int]:
        """The GLSNs of these entries, by a subscription."""
        client = await self.client(node)
        found: dict[int, int] = {}
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_data(reply: Any, payload: memoryview) -> None:
            if isinstance(reply, LoomError):
                if not done.done():
                    done.set_exception(reply)
                return
            for header, _ in split(payload):
                for number in range(header.count):
                    found[header.first_llsn + number] = header.first_position + number
            if last_llsn in found and not done.done():
                done.set_result(None)

        question = pb.Subscribe(log_stream_id=STREAM, first_llsn=first_llsn, credit_bytes=1 << 40)
        request = client.call(pb.Frame(subscribe=question), (), on_data, many=True)
        async with asyncio.timeout(PATIENCE_S):
            await done
        client.forget(request)
        client.send(pb.Frame(cancel_subscription=pb.CancelSubscription(subscription_id=request)))
        return [found[llsn] for llsn in range(first_llsn, last_llsn + 1)]

    # ---- files

    def path(self, node: int) -> Path:
        return self._directory / f"vsn-{node}/cid=test/snid={node}/lsid={STREAM}"

    def data(self, node: int) -> dict[str, bytes]:
        """The data files by their names, as far as they hold data."""
        return {
            path.name: path.read_bytes().rstrip(b"\0")
            for path in sorted(self.path(node).glob("data/*.seg"))
        }

    def batches(self, node: int) -> dict[int, bytes]:
        """The stored batches by their first LLSNs, as far as they are sound."""
        found = {}
        for path in sorted(self.path(node).glob("data/*.seg")):
            content = path.read_bytes()
            offset = 0
            while offset < len(content):
                try:
                    header = read_header(content, offset)
                except Corrupt:
                    break
                found[header.first_llsn] = content[offset : offset + header.size]
                offset += header.size
        return found

    def flip(self, node: int, llsn: int, at: int = 1000) -> None:
        """Change one byte of the batch with this LLSN on disk."""
        for path in sorted(self.path(node).glob("data/*.seg")):
            content = path.read_bytes()
            offset = 0
            while offset < len(content):
                try:
                    header = read_header(content, offset)
                except Corrupt:
                    break
                if header.first_llsn <= llsn <= header.last_llsn:
                    with path.open("r+b") as file:
                        file.seek(offset + at)
                        file.write(bytes([content[offset + at] ^ 1]))
                    return
                offset += header.size
        raise AssertionError(f"no LLSN {llsn}")

    # ---- Handler

    def frame_received(
        self, connection: Connection, kind: str, frame: Frame, payload: memoryview
    ) -> None:
        pass

    def connection_closed(self, connection: Connection, error: LoomError) -> None:
        pass

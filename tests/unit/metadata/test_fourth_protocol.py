"""A protocol that is registered by a test: nothing in the metadata repository has to know it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from small_cluster import SmallCluster

from loomlog.core.conditions import Condition
from loomlog.core.segments import Segment, Successor
from loomlog.errors import InvalidArgument
from loomlog.metadata import registry
from loomlog.metadata.catalog.records import LogRecord
from loomlog.metadata.protocol import Answer, KeeperContext, ProtocolKeeper
from loomlog.types import Glsn, LogId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection


class TinyKeeper(ProtocolKeeper):
    """Keeps only the tails of its loglets, in memory. A request with a body appends one entry."""

    protocol: ClassVar[str] = "tiny"
    has_streams: ClassVar[bool] = False

    def __init__(self) -> None:
        self.tails: dict[LogId, Glsn] = {}
        self.trimmed: Glsn = 0

    @classmethod
    async def load(cls, context: KeeperContext) -> Self:
        return cls()

    async def make(self, log: LogRecord, successor: Successor) -> None:
        self.tails[successor.loglet] = 0

    async def begin(self, log: LogRecord, segment: Segment) -> bool:
        self.tails[segment.loglet] = segment.start - 1
        return True

    async def seal(self, log: LogRecord, segment: Segment) -> Glsn:
        return self.tails[segment.loglet]

    async def trim(self, log: LogRecord) -> None:
        self.trimmed = log.trimmed

    async def find_tail(self, log: LogRecord, segment: Segment) -> Glsn:
        return self.known_tail(log, segment)

    def known_tail(self, log: LogRecord, segment: Segment) -> Glsn:
        return self.tails[segment.loglet]

    def conditions(self, log: LogRecord) -> list[Condition]:
        return []

    def streams(self, log: LogRecord) -> list[pb.LogStream]:
        mine = [s for s in log.segments if s.settings.protocol == self.protocol]
        return [pb.LogStream(loglet_id=s.loglet, protocol=self.protocol) for s in mine]

    def requests(self) -> Mapping[str, Answer]:
        return {"protocol_message": self._append}

    async def _append(self, connection: Connection, frame: pb.Frame) -> pb.Frame:
        loglet = int(frame.protocol_message.body)
        self.tails[loglet] += 1
        return pb.Frame(done=pb.Done())


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.KEEPERS, "tiny", TinyKeeper.load)


async def append(cluster: SmallCluster, loglet: int) -> None:
    message = pb.ProtocolMessage(protocol="tiny", body=str(loglet).encode())
    await cluster.client.ask(pb.Frame(protocol_message=message))


async def create(cluster: SmallCluster, **settings: int) -> pb.Log:
    numbers: dict[str, Any] = {"streams": 1, "replicas": 1} | settings
    request = pb.CreateLog(name="events", protocol="tiny", **numbers)
    return (await cluster.client.ask(pb.Frame(create_log=request))).log


async def test_a_log_of_it_is_created_used_trimmed_and_deleted(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await cluster.add_nodes(1)
        log = await create(cluster)
        assert (log.protocol, [s.protocol for s in log.streams]) == ("tiny", ["tiny"])
        for _ in range(3):
            await append(cluster, log.log_id)
        assert await cluster.bounds() == (1, 3)
        assert await cluster.trim(2) == (3, 3)
        await cluster.delete()
        assert await cluster.names() == []


async def test_a_log_is_switched_to_it_and_back(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await cluster.add_nodes(1)
        await cluster.create(replicas=1)
        for protocol in ("tiny", "ordered"):
            request = pb.SwitchLog(name="events", protocol=protocol)
            await cluster.client.ask(pb.Frame(switch_log=request))
            active = (await cluster.describe()).segments[-1]
            assert active.protocol == protocol
            if protocol == "tiny":
                await append(cluster, active.loglet_id)
        log = await cluster.describe()
        # The first segment was empty.
        assert [(s.protocol, s.start) for s in log.segments] == [("tiny", 1), ("ordered", 2)]
        assert [s.protocol for s in log.streams] == ["ordered", "tiny"]


async def test_what_it_does_not_offer_is_refused(tmp_path: Path) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await cluster.add_nodes(1)
        with pytest.raises(InvalidArgument, match="'tiny' has one stream"):
            await create(cluster, streams=2)
        with pytest.raises(InvalidArgument, match="'tiny' has no nodesets"):
            await create(cluster, nodeset=1)
        await create(cluster)
        with pytest.raises(InvalidArgument, match="'tiny', which has no streams to add"):
            await cluster.change(pb.ChangeStream.ADD, log="events")


async def test_a_log_whose_protocol_is_not_registered_is_not_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SmallCluster(tmp_path) as cluster:
        await cluster.add_nodes(1)
        await create(cluster)
        monkeypatch.delitem(registry.KEEPERS, "tiny")
        await cluster.restart_repository()
        with pytest.raises(InvalidArgument, match="there is no protocol 'tiny'"):
            await cluster.describe()

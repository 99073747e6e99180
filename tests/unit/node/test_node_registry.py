"""A node runs every protocol in its table, also one that only a test knows."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path

import pytest
from node_rig import Nodes

from loomlog.core.conditions import Condition, Kind
from loomlog.errors import InvalidArgument
from loomlog.node.protocol import NodeContext, NodeProtocol
from loomlog.node.registry import PROTOCOLS
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.link import Connection, Frame


class Counter(NodeProtocol):
    """Counts requests, and forgets them with the process."""

    def __init__(self, context: NodeContext) -> None:
        self._count = 0
        self.events: list[str] = []

    async def _answer(self) -> Frame:
        self._count += 1
        body = str(self._count).encode()
        return pb.Frame(protocol_message=pb.ProtocolMessage(protocol="counter", body=body))

    def request(
        self, connection: Connection, frame: Frame, payload: memoryview
    ) -> Awaitable[Frame]:
        return self._answer()

    def register(self, message: pb.Register) -> None:
        message.highest_log_id = max(message.highest_log_id, 77)

    def registered(self, answer: pb.Registered) -> None:
        self.events.append("registered")

    def conditions(self) -> list[Condition]:
        return [Condition(Kind.OTHER, "it only counts")]

    async def list_holdings(self, message: pb.Holdings) -> None:
        message.copysets.add(loglet_id=77, epoch=1)

    def begin_stop(self) -> None:
        self.events.append("begin_stop")

    async def finish(self) -> None:
        self.events.append("finish")

    async def stop(self) -> None:
        self.events.append("stop")


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, "counter", Counter)


def message(protocol: str) -> pb.Frame:
    return pb.Frame(protocol_message=pb.ProtocolMessage(protocol=protocol))


@pytest.mark.usefixtures("counter")
async def test_a_fourth_protocol_answers_registers_and_stops(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 1) as nodes:
        protocol = nodes.nodes[1].protocols["counter"]
        assert isinstance(protocol, Counter)
        connection = await nodes.client(1)
        for expected in (b"1", b"2"):
            answer, _ = await connection.request(message("counter"))
            assert answer.protocol_message.body == expected
        registration = nodes.metadata.registrations[1]
        assert registration.highest_log_id == 77
        assert [c.text for c in registration.conditions.conditions] == ["it only counts"]
        held = await nodes.metadata.order(1, pb.Frame(list_holdings=pb.ListHoldings()))
        assert [holding.loglet_id for holding in held.holdings.copysets] == [77]
    assert protocol.events == ["registered", "begin_stop", "finish", "stop"]


async def test_other_protocols_do_not_take_messages_that_are_not_theirs(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 1) as nodes:
        connection = await nodes.client(1)
        with pytest.raises(InvalidArgument, match="no protocol 'counter' runs here"):
            await connection.request(message("counter"))
        with pytest.raises(InvalidArgument, match="has messages of its own"):
            await connection.request(message("ordered"))

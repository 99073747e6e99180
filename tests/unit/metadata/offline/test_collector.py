"""Registration while metadata is rebuilt."""

from __future__ import annotations

from pathlib import Path

import pytest

from loomlog.core.principal import Principal
from loomlog.errors import Unauthorized
from loomlog.metadata.catalog.records import ClusterRecord
from loomlog.metadata.offline.collector import Collector
from loomlog.net.certificates import create_authority, create_certificate
from loomlog.net.credentials import Credentials
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, OnlyAnswers


async def test_only_node_3_registers_as_node_3(tmp_path: Path) -> None:
    """Every node knows the secret of the cluster."""
    create_authority(tmp_path, "prod")
    own = create_certificate(tmp_path, Principal("metadata", number=1, cluster="prod"))
    codec = Codec("vmr", credentials=Credentials(tmp_path / "ca.pem", own, "prod"))
    collector = Collector(ClusterRecord("prod", "secret"))
    register = pb.Register(storage_node_id=3, cluster_id="prod", cluster_secret="secret")
    frame = pb.Frame(id=1, register=register)
    connection = Connection(codec, OnlyAnswers())
    connection.principal = Principal("node", number=2, cluster="prod")
    with pytest.raises(Unauthorized, match="node 3"):
        await collector._register(connection, frame, memoryview(b""))
    connection.principal = Principal("node", number=3, cluster="prod")
    await collector._register(connection, frame, memoryview(b""))
    assert list(collector.callers) == [3]

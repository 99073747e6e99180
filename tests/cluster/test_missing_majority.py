"""A vmr that starts while most storage nodes are away reports this to every caller."""

from __future__ import annotations

from pathlib import Path

import pytest
from poll import until

from loomlog import connect
from loomlog.errors import AppendUnknown, Sealed, Timeout, Unavailable
from loomlog.testing.local import LocalCluster

PROTOCOLS = ("ordered", "chained", "copyset")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_appends_say_for_which_nodes_the_metadata_waits(
    tmp_path: Path, protocol: str
) -> None:
    local = LocalCluster(3, directory=tmp_path)
    async with local, await connect(local.address, append_timeout_s=3.0) as cluster:
        await cluster.create_log("events", protocol=protocol, replicas=3)
        log = cluster.log("events")
        await log.append(b"before")
        await local.stop_metadata()
        for node in (1, 2):
            await local.stop_node(node)
        await local.start_metadata()
        assert local.metadata is not None
        assert local.metadata.term is not None
        gate = local.metadata.term.gate
        waits = "1 of 3 storage nodes have confirmed"  # all hold data: none is left out later
        await until(lambda: gate.condition.startswith(waits))
        with pytest.raises(
            (AppendUnknown, Sealed, Timeout, Unavailable),
            match=rf"{waits}.* 2 are needed: start some of node 1, 2;.*`loom node replace N`",
        ):
            await log.append(b"x")

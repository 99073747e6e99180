"""The certificate of a running node expires. No peer can connect to the node, so it counts as away
until the file is replaced, and logs of every protocol continue without it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from cli_rig import loom_up
from poll import until

import loomlog
from loomlog.client.cluster import Cluster
from loomlog.net.certificates import list_certificates, renew_certificate
from loomlog.protocol_names import CHAINED, COPYSET, ORDERED
from loomlog.types import NodeId

PROTOCOLS = (ORDERED, CHAINED, COPYSET)
VALID = timedelta(seconds=4)
PATIENCE_S = 30.0  # for an append


async def test_a_node_is_away_from_when_its_certificate_expires_until_it_is_renewed(
    tmp_path: Path,
) -> None:
    with loom_up(tmp_path, "--nodes", "4", "--sync", "none", "--secure") as up:
        tls = str(tmp_path / "certs")
        async with await loomlog.connect(up.mr, tls=tls) as cluster:
            for protocol in PROTOCOLS:
                await cluster.create_log(protocol, protocol, 1, 3)
            await _append(cluster)
            node = await _used_node(cluster)
            # First on a connection that began with an older certificate, then with this one.
            for _ in range(2):
                ends_at = _renew(tmp_path / "certs", node, VALID)
                await until(lambda: _is_alive(cluster, node))
                await until(partial(_is_over, ends_at))
                async with await loomlog.connect(up.mr, tls=tls) as fresh:
                    await _append(fresh)
                await until(lambda: _is_alive(cluster, node), lambda alive: not alive)
                await until(lambda: _advice(cluster, node), lambda said: "certs renew" in said)
            _renew(tmp_path / "certs", node, timedelta(days=90))
            await until(lambda: _is_alive(cluster, node))
            await _append(cluster)
            for protocol in PROTOCOLS:
                log = cluster.log(protocol)
                entries = [e.value async for e in log.subscribe(1, await log.tail())]
                assert entries == [b"value"] * 4


def _is_over(at: datetime) -> bool:
    return datetime.now(UTC) > at


async def _append(cluster: Cluster) -> None:
    for protocol in PROTOCOLS:
        async with asyncio.timeout(PATIENCE_S):
            await cluster.log(protocol).append(b"value")


async def _used_node(cluster: Cluster) -> NodeId:
    """Return a node with parts of all logs; copies of a copyset log may be on any node."""
    (stream,) = (await cluster.log(ORDERED).describe()).streams
    (chained,) = (await cluster.log(CHAINED).describe()).streams
    in_order = [replica.node for replica in stream.replicas]
    return next(node for node in in_order if all(node in chain for chain in chained.chains))


def _renew(certs: Path, node: NodeId, valid: timedelta) -> datetime:
    """Replace the certificate of a node; return when it expires."""
    (found,) = (each for each in list_certificates(certs) if each.file.stem == f"node-{node}")
    renew_certificate(certs, found, valid / timedelta(days=1))
    return datetime.now(UTC) + valid


async def _is_alive(cluster: Cluster, node: NodeId) -> bool:
    return next(each.alive for each in (await cluster.status()).nodes if each.id == node)


async def _advice(cluster: Cluster, node: NodeId) -> str:
    conditions = (await cluster.status()).conditions
    return "; ".join(each.sentence for each in conditions if each.node == node)

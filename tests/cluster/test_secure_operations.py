"""Every command of operators over TLS, with the operator's certificate and nothing else."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loomlog.cli.loom import app
from loomlog.testing import LocalCluster

PATIENCE_S = 30.0

# In their order; each is a line as an operator would type it.
COMMANDS = """
status
doctor
log create orders --replicas 2
append orders {file}
status --log orders
tail orders --from earliest --max 1
log list --all
log describe orders
log find-time orders 1d
log retention orders 7d
node drain 3 --yes --wait
node undrain 3
log switch orders --protocol chained
append orders {file}
log switch orders --protocol copyset --replicas 2
append orders {file}
log switch orders --protocol ordered --replicas 2
append orders {file}
log scrub orders --wait
log trim orders 1 --yes
stream list
stream describe {stream}
stream seal {stream}
stream unseal {stream}
stream add orders --wait
node list
node check 3
node rebuild-status
node cleanup 3 --yes
rebalance --dry-run
metadata list
checkpoint set orders billing 1
checkpoint list orders
checkpoint delete orders billing
group list
acl grant alice writer orders
acl list
acl grant role:billing append orders
acl grant bob role:billing
acl check alice append orders
acl enable --yes
status
append orders {file}
tail loomlog.audit
acl revoke alice writer orders
acl remove role:billing --yes
acl disable --yes
token create billing --allow append:orders
token list
token rotate
archive status
pipeline list
log delete orders --yes
""".strip().splitlines()


@pytest.fixture
async def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalCluster]:
    local = LocalCluster(nodes=3, secure=True, directory=tmp_path)
    async with local:
        monkeypatch.setenv("LOOM_CLUSTER", local.address)
        monkeypatch.setenv("LOOM_TLS", local.certificate("operator", name="admin"))
        yield local


async def loom(line: str) -> str:
    """Run a command in a thread, and return what it prints."""
    async with asyncio.timeout(PATIENCE_S):
        result = await asyncio.to_thread(CliRunner().invoke, app, line.split())
    assert result.exit_code == 0, (line, result.output, result.exception)
    return str(result.output)


async def test_every_command_works_over_tls(local: LocalCluster, tmp_path: Path) -> None:
    (file := tmp_path / "lines").write_text("one\n")
    cluster, stream = await local.connect(), 0
    for line in COMMANDS:
        if "{stream}" in line:
            stream = max(s.id for s in (await cluster.log("orders").describe()).streams)
        await loom(line.format(stream=stream, file=file))


async def test_a_command_stands_in_for_a_metadata_repository(
    local: LocalCluster, tmp_path: Path
) -> None:
    """Nodes accept it because it finds a metadata certificate beside the operator's."""
    (file := tmp_path / "lines").write_text("one\n")
    await loom("log create orders --replicas 2")
    await loom(f"append orders {file}")
    await local.stop_metadata()
    data, address = tmp_path / "vmr", local.address
    await loom(f"metadata export {tmp_path}/copy.loom --data {data}")
    caught_up = await loom(f"metadata catch-up --data {data} --listen {address}")
    assert "start the vmr" in caught_up
    await local.start_metadata()
    await loom(f"append orders {file}")
    await local.stop_metadata()
    shutil.rmtree(data / "rounds")
    rebuilt = await loom(f"metadata rebuild --data {data} --listen {address}")
    assert "log orders: certain, its last position is 2" in rebuilt
    await local.start_metadata()
    await loom(f"append orders {file}")
    await local.stop_metadata()
    shutil.rmtree(data)
    await loom(f"metadata import {tmp_path}/copy.loom --data {data}")
    await loom(f"metadata catch-up --data {data} --listen {address}")
    await local.start_metadata()
    assert await loom("tail orders --from earliest --max 3") == "one\n" * 3


async def test_only_who_has_the_certificate_of_a_metadata_repository_stands_in_for_it(
    local: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local.stop_metadata()
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("ca.pem", "operator-admin.pem"):
        shutil.copy(tmp_path / "certs" / name, alone / name)
    monkeypatch.setenv("LOOM_TLS", str(alone / "operator-admin.pem"))
    line = f"metadata catch-up --data {tmp_path}/vmr --listen {local.address}"
    result = await asyncio.to_thread(CliRunner().invoke, app, line.split())
    assert "name its file, metadata-1.pem, with --tls" in str(result.exception)

"""The output of `loom metadata rebuild`, for a cluster in this process."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from loomlog.cli.commands.rebuild import How, rebuild
from loomlog.cli.console.options import EtcdAccess
from loomlog.errors import LoomError, NotFound
from loomlog.metadata.data_directory import has_rounds
from loomlog.storage.disk import RealFiles
from loomlog.testing import LocalCluster


@pytest.mark.parametrize("protocol", ["chained", "copyset"])
async def test_no_end_is_told_of_a_log_that_has_no_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    cluster = LocalCluster(nodes=2, directory=tmp_path)
    async with cluster as client:
        log = await client.create_log("events", protocol=protocol, streams=1, replicas=2)
        await log.append_many([b"x"] * 7)
        await cluster.stop_metadata()
        shutil.rmtree(tmp_path / "vmr/rounds")
        how = How(str(tmp_path / "vmr"), cluster.address, timeout=30)
        await rebuild(how, EtcdAccess())
        assert "log events: certain, its nodes know where it ends" in capsys.readouterr().out


async def test_it_says_what_is_missing_and_then_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = LocalCluster(nodes=2, directory=tmp_path)
    async with cluster as client:
        log = await client.create_log("events", streams=1, replicas=2)
        await log.append_many([b"x"] * 7)
        await cluster.stop_metadata()
        directory = str(tmp_path / "vmr")
        shutil.rmtree(f"{directory}/rounds")
        await cluster.stop_node(2)
        how = How(directory, cluster.address, timeout=0.5)

        with pytest.raises(LoomError, match="nothing was changed"):
            await rebuild(how, EtcdAccess())
        said = capsys.readouterr()
        assert "waiting for node" in said.err
        assert said.out.splitlines() == [
            "node 2 did not come, and stream 1 is there: start its vsn; "
            "if it is permanently lost, try --without 2",
            "log events: certain, its last position is 7",
        ]
        with pytest.raises(LoomError, match="nothing was changed"):
            await rebuild(replace(how, as_json=True), EtcdAccess())
        fields = json.loads(capsys.readouterr().out)
        assert (fields["rebuilt"], fields["absent"]) == (False, {"2": [1]})
        with pytest.raises(NotFound, match="no node 9"):
            await rebuild(replace(how, without=[9]), EtcdAccess())
        assert not has_rounds(RealFiles(), directory)

        await rebuild(replace(how, without=[2], timeout=30), EtcdAccess())
        assert capsys.readouterr().out.splitlines() == [
            "log events: certain, its last position is 7",
            "node 2 is given up: stream 1 gets another replica elsewhere",
            f"rebuilt: start the vmr on {directory}",
        ]
        assert has_rounds(RealFiles(), directory)

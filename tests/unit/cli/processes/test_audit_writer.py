"""A server writes its audit log: where it reaches itself, and what becomes of the last entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loomlog.cli.processes.audit_writer import Audited, own_addresses
from loomlog.core.audit import AuditTrail
from loomlog.core.principal import Principal
from loomlog.net.certificates import create_authority, create_certificate


def test_a_server_reaches_itself_at_a_host_of_its_certificate(tmp_path: Path) -> None:
    create_authority(tmp_path, "prod")
    holder = Principal("metadata", number=1, cluster="prod")
    tls = str(create_certificate(tmp_path, holder, ["vmr.example.org", "10.0.0.1", "::1"]))
    assert own_addresses("10.0.0.1:7400", tls) == ["10.0.0.1:7400"]
    everywhere = ["vmr.example.org:7400", "10.0.0.1:7400", "[::1]:7400"]
    for listening in ("0.0.0.0:7400", "[::]:7400", "10.0.0.2:7400"):
        assert own_addresses(listening, tls) == everywhere
    assert own_addresses("0.0.0.0:7400", "") == ["0.0.0.0:7400"]


class Server:
    """A server that notes something when it is stopped."""

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self._trail.note(2.0, "alice", "here", "trim_log", "done", denied=False)


async def test_entries_that_a_stopping_server_cannot_write_are_in_its_own_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trail = AuditTrail()
    server: Any = Server(trail)
    audited = Audited(server, "vmr-1", trail, list, "")
    await audited.start()
    trail.note(1.0, "alice", "here", "delete_log", "done", denied=False)
    await audited.stop()
    lines = [json.loads(each.message) for each in caplog.records if each.name == "loomlog.audit"]
    assert [line["what"] for line in lines] == ["delete_log", "trim_log"]

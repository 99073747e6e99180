"""Where a server finds itself to write its audit trail."""

from __future__ import annotations

from pathlib import Path

from loomlog.cli.processes.audit_writer import own_addresses
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

"""The certificates that `loom up --secure` makes, and renews when it starts again."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from loomlog.cli.processes.local_certificates import is_secure, make_certificates
from loomlog.core.principal import Principal
from loomlog.net.certificates import create_certificate, list_certificates


def test_a_start_makes_what_is_missing_and_renews_what_expires_within_30_days(
    tmp_path: Path,
) -> None:
    certs = tmp_path / "certs"
    assert not is_secure(tmp_path)
    make_certificates(tmp_path, "c", metadata=1, nodes=1)
    assert is_secure(tmp_path)
    node = Principal("node", number=1, cluster="c")
    create_certificate(certs, node, ["127.0.0.1"], days=29)
    before = {each.principal: each.file.read_bytes() for each in list_certificates(certs)}
    make_certificates(tmp_path, "c", metadata=1, nodes=2)
    after = {each.principal: each.file.read_bytes() for each in list_certificates(certs)}
    assert after.keys() - before.keys() == {Principal("node", number=2, cluster="c")}
    assert {each for each in before if before[each] != after[each]} == {node}
    now = datetime.now(UTC)
    assert all(each.days_left(now) > 30 for each in list_certificates(certs))

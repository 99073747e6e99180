"""`loom acl` and `loom token` on a cluster of real processes, and its audit log."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from cli_rig import Loom, environment, loom_up, program
from poll import wait_until

from loomlog import connect_sync
from loomlog.core.permissions import AUDIT_LOG
from loomlog.errors import NotFound, PermissionDenied


def loom(cluster: str, token: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        program("loom", "--token-file", str(token), *arguments),
        capture_output=True,
        timeout=60,
        env=environment(LOOM_CLUSTER=cluster),
    )


def test_permissions_tokens_and_the_audit_log(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with loom_up(tmp_path / "data", "--nodes", "1", "--sync", "none") as up:
        with connect_sync(up.mr) as anybody:
            anybody.create_log("orders", replicas=1)
        allow = ("--allow", "*:*", "--allow", "read:loomlog.*")
        root.write_text(Loom(up.mr).says("token", "create", "root", *allow, "--expires", "1h"))
        root.chmod(0o600)
        enabled = loom(up.mr, root, "acl", "enable", "--yes", "--json")
        assert json.loads(enabled.stdout)["enforced"], enabled.stderr
        made = loom(up.mr, root, "token", "create", "billing", "--allow", "append:orders")
        token = made.stdout.decode().strip()

        with connect_sync(up.mr, token=token) as billing:
            billing.log("orders").append(b"1")
            with pytest.raises(PermissionDenied, match="token billing has no permission read:ord"):
                billing.log("orders").read(1)
            assert billing.logs() == []
        assert b"no grants" in loom(up.mr, root, "acl", "list").stdout
        granted = loom(up.mr, root, "acl", "grant", "alice", "reader", "orders", "--json")
        assert [each["who"] for each in json.loads(granted.stdout)["grants"]] == ["alice"]
        checked = loom(up.mr, root, "acl", "check", "alice", "append", "orders")
        assert (checked.returncode, checked.stdout[:3]) == (1, b"no:")

        given = loom(up.mr, root, "acl", "grant", "alice", "role:billing")
        assert b"role:billing has no grants yet" in given.stdout, given.stderr
        twice = loom(up.mr, root, "acl", "grant", "role:billing", "append:orders", "orders")
        assert (twice.returncode, b"not both" in twice.stderr) == (1, True)
        loom(up.mr, root, "acl", "grant", "role:billing", "append:orders")
        checked = loom(up.mr, root, "acl", "check", "alice", "append", "orders")
        assert b"(append:orders by role:billing)" in checked.stdout
        removed = loom(up.mr, root, "acl", "remove", "role:billing", "--yes", "--json")
        assert [each["what"] for each in json.loads(removed.stdout)["grants"]] == ["reader"]

        listed = json.loads(loom(up.mr, root, "token", "list", "--json").stdout)["tokens"]
        assert [each["name"] for each in listed] == ["root", "billing"]
        revoked = loom(up.mr, root, "token", "revoke", listed[1]["id"][:12], "--yes")
        assert revoked.returncode == 0, revoked.stderr
        with (
            connect_sync(up.mr, token=token) as billing,
            pytest.raises(PermissionDenied, match="was revoked") as denied,
        ):
            billing.log("orders").append(b"2")
        assert token not in str(denied.value)

        with connect_sync(up.mr, token=root.read_text()) as operator:
            audit = operator.log(AUDIT_LOG)

            def is_noted() -> bool:
                positions = range(1, (audit.tail() or 0) + 1)
                lines = [json.loads(audit.read(position).value) for position in positions]
                found = {(line["server"], line["who"], line["what"][:13]) for line in lines}
                return {
                    ("vsn-1", "token billing", "read"),
                    ("vmr-1", "token root", "change_access"),
                } <= found

            try:
                wait_until(is_noted)
            except NotFound:
                pytest.fail("there is no audit log")

"""Errors when etcd, or the package for it, is missing; members that come back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loomlog.errors import LoomError, Unavailable
from loomlog.testing import LocalEtcd
from loomlog.testing.etcd import require_etcd


def test_a_missing_binary_is_one_line_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LoomError, match="apt-get install etcd-server"):
        require_etcd()
    with pytest.raises(LoomError, match="apt-get install etcd-server"), LocalEtcd():
        pass


def test_a_missing_package_is_one_line_with_the_fix() -> None:
    program = """
import sys
sys.modules["aetcd"] = None
from loomlog.errors import LoomError
try:
    import loomlog.metadata.store.etcd
except LoomError as error:
    print(error)
"""
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout == "etcd needs one more package: pip install 'loomlog[etcd]'\n"


def test_members_are_stopped_killed_and_started_again() -> None:
    with LocalEtcd(members=3) as etcd:
        assert len(set(etcd.endpoints)) == 3
        leader = etcd.leader()
        etcd.kill(leader)
        assert leader not in etcd.pids
        successor = etcd.leader()
        assert successor != leader
        etcd.start(leader)
        etcd.wait_healthy(leader)
        etcd.stop(successor)
        assert etcd.leader() != successor
    assert not etcd.pids


def test_a_member_that_does_not_start_says_why() -> None:
    wrong = LocalEtcd(arguments=["--not-an-option"])
    with pytest.raises(Unavailable, match="not-an-option"), wrong:
        pass

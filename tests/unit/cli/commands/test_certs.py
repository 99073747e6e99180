"""`loom certs …`: what is made, listed, renewed and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loomlog.cli.loom import app


class Certs:
    """The command, in a directory of its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Any:
        with pytest.raises(SystemExit) as ended:
            app(["certs", *arguments, "--json"], standalone_mode=True)
        assert ended.value.code == 0
        return json.loads(self._capsys.readouterr().out)

    def refused(self, *arguments: str) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - of several kinds
            app(["certs", *arguments], standalone_mode=False)
        return str(caught.value)


@pytest.fixture
def certs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Certs:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOOM_CERTS", raising=False)
    return Certs(capsys)


def test_a_cluster_gets_its_certificates(certs: Certs) -> None:
    assert certs("init", "--cluster-id", "prod") == {
        "cluster_id": "prod",
        "file": "certs/ca.pem",
        "key": "certs/ca.key",
    }
    made = [
        certs("node", "3", "--host", "node3.example.org", "--host", "10.0.0.3", "--host", "::1"),
        certs("metadata", "1", "--host", "10.0.0.1"),
        certs("client", "alice", "--days", "10"),
        certs("client", "carol", "--operator"),
    ]
    assert [each["holder"] for each in made] == [
        "loom://prod/node/3",
        "loom://prod/metadata/1",
        "loom://prod/client/alice",
        "loom://prod/operator/carol",
    ]
    listed = {Path(each["file"]).name: each for each in certs("list")}
    assert listed["node-3.pem"]["hosts"] == ["node3.example.org", "10.0.0.3", "::1"]
    assert listed["client-alice.pem"]["days_left"] == pytest.approx(10, abs=0.1)
    assert listed["ca.pem"]["holder"] == "authority"
    assert certs("show", "certs/node-3.pem") == listed["node-3.pem"]
    assert certs("show", "node-3.pem") == listed["node-3.pem"]


def test_renewing_keeps_holder_and_hosts(certs: Certs) -> None:
    certs("init")
    certs("node", "3", "--host", "10.0.0.3")
    before = certs("show", "certs/node-3.pem")
    assert certs("renew", "node-3.pem") == {"files": ["certs/node-3.pem"]}
    after = certs("show", "certs/node-3.pem")
    assert after["fingerprint"] != before["fingerprint"]
    assert (after["holder"], after["hosts"]) == (before["holder"], before["hosts"])


def test_revoking_needs_a_decision(certs: Certs) -> None:
    certs("init")
    certs("client", "bob")
    assert "--yes" in certs.refused("revoke", "certs/client-bob.pem")
    for _ in range(2):
        certs("revoke", "client-bob.pem", "--yes")
    (number,) = Path("certs/revoked").read_text().split()
    assert int(number, 16)


def test_an_authority_is_retired_when_nothing_needs_it(certs: Certs) -> None:
    certs("init")
    certs("client", "alice")
    certs("rotate")
    assert "client-alice.pem was signed by an older authority" in certs.refused("retire")
    certs("renew")
    assert certs("retire") == {"retired": 1}
    assert [each["holder"] for each in certs("list")] == ["authority", "loom://local/client/alice"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["init"], "has an authority already: use `loom certs rotate`"),
        (["client", "a/b"], "cannot be named in a certificate"),
        (["node", "1", "--host", "a b"], "'a b' is no host name"),
        (["renew", "node-9.pem"], "has no node-9.pem"),
        (["node", "1", "--host", "x", "--dir", "nowhere"], "`loom certs init` begins a directory"),
        (["show", "certs/ca.key"], "has no certificate that can be read"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    certs: Certs, arguments: list[str], error: str
) -> None:
    certs("init")
    said = certs.refused(*arguments)
    assert error in said
    assert "\n" not in said


def test_certificates_are_made_where_the_key_is(certs: Certs) -> None:
    certs("init")
    Path("certs/ca.key").unlink()
    assert "where the authority's key is kept" in certs.refused("client", "alice")

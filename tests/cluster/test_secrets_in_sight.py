"""Secrets stay where they belong: they are in no list of processes, no log, no error and no answer.

A cluster of real processes with TLS and a console, and commands that use a token. While all of them
run, the arguments of all processes are looked at, which any user of a machine can do.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_rig import Loom, environment, loom_up, program

from loomlog import connect_sync
from loomlog.storage import small_files


def arguments_of_processes() -> dict[int, str]:
    """Return the arguments of every process on this machine."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            found[int(place.name)] = (place / "cmdline").read_text(errors="replace")
        except OSError:
            continue  # it has just ended
    return found


def secrets_in(data: Path) -> dict[str, str]:
    """Return the secrets in the files of a cluster, by where they are."""
    found: dict[str, str] = {}
    for file in (data / "certs").iterdir():
        _, begin, rest = file.read_text().partition("PRIVATE KEY-----\n")
        if begin:
            lines = rest.partition("-----END")[0].split()
            found |= {f"{file.name}, line {n}": line for n, line in enumerate(lines, 1)}
    for file in data.glob("vsn-*/cid=*/snid=*/identity"):
        identity = small_files.decode(file.read_bytes())
        assert identity is not None
        found |= {f"{name} of {file}": identity[name] for name in ("node_secret", "cluster_secret")}
    assert all(len(secret) >= 16 for secret in found.values())
    return found


def shown(secrets: dict[str, str], texts: dict[str, str]) -> list[str]:
    """Return which secrets are in which texts."""
    return [
        f"{what} is in {where}"
        for what, secret in secrets.items()
        for where, text in texts.items()
        if secret in text
    ]


@contextmanager
def running(*arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command that has said something, until it is not needed any more."""
    process = subprocess.Popen(
        program("loom", *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(**variables),
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.terminate()


@pytest.mark.timeout(240)  # it starts many programs
def test_no_secret_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONNODEBUGRANGES", "1")  # programs are executed, not forked
    data = tmp_path / "data"
    with loom_up(data, "--nodes", "2", "--sync", "none", "--secure", "--console") as up:
        operator = Loom(up.mr, str(data / "certs/operator-admin.pem"))
        with connect_sync(up.mr, tls=operator.tls) as cluster:
            cluster.create_log("orders", replicas=2).append(b"first")
            token = cluster.create_token("billing", ["*:orders"]).text
            cluster.enforce_access(True)
        file, authorities = tmp_path / "billing.token", str(data / "certs/ca.pem")
        file.touch(mode=0o600)
        file.write_text(token)
        secrets = {"the token": token, **secrets_in(data)}

        place = {"LOOM_CLUSTER": up.mr, "LOOM_TLS": authorities}
        tail = ("tail", "orders", "--from", "earliest", "-f")
        with (
            running("--token-file", str(file), *tail, **place) as by_file,
            running(*tail, **place, LOOM_TOKEN=token) as by_variable,
        ):
            found = arguments_of_processes()
        ours = {up.process.pid, by_file.pid, by_variable.pid, *up.pids.values()}
        assert not [pid for pid in ours if "loomlog.cli" not in found[pid]]
        names = {process: f"the arguments of {process}" for process in found}
        assert not shown(secrets, {names[pid]: text for pid, text in found.items()})
        monkeypatch.undo()

        said = {
            " ".join(words): _all_said(Loom(up.mr, tls).run(*words))
            for tls, words in (
                *((operator.tls, (*words, "--json")) for words in ASKED),
                (authorities, ("--token-file", str(file), "log", "delete", "orders", "--yes")),
                (authorities, ("--token-file", str(file), "status")),
                (authorities, ("--token-file", _file(tmp_path / "cut", token[:-9]), *tail)),
                (authorities, ("--token-file", _file(tmp_path / "open", token, 0o644), *tail)),
                (authorities, ("--token-file", str(data / "certs/operator-admin.pem"), *tail)),
            )
        }
        operator.says("token", "revoke", operator.json("token", "list")["tokens"][0]["id"], "--yes")
        said["revoked"] = _all_said(Loom(up.mr, authorities).run("--token-file", str(file), *tail))
        assert "was revoked" in said["revoked"]
        logs = {str(log): log.read_text() for log in (data / "logs").iterdir()}
        assert any("billing" in text for text in logs.values()), "denials are logged"
        assert not shown({**secrets, "a part of it": token[:-9]}, said | logs)
    logs = {str(log): log.read_text() for log in (data / "logs").iterdir()}
    assert not shown(secrets, logs)


ASKED = (
    *(("status",), ("doctor",), ("events",), ("token", "list"), ("acl", "list"), ("node", "list")),
    *(("log", "describe", "orders"), ("metadata", "list"), ("tail", "loomlog.audit")),
)


def _file(path: Path, text: str, mode: int = 0o600) -> str:
    path.touch()
    path.chmod(mode)
    path.write_text(text)
    return str(path)


def _all_said(done: subprocess.CompletedProcess[bytes]) -> str:
    return (done.stdout + done.stderr).decode()

"""`loom pipeline run` on a cluster with TLS and permissions, with a token and with a certificate.

Spark's event log has all that its pages show: settings, plans, properties of the JVM. Neither that
nor the list of processes may contain a secret.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loomlog import BlockingCluster, connect_sync
from loomlog.core.permissions import Grant
from loomlog.spark import require_java

LOOM = [sys.executable, "-m", "loomlog.cli.loom"]
PIPELINE = """
from loomlog.spark import log, pipeline

@pipeline(
    "totals",
    source="orders",
    decode="json",
    schema="amount long",
    output=log("totals"),
    spark={{
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": {events!r},
        "spark.eventLog.compress": "false",
        **{{f"spark.executorEnv.{{name}}": value for name, value in {variables!r}.items()}},
    }},
)
def totals(rows):
    return rows.selectExpr("cast(sum(amount) as string) as value")
"""


@contextmanager
def secure_cluster(data: Path) -> Iterator[tuple[str, BlockingCluster]]:
    """Run a cluster that enforces permissions; yield its address and its operator."""
    options = ("--nodes", "2", "--sync", "none", "--secure", "--no-console", "--port", "0")
    command = [*LOOM, "up", "--data", str(data), "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            address = json.loads(up.stdout.readline())["mr"]
            with connect_sync(address, tls=str(data / "certs/operator-admin.pem")) as operator:
                operator.enforce_access(True)
                yield address, operator
        finally:
            up.terminate()


def arguments_of_processes() -> str:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_text(errors="replace"))
        except OSError:
            continue  # it has just ended
    return "\n".join(found)


@pytest.mark.timeout(600)  # it starts a cluster and a Spark of its own
@pytest.mark.parametrize("by", ["token", pytest.param("certificate", marks=pytest.mark.long)])
def test_a_pipeline_is_secure_and_shows_no_secret(by: str, tmp_path: Path) -> None:
    require_java()
    data, own, events = tmp_path / "data", tmp_path / "own", tmp_path / "events"
    own.mkdir()
    events.mkdir()
    with secure_cluster(data) as (address, operator):
        orders = operator.create_log("orders", replicas=2)
        orders.append_many([json.dumps({"amount": n}).encode() for n in range(10)])
        if by == "token":  # as a program without a certificate has it
            shutil.copy(data / "certs/ca.pem", own)
            rights = ["read:orders", "append:totals", "create:totals", "pipeline:totals"]
            secret = operator.create_token("spark", rights).text
            (own / "spark.token").touch(mode=0o600)
            (own / "spark.token").write_text(secret)
            place = {"LOOM_TLS": str(own), "LOOM_TOKEN_FILE": str(own / "spark.token")}
        else:
            certs = ("certs", "client", "spark", "--dir", str(data / "certs"))
            subprocess.run([*LOOM, *certs], check=True, capture_output=True)
            file = data / "certs/client-spark.pem"
            secret = file.read_text().splitlines()[1]
            operator.grant(
                *(Grant("spark", what, "totals*") for what in ("owner", "pipeline")),
                Grant("spark", "read", "orders"),
            )
            place = {"LOOM_TLS": str(file)}

        file = tmp_path / "totals.py"
        file.write_text(PIPELINE.format(events=str(events), variables=place))
        command = [*LOOM, "pipeline", "run", str(file), "--once", "--json", "--cluster", address]
        seen = ""
        with subprocess.Popen(
            [*command, "--spark-master", "local[2,4]"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | place,
        ) as running:
            while running.poll() is None:
                seen += arguments_of_processes()
                time.sleep(0.2)
            said = "".join(running.communicate())
        assert running.returncode == 0, said
        assert [entry.value for entry in operator.log("totals").subscribe(1, 1)] == [b"45"]
    shown = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "org.apache.spark.deploy.SparkSubmit" in seen
    assert "Physical Plan" in shown
    places = {"the list of processes": seen, "what is printed": said, "Spark's pages": shown}
    assert not [place for place, text in places.items() if secret in text]

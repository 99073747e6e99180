"""Spark on a cluster with TLS, with a token: source, sink, and the tasks of archives."""

from __future__ import annotations

import asyncio
import shutil
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import loomlog
from loomlog.spark import archive_job
from loomlog.spark.archive_tasks import tasks_on
from loomlog.testing import LocalCluster


@dataclass(frozen=True)
class Secure:
    """A cluster with TLS, an operator of it, and what a program without a certificate has."""

    cluster: loomlog.BlockingCluster
    address: str
    authorities: str  # a directory with ca.pem
    directory: Path

    def token(self, *allow: str) -> str:
        file = self.directory / f"{uuid.uuid4().hex}.token"
        file.touch(mode=0o600)
        file.write_text(self.cluster.create_token("app", allow).text)
        return str(file)


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Secure]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    local = LocalCluster(nodes=1, secure=True, sync="none", directory=tmp_path / "cluster")
    asyncio.run_coroutine_threadsafe(local.__aenter__(), loop).result(60)
    try:
        own = tmp_path / "own"
        own.mkdir()
        shutil.copy(tmp_path / "cluster" / "certs" / "ca.pem", own)
        operator = local.certificate("operator", name="admin")
        with loomlog.connect_sync(local.address, tls=operator) as cluster:
            yield Secure(cluster, local.address, str(own), tmp_path)
    finally:
        asyncio.run_coroutine_threadsafe(local.close(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def test_source_sink_and_archive_use_tls_and_a_token(
    spark: SparkSession, secure: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = secure.cluster.create_log("orders", replicas=1)
    place = {"cluster": secure.address, "log": "orders", "tls": secure.authorities}
    writes = {**place, "tokenFile": secure.token("append:orders")}
    reads = {**place, "tokenFile": secure.token("read:orders")}
    rows = spark.range(5).selectExpr("cast(id as string) as value")
    rows.write.format("loomlog").mode("append").options(**writes).save()
    assert spark.read.format("loomlog").options(**reads).load().count() == 5
    with pytest.raises(PySparkException, match="token app has no permission"):
        rows.write.format("loomlog").mode("append").options(**reads).save()
    with pytest.raises(PySparkException, match="token app has no permission"):
        spark.read.format("loomlog").options(**writes).load().count()

    # Tasks of archives take both from the environment of the executors.
    environment = spark.sparkContext.environment
    monkeypatch.setitem(environment, "LOOM_TLS", secure.authorities)
    monkeypatch.setitem(environment, "LOOM_TOKEN_FILE", reads["tokenFile"])
    outcome = archive_job.run(
        secure.cluster,
        secure.address,
        "orders",
        to=str(secure.directory / "archive"),
        until=5,
        run_tasks=tasks_on(spark),
        trim=True,
    )
    assert (outcome.through, log.head()) == (5, 6)

"""The source is found by itself, or registered; Java is checked before Spark stumbles."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_rig import SparkRig

import loomlog.spark
import pyspark_loomlog
from loomlog.errors import LoomError
from loomlog.spark.source import LoomlogSource


def test_the_source_is_found_without_registering_it(rig: SparkRig) -> None:
    """The session of these tests never registered anything."""
    assert pyspark_loomlog.DefaultSource is LoomlogSource
    rig.fill(10)
    assert rig.positions() == list(range(1, 11))


def test_it_can_be_registered_with_a_session(rig: SparkRig, spark: SparkSession) -> None:
    rig.fill(10)
    rig.spark = spark.newSession()
    loomlog.spark.register(rig.spark)
    assert rig.positions() == list(range(1, 11))


def test_our_session_checks_java_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LoomError, match="install a JDK 17"):
        loomlog.spark.session()


def test_a_missing_java_is_one_line_with_the_fix(tmp_path: Path) -> None:
    for environment in ({"JAVA_HOME": str(tmp_path)}, {"PATH": str(tmp_path)}):
        with pytest.raises(LoomError, match="there is none: install a JDK 17") as caught:
            loomlog.spark.require_java(environment)
        assert "\n" not in str(caught.value)


def test_an_old_java_is_named(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(LoomError, match=r"needs Java 17 or newer, .*java is 8"):
        loomlog.spark.require_java({"PATH": f"{tmp_path}:/bin:/usr/bin"})

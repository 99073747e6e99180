"""`spark-submit --py-files`: loomlog as a zip file, where only its dependencies are installed."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from spark_rig import SparkRig

import loomlog

JOB = """
import sys
from pyspark.sql import SparkSession
import loomlog.spark

spark = SparkSession.builder.getOrCreate()
loomlog.spark.register(spark)
rows = spark.read.format("loomlog").option("cluster", sys.argv[1]).option("log", sys.argv[2]).load()
print("rows", rows.count(), loomlog.__file__)
"""


@pytest.mark.long
@pytest.mark.timeout(300)  # a second Spark starts
def test_a_job_runs_where_loomlog_is_not_installed(rig: SparkRig, tmp_path: Path) -> None:
    rig.fill(30)
    shutil.make_archive(str(tmp_path / "loomlog"), "zip", Path(loomlog.__file__).parents[1])
    (tmp_path / "job.py").write_text(JOB)
    venv.create(tmp_path / "venv")  # sees what is installed, but no editable loomlog
    [packages] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "all.pth").write_text("\n".join(site.getsitepackages()))
    python = str(tmp_path / "venv" / "bin" / "python")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    assert subprocess.run([python, "-c", "import loomlog"], env=environment, check=False).returncode

    options = ("--master", "local[2]", "--conf", "spark.ui.enabled=false")
    address = ("--conf", "spark.driver.host=127.0.0.1")
    submit = str(Path(sys.executable).with_name("spark-submit"))
    archive = ("--py-files", "loomlog.zip", "job.py", rig.address, rig.log.name)
    done = subprocess.run(
        [submit, *options, *address, *archive],
        cwd=tmp_path,
        env=environment | {"PYSPARK_PYTHON": python},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    [line] = (line for line in done.stdout.splitlines() if line.startswith("rows"))
    assert line.startswith("rows 30 ")
    assert "loomlog.zip" in line

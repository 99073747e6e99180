"""Definitions of pipelines: what is wrong is one line that names it, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loomlog.errors import InvalidArgument, NotFound
from loomlog.spark import log, parquet, pipeline
from loomlog.spark.pipelines.definition import Watermark
from loomlog.spark.pipelines.loader import load

STATE: dict[str, Any] = {"stateful": True, "checkpoint": "c"}


def defined(name: str = "p", **settings: Any) -> Any:
    given: dict[str, Any] = {"source": "events", "output": log("out")} | settings
    return pipeline(name, **given)(lambda rows: rows)


def test_what_is_not_said_has_a_default() -> None:
    found = defined()
    assert (found.log, found.dead_letters, found.decode) == (
        "events",
        "p.dead-letters",
        {"events": "raw"},
    )
    assert found.summary()["output"] == "log out"


def test_sources_have_their_own_settings_by_name() -> None:
    found = defined(
        source=None,
        sources={"a": "log-a", "b": "log-b"},
        decode={"a": "json", "b": "raw"},
        schema={"a": "n int", "b": ""},
        watermark={"a": ("time", "1 minute"), "b": None},
        **STATE,
    )
    assert found.decode == {"log-a": "json", "log-b": "raw"}
    assert found.watermarks == {"log-a": Watermark("time", "1 minute")}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "a/b"}, "a name is up to 60 letters"),
        ({"source": None}, "give source=LOG or sources="),
        ({"source": None, "sources": {"a": "x", "b": "x"}, **STATE}, "each source is another log"),
        ({"source": None, "sources": {"a": "x", "b": "y"}}, "several sources need stateful=True"),
        ({"decode": "xml"}, "decode is one of json, csv, arrow, raw or a function"),
        ({"decode": "json"}, "needs a schema"),
        ({"schema": {"other": "n int"}}, "schema must name the sources rows"),
        ({"output": "table"}, "output is parquet"),
        ({"unit_size": 5}, "there is no setting 'unit_size'"),
        ({"unit_records": 0}, "unit_records is a number from 1 on"),
        ({"unit_records": "many"}, "unit_records is a number from 1 on"),
        ({"lease_ttl_s": 0}, "lease_ttl_s is a time above 0"),
        ({"heartbeat_s": 0, "watermark": ("t", "1 s"), **STATE}, "heartbeat_s is a time above 0"),
        ({"start": "noon"}, "start is earliest, latest or a position from 1 on, not 'noon'"),
        ({"start": 0}, "start is earliest, latest or a position from 1 on, not 0"),
        ({"stateful": True}, "needs checkpoint=DIR"),
        ({"watermark": ("time", "1 minute")}, "watermark and heartbeat_s are for stateful=True"),
        ({"heartbeat_s": 1.0, **STATE}, "heartbeat_s needs a watermark"),
        ({"output_mode": "all"}, "output_mode is one of append, update, complete"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        defined(**settings)
    assert "\n" not in str(caught.value)


PYTHON = """
from loomlog.spark import parquet, pipeline

@pipeline("one", source="events", output=parquet("t"))
def one(rows):
    return rows

@pipeline("two", source="events", output=parquet("t"))
def two(rows):
    return rows
"""

TOML = """
name = "sums"
source = "events"
sql = "SELECT * FROM rows"
unit_records = 7
[output]
kind = "log"
name = "out"
streams = 2
"""


def written(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_a_file_may_define_several(tmp_path: Path) -> None:
    path = written(tmp_path, "several.py", PYTHON)
    assert load(path, "two").name == "two"
    with pytest.raises(InvalidArgument, match="give --name, one of one, two"):
        load(path)
    with pytest.raises(NotFound, match="defines no pipeline 'three', only one, two"):
        load(path, "three")


def test_sql_comes_in_toml(tmp_path: Path) -> None:
    found = load(written(tmp_path, "sums.toml", TOML))
    assert (found.name, found.unit_records, found.output) == ("sums", 7, log("out", streams=2))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("none.py", "x = 1", "defines no pipeline: decorate a function"),
        ("broken.py", "import nothing_of_the_kind", "ModuleNotFoundError"),
        ("broken.toml", "name = ", "broken.toml"),
        ("less.toml", 'name = "p"', "name, sql and output are needed"),
        ("kind.toml", TOML.replace('"log"', '"tape"'), "output kind is one of parquet, log, delta"),
        ("more.toml", TOML.replace("streams", "stripes"), "stripes"),
        ("notes.txt", "", "neither Python"),
    ],
)
def test_a_file_that_is_wrong_is_one_clear_error(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        load(written(tmp_path, name, text))
    assert "\n" not in str(caught.value)
    with pytest.raises(NotFound, match="there is no file"):
        load(tmp_path / "missing.py")


def test_versions_of_an_output_are_beside_each_other() -> None:
    from loomlog.spark.pipelines.outputs import UnitId

    assert UnitId("c", "p", 1, 1).place("out") == "out"
    assert UnitId("c", "p", 1, 3).place("out") == "out.v3"
    assert parquet(Path("t")).describe() == "parquet t"

"""Pipelines from files: Python with the decorator, or TOML with SQL."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from loomlog.errors import InvalidArgument, LoomError, NotFound
from loomlog.spark.pipelines.definition import ROWS, Pipeline, pipeline
from loomlog.spark.pipelines.delta_table import delta
from loomlog.spark.pipelines.log_output import log
from loomlog.spark.pipelines.parquet_table import parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OUTPUTS: Final[dict[str, tuple[str, Callable[..., Any]]]] = {  # kind -> its place, its factory
    "parquet": ("path", parquet),
    "log": ("name", log),
    "delta": ("path", delta),
}


def load(path: Path, name: str | None = None) -> Pipeline:
    """Return the pipeline in a file, or the one called `name` if there are several."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    found = [_from_toml(path)] if path.suffix == ".toml" else _from_python(path)
    named = [each for each in found if name in (None, each.name)]
    if len(named) == 1:
        return named[0]
    names = ", ".join(each.name for each in found)
    if not found:
        raise InvalidArgument(f"{path} defines no pipeline: decorate a function with @pipeline(…)")
    if name is None:
        raise InvalidArgument(f"{path} defines several pipelines: give --name, one of {names}")
    raise NotFound(f"{path} defines no pipeline {name!r}, only {names}")


def _from_python(path: Path) -> list[Pipeline]:
    module = _module(path)
    found = {each.name: each for each in vars(module).values() if isinstance(each, Pipeline)}
    return list(found.values())


def _module(path: Path) -> ModuleType:
    from pyspark import cloudpickle

    spec = importlib.util.spec_from_file_location(f"pipeline_{path.stem}", path.absolute())
    if spec is None or spec.loader is None:
        raise InvalidArgument(f"{path} is neither Python (.py) nor TOML (.toml)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except LoomError:
        raise
    except Exception as error:
        raise InvalidArgument(f"{path}: {type(error).__name__}: {error}") from error
    # Executors cannot import the file, so its functions are pickled by value.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def _from_toml(path: Path) -> Pipeline:
    try:
        given = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: {error}") from None
    try:
        name, sql = given.pop("name"), given.pop("sql")
        output = _output(given.pop("output"))
    except (KeyError, AttributeError) as error:
        raise InvalidArgument(
            f"{path}: {error} is missing; name, sql and output are needed"
        ) from None
    return pipeline(name, output=output, **given)(sql_function(sql))


def _output(given: dict[str, Any]) -> Any:
    kind = given.pop("kind")
    if kind not in _OUTPUTS:
        raise InvalidArgument(f"output kind is one of {', '.join(_OUTPUTS)}, not {kind!r}")
    place, make = _OUTPUTS[kind]
    try:
        return make(given.pop(place), **given)
    except TypeError as error:
        raise InvalidArgument(f"output {kind}: {error}") from None


def sql_function(sql: str) -> Callable[..., DataFrame]:
    """Return a function that runs this SQL on views named like the sources, or `rows`."""

    def run(*rows: DataFrame, **frames: DataFrame) -> DataFrame:
        for name, frame in (frames or {ROWS: rows[0]}).items():
            frame.createOrReplaceTempView(name)
        session = next(iter((*rows, *frames.values()))).sparkSession
        return session.sql(sql)

    return run

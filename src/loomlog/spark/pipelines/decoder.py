"""Decodes rows of a log into the columns of a pipeline, and finds records that cannot be decoded.

A pipeline's function gets a frame with the columns of the schema, then `position`, `stream`,
`llsn`, `timestamp` and `key` of the log, unless the schema has a column of that name. With `raw` it
has the columns of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from loomlog.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from loomlog.spark.pipelines.definition import Decode, Watermark

HEARTBEAT_KEY: Final = b"\x00loomlog.heartbeat"
UNDECODABLE: Final = "loomlog: a record cannot be decoded"
ERROR: Final = "_error"  # why a record could not be decoded, or null
_DECODED: Final = "_decoded"
_HEARTBEAT: Final = "_heartbeat"
_TIME: Final = "_time"
_SOURCE: Final = ("position", "stream", "llsn", "timestamp", "key")
_NEVER: Final = "9999-12-31"


def parsed(rows: DataFrame, decode: Decode, schema: str) -> DataFrame:
    """Return the rows of a log with their decoded values, or with the reason in ERROR."""
    if decode == "raw":
        return rows.withColumn(ERROR, sf.lit(None).cast("string"))
    fields = _schema(schema)
    if decode == "json":
        found = _by_text(rows, fields, sf.from_json)
    elif decode == "csv":
        found = _by_text(rows, fields, sf.from_csv)
    elif decode == "arrow":
        found = _by_function(rows, ArrayType(fields), _arrow_rows(fields))
    else:
        assert callable(decode)
        found = _by_function(rows, fields, decode)
    return found.withColumn(ERROR, sf.when(~_is_heartbeat(), sf.col(ERROR)))


def strict(frame: DataFrame) -> DataFrame:
    """Return a parsed frame in which a record that cannot be decoded fails the job, whichever
    column is used, because Spark may evaluate columns before it checks for errors."""
    if _DECODED not in frame.columns:
        return frame
    whole, ends = sf.col(ERROR).isNull(), sf.raise_error(sf.lit(UNDECODABLE))
    kind = frame.schema[_DECODED].dataType
    frame = frame.withColumn(_DECODED, sf.when(whole, sf.col(_DECODED)).otherwise(ends.cast(kind)))
    return frame.withColumn(ERROR, sf.when(~whole, ends.cast("string")))


def all_lost(frame: DataFrame, reason: str) -> DataFrame:
    """Return all records of a parsed frame as in the log, with this reason in ERROR."""
    return frame.select(*_SOURCE, "value", sf.coalesce(ERROR, sf.lit(reason)).alias(ERROR))


def lost(frame: DataFrame) -> DataFrame:
    """Return the records of a parsed frame that cannot be decoded, as in the log."""
    return frame.filter(sf.col(ERROR).isNotNull()).select(*_SOURCE, "value", ERROR)


def columns(
    frame: DataFrame, decode: Decode, schema: str, watermark: Watermark | None = None
) -> DataFrame:
    """Return the columns of a parsed frame for the pipeline's function."""
    whole = frame.filter(sf.col(ERROR).isNull())
    whole = whole.withColumn(_HEARTBEAT, _is_heartbeat()).withColumn(_TIME, sf.col("timestamp"))
    if decode == "raw":
        wanted = whole.select(*_SOURCE, "value", _HEARTBEAT, _TIME)
    else:
        wanted = _unpacked(whole, _schema(schema), exploded=decode == "arrow")
    if watermark is None:
        return wanted.filter(~sf.col(_HEARTBEAT)).drop(_HEARTBEAT, _TIME)
    return _watermarked(wanted, watermark).drop(_HEARTBEAT, _TIME)


def _watermarked(frame: DataFrame, watermark: Watermark) -> DataFrame:
    """Drop heartbeats after they have advanced the watermark."""
    if watermark.column not in frame.columns:
        raise InvalidArgument(
            f"the watermark's column {watermark.column!r} is none of {', '.join(frame.columns)}"
        )
    time = sf.when(sf.col(_HEARTBEAT), sf.col(_TIME)).otherwise(sf.col(watermark.column))
    frame = frame.withColumn(watermark.column, time)
    frame = frame.withWatermark(watermark.column, watermark.delay)
    # Spark moves a filter below the watermark unless it uses the watermark's column.
    beats = sf.col(_HEARTBEAT) & (sf.col(watermark.column) < sf.lit(_NEVER).cast("timestamp"))
    return frame.filter(~sf.coalesce(beats, sf.lit(False)))


def _is_heartbeat() -> Column:
    return sf.coalesce(sf.col("key") == sf.lit(HEARTBEAT_KEY), sf.lit(False))


def _by_text(rows: DataFrame, fields: StructType, parse: Callable[..., Column]) -> DataFrame:
    """Parse JSON or CSV with Spark, which keeps malformed records in a separate column."""
    wanted = StructType([*fields.fields, StructField(ERROR, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": ERROR}
    value = parse(sf.col("value").cast("string"), wanted.toDDL(), options)
    found = rows.withColumn(_DECODED, value)
    misfit = sf.col(_DECODED).isNull() | sf.col(_DECODED)[ERROR].isNotNull()
    return found.withColumn(ERROR, sf.when(misfit, sf.lit("the value does not fit the schema")))


def _by_function(
    rows: DataFrame, returned: StructType | ArrayType, function: Callable[[bytes], Any]
) -> DataFrame:
    """Call a Python function for each value. An exception becomes the error; None drops a row."""

    def guarded(value: Any) -> Any:
        try:
            return function(bytes(value)), None
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"

    fields = [StructField("found", returned), StructField("error", StringType())]
    answer = sf.udf(guarded, StructType(fields), useArrow=False)(sf.col("value"))
    found = rows.withColumn(_DECODED, answer).withColumn(ERROR, sf.col(_DECODED)["error"])
    found = found.withColumn(_DECODED, sf.col(_DECODED)["found"])
    wanted = sf.col(_DECODED).isNotNull() | sf.col(ERROR).isNotNull() | _is_heartbeat()
    return found.filter(wanted)


def _arrow_rows(fields: StructType) -> Callable[[bytes], Any]:
    """Return a function for the rows of a value that is an Arrow IPC stream."""
    names = [field.name for field in fields.fields]

    def rows(value: bytes) -> list[Any] | None:
        import pyarrow as pa

        table = pa.ipc.open_stream(value).read_all().select(names)
        found = [tuple(row[name] for name in names) for row in table.to_pylist()]
        return found or None  # Spark would turn an empty list into a row of nulls

    return rows


def _unpacked(frame: DataFrame, fields: StructType, *, exploded: bool) -> DataFrame:
    if exploded:
        frame = frame.withColumn(_DECODED, sf.explode_outer(_DECODED))
    own = [sf.col(_DECODED)[field.name].alias(field.name) for field in fields.fields]
    shadowed = {field.name.lower() for field in fields.fields}
    others = [name for name in _SOURCE if name not in shadowed]
    return frame.select(*own, *others, _HEARTBEAT, _TIME)


def _schema(text: str) -> StructType:
    try:
        found = StructType.fromDDL(text)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(f"Spark does not know the schema {text!r}: {reason}") from None
    if not isinstance(found, StructType):
        raise InvalidArgument(f"the schema {text!r} must have named columns: 'path string, …'")
    return found

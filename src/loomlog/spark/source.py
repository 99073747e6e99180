"""The data source `loomlog`, as Spark uses it: columns, options, readers and writers.

Spark creates it again in each of its Python processes, so it has only the options.
"""

from __future__ import annotations

import sys
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from loomlog.errors import InvalidArgument
from loomlog.spark.options import includes_headers, names_logs, read_options
from loomlog.spark.readers import BatchReader, FilteringReader, MicroBatchReader
from loomlog.spark.writers import BatchWriter, StreamWriter, require_writable, write_options

COLUMNS: Final = StructType(
    [
        StructField("position", LongType(), nullable=False),
        StructField("stream", IntegerType(), nullable=False),
        StructField("llsn", LongType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("key", BinaryType()),
        StructField("value", BinaryType(), nullable=False),
    ]
)
_LOG: Final = StructField("log", StringType(), nullable=False)
_HEADERS: Final = StructField("headers", MapType(StringType(), BinaryType()))
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class LoomlogSource(DataSource):
    """`format("loomlog")`."""

    @classmethod
    def name(cls) -> str:
        return "loomlog"

    def schema(self) -> StructType:
        return self._columns()

    def _columns(self) -> StructType:
        log = [_LOG] if names_logs(self.options) else []
        headers = [_HEADERS] if includes_headers(self.options) else []
        return StructType([*log, *COLUMNS.fields, *headers])

    def reader(self, schema: StructType) -> DataSourceReader:
        _require_columns(schema, self._columns())
        options = read_options(self.options, streaming=False)
        # A reader that takes filters is refused where push-down is off, which is the default; the
        # setting does not reach this process, but only the push-down worker runs where it is on.
        kind = FilteringReader if _in_pushdown_worker() else BatchReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> MicroBatchReader:  # noqa: N802 - Spark's name
        _require_columns(schema, self._columns())
        return MicroBatchReader(read_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        require_writable(schema, overwrite)
        return BatchWriter(write_options(self.options, streaming=False))

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> StreamWriter:
        require_writable(schema, overwrite)
        return StreamWriter(write_options(self.options, streaming=True))


def _in_pushdown_worker() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", "") == _PUSHDOWN_WORKER


def _require_columns(schema: StructType, columns: StructType) -> None:
    """Raise unless a schema given by the user equals ours."""
    given = [(field.name, field.dataType) for field in schema.fields]
    ours = [(field.name, field.dataType) for field in columns.fields]
    if given != ours:
        raise InvalidArgument(
            f"the loomlog source has the columns {columns.simpleString()}, not "
            f"{schema.simpleString()}: leave .schema() out and cast what you select"
        )

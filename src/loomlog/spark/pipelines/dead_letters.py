"""Dead letters: records that a pipeline could not process, with the reason, in a log of their own.

key     the position, as text
value   {"pipeline", "version", "log", "position", "stream", "llsn", "time_us", "error", "key",
        "value"} as JSON; key and value of the record in base64

A record may also fail for another version of the output, so a letter names the version that lacks
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from loomlog.spark.pipelines.decoder import ERROR
from loomlog.spark.pipelines.definition import Letters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCHEMA: Final = (
    "pipeline string, version int, log string, position long, stream int, llsn long, time_us long, "
    "error string, key string, value string"
)


def written(lost: DataFrame, pipeline: str, version: int, log: str) -> DataFrame:
    """Convert records, with the reasons in the column ERROR, to letters."""
    letter = sf.struct(
        sf.lit(pipeline).alias("pipeline"),
        sf.lit(version).alias("version"),
        sf.lit(log).alias("log"),
        "position",
        "stream",
        "llsn",
        sf.unix_micros("timestamp").alias("time_us"),
        sf.col(ERROR).alias("error"),
        sf.base64("key").alias("key"),
        sf.base64("value").alias("value"),
    )
    return lost.select(
        sf.col("position").cast("string").alias("key"), sf.to_json(letter).alias("value")
    )


def opened(letters: DataFrame, wanted: Letters) -> DataFrame:
    """Return the records that a version of a pipeline's output lacks, according to the letters of
    the pipeline and of its replays, with the columns that they had in the log."""
    letter = sf.from_json(sf.col("value").cast("string"), _SCHEMA)
    opened = letters.select(letter.alias("letter")).filter(sf.col("letter.log") == wanted.log)
    opened = opened.filter(sf.split("letter.pipeline", "@")[0] == wanted.pipeline)
    opened = opened.filter(sf.col("letter.version") == wanted.version)
    return opened.select(
        "letter.position",
        "letter.stream",
        "letter.llsn",
        sf.timestamp_micros("letter.time_us").alias("timestamp"),
        sf.unbase64("letter.key").alias("key"),
        sf.unbase64("letter.value").alias("value"),
    )

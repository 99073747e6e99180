"""Reads the records that a pipeline could not process."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from loomlog.client.blocking import BlockingCluster
from loomlog.errors import NotFound
from loomlog.spark.pipelines.store import ProgressStore


def dead_letters(
    cluster: BlockingCluster, pipeline: str, count_max: int, log: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the newest dead letters of a pipeline, oldest first; `value` is the record's bytes."""
    default = ProgressStore(cluster, pipeline).load().definition.get("dead_letters")
    letters = cluster.log(log or default or f"{pipeline}.dead-letters")
    try:
        first, last = letters.earliest(), letters.tail()
    except NotFound:
        return
    first = max(first, last - count_max + 1)
    if first > last:
        return
    for entry in letters.subscribe(first, last):
        letter = json.loads(entry.value)
        yield {"letter": entry.position, **letter, "value": base64.b64decode(letter["value"])}

"""What the tests of pipelines share: a source log, runs, and what came out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from spark_rig import Rig

from loomlog.spark import Pipeline, Runner
from loomlog.spark.pipelines.runner import Listener
from loomlog.spark.pipelines.units import Progress


class PipelineRig(Rig):
    """A log to read, and ways to run pipelines on it."""

    @property
    def name(self) -> str:
        """For the pipeline: as unique as the log's."""
        return f"pipeline-{self.log.name}"

    def append(self, records: Iterable[Any], batch: int = 10) -> None:
        """Records as JSON (bytes as they are), in batches dealt to the streams in turn."""
        values = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in records]
        for turn, at in enumerate(range(0, len(values), batch)):
            stream = self.streams[turn % len(self.streams)]
            self.log.append_many(values[at : at + batch], stream=stream)

    def run(self, pipeline: Pipeline, listener: Listener | None = None) -> Progress:
        """All that is there now."""
        return Runner(pipeline, self.address, self.spark, listener=listener).run(once=True)

    def values(self, log: str) -> list[Any]:  # type: ignore[override]
        """What is in another log, as JSON, in its order."""
        found = self.cluster.log(log)
        return [json.loads(entry.value) for entry in found.subscribe(1, found.tail())]

"""The rig of pipeline tests: a source log, runs, and what came out."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from spark_rig import SparkRig

from loomlog.errors import NotFound
from loomlog.spark import Pipeline, Runner
from loomlog.spark.pipelines.runner import Listener
from loomlog.spark.pipelines.store import ProgressStore
from loomlog.spark.pipelines.units import Progress, Unit


class PipelineRig(SparkRig):
    """A log to read, and ways to run pipelines on it."""

    @property
    def name(self) -> str:
        """The name of the pipeline, as unique as the log's."""
        return f"p-{self.log.name}"

    def append(self, records: Iterable[Any], batch: int = 10) -> None:
        """Append records as JSON (bytes as they are), in batches for each stream in turn."""
        values = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in records]
        streams = self.streams
        for turn, at in enumerate(range(0, len(values), batch)):
            self.log.append_many(values[at : at + batch], stream=streams[turn % len(streams)])

    def run(self, pipeline: Pipeline, told: list[Unit] | None = None) -> Progress:
        """Process all that is there now; add committed units to `told`."""
        units: list[Unit] = [] if told is None else told
        listener = Listener(committed=lambda unit, progress: units.append(unit))
        return Runner(pipeline, self.address, self.spark, listener=listener).run(once=True)

    def runner(self, pipeline: Pipeline, site: str = "here") -> BackgroundRunner:
        return BackgroundRunner(self, pipeline, site)

    def progress(self, name: str = "") -> Progress:
        return ProgressStore(self.cluster, name or self.name).load()

    def values(self, log: str) -> list[Any]:  # type: ignore[override]
        """Return the values of another log, decoded from JSON, in order."""
        found = self.cluster.log(log)
        tail = found.tail()
        entries = found.subscribe(1, tail) if tail else ()
        return [json.loads(entry.value) for entry in entries]

    def total(self, log: str, field: str) -> int:
        """Return the sum of a field in another log; 0 as long as there is none."""
        try:
            return sum(row[field] for row in self.values(log))
        except NotFound:
            return 0

    def letters(self) -> list[dict[str, Any]]:
        """Return the dead letters of the pipeline, with their original values."""
        found = self.values(f"{self.name}.dead-letters")
        return [letter | {"value": base64.b64decode(letter["value"])} for letter in found]


class BackgroundRunner:
    """A runner in a thread, until it is stopped."""

    def __init__(self, rig: PipelineRig, pipeline: Pipeline, site: str) -> None:
        self.said: list[str] = []
        self.units: list[Unit] = []
        self.error: BaseException | None = None
        self._news = threading.Condition()
        listener = Listener(committed=self._on_commit, said=self._on_said)
        self._runner = Runner(pipeline, rig.address, rig.spark, site=site, listener=listener)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._runner.stop()
        self.join()

    def join(self) -> BaseException | None:
        """Wait for its end and return the error, if any."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.error

    def wait_until_said(self, text: str) -> bool:
        return self.wait_until(lambda: any(text in each for each in self.said))

    def wait_until_committed(self, position: int) -> bool:
        def done() -> bool:
            return any(r.last >= position for u in self.units for r in u.ranges.values())

        return self.wait_until(done)

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait until the condition holds; return False if that takes too long."""
        with self._news:
            return bool(self._news.wait_for(condition, timeout=60))

    def _run(self) -> None:
        try:
            self._runner.run()
        except BaseException as error:
            self.error = error

    def _on_said(self, text: str) -> None:
        with self._news:
            self.said.append(text)
            self._news.notify_all()

    def _on_commit(self, unit: Unit, progress: Progress) -> None:
        with self._news:
            self.units.append(unit)
            self._news.notify_all()

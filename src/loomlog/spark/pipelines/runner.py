"""A runner: a process that runs a pipeline, as the active site or as a standby."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from loomlog.client.blocking import BlockingCluster, connect_sync
from loomlog.core.backoff import Backoff
from loomlog.errors import Fenced, LoomError
from loomlog.spark.pipelines import log_output, units
from loomlog.spark.pipelines.decoder import HEARTBEAT_KEY
from loomlog.spark.pipelines.definition import Pipeline, Rerun
from loomlog.spark.pipelines.failures import (
    Fault,
    PipelineError,
    fault_of,
    in_our_words,
    output_ahead,
    reason_of,
)
from loomlog.spark.pipelines.outputs import CountedOutput, SearchedOutput, UnitId
from loomlog.spark.pipelines.site import Site
from loomlog.spark.pipelines.stateful import StatefulWork
from loomlog.spark.pipelines.stateless import StatelessWork
from loomlog.spark.pipelines.store import ProgressStore, positions_before
from loomlog.spark.pipelines.units import Progress, Unit
from loomlog.spark.pipelines.work import Work
from loomlog.types import Glsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from loomlog.client.blocking import BlockingLog


W = TypeVar("W", bound=Work)

_BACKOFF: Final = Backoff(first_s=0.2, max_s=10.0)
_SETTINGS: Final = {"spark.sql.session.timeZone": "UTC"}  # wherever a site is
_WATCH_S: Final = 0.2  # how often a query is checked


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks for observers of a runner."""

    committed: Callable[[Unit, Progress], None] = lambda unit, progress: None
    said: Callable[[str], None] = lambda text: None


class Runner:
    """Runs a pipeline until it is stopped or reaches its end."""

    def __init__(
        self,
        pipeline: Pipeline,
        cluster: str,
        spark: SparkSession,
        *,
        site: str | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._address = cluster
        self._spark = _configured(spark, pipeline)
        self._site_name = site or socket.gethostname()
        self._listener = listener or Listener()
        self._stop = threading.Event()
        self._fenced = False
        self._committed = 0  # units, by this runner

    def stop(self) -> None:
        """Request a stop; work in progress is abandoned, and repeated by the next runner."""
        self._stop.set()
        with suppress(Py4JError, OSError):  # the signal that stops us may have ended Spark, too
            self._spark.sparkContext.cancelAllJobs()

    def run(self, *, once: bool = False) -> Progress:
        """Run the pipeline; with `once`, until all current entries of its sources are committed."""
        with connect_sync(self._address) as cluster:
            site = Site(cluster, self._pipeline.name, self._site_name, self._pipeline.lease_ttl_s)
            try:
                store = self._activate(cluster, site)
                if store is None:
                    return ProgressStore(cluster, self._pipeline.name).load()
                return self._work(cluster, store, once=once)
            finally:
                site.leave()

    # ---- becoming active

    def _activate(self, cluster: BlockingCluster, site: Site) -> ProgressStore | None:
        """Acquire the lease and return the progress; None if stopped while waiting."""
        waiting, failures = False, 0
        while not self._stop.is_set():
            try:
                store = self._try_activate(cluster, site)
                if store is not None:
                    return store
                if not waiting:
                    self._listener.said(
                        f"standing by as site {site.name}: site {site.holder()} is active"
                    )
                    waiting = True
            except Exception as error:
                failures += 1
                self._wait_after(error, failures)
            self._stop.wait(site.poll_s)
        return None

    def _try_activate(self, cluster: BlockingCluster, site: Site) -> ProgressStore | None:
        store = ProgressStore(cluster, self._pipeline.name)
        known = store.find()
        if known is not None:  # a runner with another definition must not replace a running one
            units.defined(known, self._pipeline.summary())
        lease = site.try_activate()
        if lease is None:
            return None
        store.fence(lease)
        self._check_current(cluster, known or self._create(cluster, store), lease.epoch)
        store.change(lambda now: units.defined(now, self._pipeline.summary()))
        site.keep(lease, self._on_fenced)
        self._listener.said(f"active as site {site.name} (epoch {lease.epoch})")
        return store

    def _check_current(self, cluster: BlockingCluster, known: Progress, epoch: int) -> None:
        """Stop for an operator if the output may have units that were forgotten."""
        if not self._may_be_ahead(known, epoch):
            return
        output = self._pipeline.output.describe()
        error = output_ahead(self._pipeline.name, f"{output} may have")
        self._note(ProgressStore(cluster, self._pipeline.name), error)  # it does not take over
        raise error

    def _may_be_ahead(self, known: Progress, epoch: int) -> bool:
        output = self._pipeline.output
        if units.is_restored(known, epoch):
            return not isinstance(output, CountedOutput)  # else it says itself which units it has
        if not units.is_unknown(known, epoch) or self._pipeline.rerun != Rerun():
            return False
        first = UnitId(self._address, self._pipeline.name, 1, known.version, known.life)
        return isinstance(output, SearchedOutput) and output.may_have(first)

    def _create(self, cluster: BlockingCluster, store: ProgressStore) -> Progress:
        before = positions_before(cluster, self._pipeline.logs, self._pipeline.start)
        return store.create(Progress(definition=self._pipeline.summary(), positions=before))

    def _on_fenced(self) -> None:
        self._fenced = True
        self.stop()

    # ---- working

    def _work(self, cluster: BlockingCluster, store: ProgressStore, *, once: bool) -> Progress:
        work = self._query if self._pipeline.stateful else self._units
        try:
            work(cluster, store, once)
        except Fenced:
            self._fenced = True
        except Exception as error:
            if not self._stop.is_set():
                reported = in_our_words(error)
                self._note(store, reported)
                if reported is error:
                    raise
                raise reported from error
        if self._fenced:
            raise Fenced(
                f"site {self._site_name} was replaced: another one runs pipeline "
                f"{self._pipeline.name!r} now; nothing of this one counts any more"
            )
        return store.load()

    def _make(self, kind: type[W], store: ProgressStore) -> W:
        made = (self._pipeline, self._address, self._spark, store)
        return kind(*made, self._on_committed, self._stop.is_set)

    def _units(self, cluster: BlockingCluster, store: ProgressStore, once: bool) -> None:
        """Run a stateless pipeline."""
        source = cluster.log(self._pipeline.log)
        work = self._make(StatelessWork, store)
        last: Glsn | None = None
        failures = 0
        while not self._stop.is_set():
            try:
                if once and last is None:
                    last = source.tail()
                if not work.step(source, last):
                    if once or store.load().at_end:
                        return
                    self._stop.wait(self._pipeline.interval_s)
                failures = 0
            except Exception as error:
                failures += 1
                self._wait_after(error, failures)

    def _query(self, cluster: BlockingCluster, store: ProgressStore, once: bool) -> None:
        """Run a stateful pipeline; a query that fails is restarted a few times."""
        failures, counted = 0, 0  # since a unit was committed; those that may be the records' fault
        committed = -1
        while not self._stop.is_set():
            error = self._one_query(cluster, store, once)
            if error is None:
                return
            if self._committed > committed:
                failures, counted, committed = 0, 0, self._committed
            failures += 1
            counted += fault_of(error) is Fault.RECORDS
            if counted >= self._pipeline.attempts:
                raise PipelineError(
                    f"a micro-batch of pipeline {self._pipeline.name!r} failed {counted} times: "
                    f"{reason_of(error)}; fix the function, then run it again"
                ) from error
            self._wait_after(error, failures)

    def _one_query(
        self, cluster: BlockingCluster, store: ProgressStore, once: bool
    ) -> Exception | None:
        """Run the query once; return why it failed, or None if it is done or was stopped."""
        try:
            work = self._make(StatefulWork, store)
            query = work.start(once=once)
            try:
                self._watch(query, cluster)
            finally:
                if query.isActive:
                    query.stop()
        except Exception as error:
            return error
        return None if self._stop.is_set() else work.failure(query)

    def _watch(self, query: StreamingQuery, cluster: BlockingCluster) -> None:
        """Wait until the query ends or the runner is stopped."""
        beats = None
        if self._pipeline.heartbeat_s is not None:
            logs = [cluster.log(log) for log in self._pipeline.watermarks]
            beats = Heartbeats(logs, self._pipeline.heartbeat_s)
        while query.isActive and not self._stop.wait(_WATCH_S):
            if beats is not None:
                beats.look()

    def _wait_after(self, error: Exception, failures: int) -> None:
        """Wait before a retry; raise the error if a retry would not help."""
        if self._stop.is_set() or fault_of(error) is Fault.PIPELINE:
            raise error
        self._listener.said(reason_of(error))
        self._stop.wait(_BACKOFF.delay_s(failures - 1))

    def _note(self, store: ProgressStore, error: Exception) -> None:
        """Record why the pipeline stopped, for its status."""
        try:
            store.change(lambda now: units.stopped(now, reason_of(error)))
        except LoomError:
            pass  # the error itself is reported anyway

    def _on_committed(self, unit: Unit, progress: Progress) -> None:
        self._committed += 1
        self._listener.committed(unit, progress)


def _configured(spark: SparkSession, pipeline: Pipeline) -> SparkSession:
    """Apply the pipeline's settings to the session, which is not shared while it runs."""
    log_output.register(spark)
    for name, value in (_SETTINGS | dict(pipeline.spark)).items():
        if spark.conf.isModifiable(name):  # other settings belong to the application
            spark.conf.set(name, value)
    return spark


class Heartbeats:
    """Appends records without content to idle logs, so that watermarks advance.

    Pipelines drop them once the watermark has advanced; other readers recognise them by their key.
    """

    def __init__(self, logs: Iterable[BlockingLog], every_s: float) -> None:
        self._every_s = every_s
        self._seen: dict[BlockingLog, tuple[Glsn, float]] = {
            log: (log.tail(), time.monotonic()) for log in logs
        }

    def look(self) -> None:
        """Append a heartbeat to each log that has not grown for `every_s`."""
        now = time.monotonic()
        for log, (tail, since) in self._seen.items():
            if log.tail() != tail:
                self._seen[log] = log.tail(), now
            elif now - since >= self._every_s:
                self._seen[log] = log.append(b"", HEARTBEAT_KEY).position, now

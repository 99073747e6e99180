"""Metrics for Prometheus: what servers and pipelines export, as text.

Values are gathered when a page is asked for; meters.py has those that are counted all the time. A
page is bounded: of logs, streams and readers, at most `limits.METRICS_…_MAX` are shown, those with
the lowest numbers, so that the same ones are shown each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from loomlog.meters import BOUNDS_S, Histogram

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "loomlog_"
SAMPLES_AT_ONCE: Final = 100  # then the server does something else

_NO_LABELS: Final[Mapping[str, object]] = MappingProxyType({})


class Sample(NamedTuple):
    """One value of a metric, identified by its labels."""

    value: float | Histogram
    labels: Mapping[str, object] = _NO_LABELS


class Metric(NamedTuple):
    """One metric with all its samples."""

    name: str  # without the prefix; a counter's without `_total`, too
    kind: str  # gauge, counter or histogram
    help: str
    samples: list[Sample]


def gauge(name: str, help: str, value: float) -> Metric:
    return Metric(name, "gauge", help, [Sample(value)])


def counter(name: str, help: str, value: float) -> Metric:
    return Metric(name, "counter", help, [Sample(value)])


def histogram(name: str, help: str, value: Histogram) -> Metric:
    return Metric(name, "histogram", help, [Sample(value)])


def text(metrics: Iterable[Metric]) -> str:
    """Return metrics in Prometheus' text format."""
    return "".join(map(_text_of, _families(metrics)))


async def page(metrics: Iterable[Metric]) -> bytes:
    """Return metrics in Prometheus' text format, with those of this process. A server does other
    work in between: to write a thousand samples takes some 10 ms."""
    parts = []
    for part in _parts(metrics):
        parts.append(part)
        await asyncio.sleep(0)
    return "".join([*parts, *map(_text_of, _of_process())]).encode()


def _parts(metrics: Iterable[Metric]) -> Iterator[str]:
    """Yield the text piece by piece; of a metric with many samples, its head comes first."""
    for metric in metrics:
        for begin in range(0, max(1, len(metric.samples)), SAMPLES_AT_ONCE):
            some = metric.samples[begin : begin + SAMPLES_AT_ONCE]
            for family in _families([metric._replace(samples=some)]):
                written = _text_of(family)
                yield written.split("\n", 2)[2] if begin else written


def server_info(kind: str) -> Metric:
    """Return the version of this server."""
    from importlib.metadata import version

    labels = {"kind": kind, "version": version("loomlog")}
    return Metric("server_info", "gauge", "The software of this server.", [Sample(1, labels)])


def _families(metrics: Iterable[Metric]) -> Iterator[Family]:
    from prometheus_client.metrics_core import Metric as Family

    for metric in metrics:
        name = PREFIX + metric.name
        family = Family(name, metric.help, metric.kind)
        shown = f"{name}_total" if metric.kind == "counter" else name
        for value, labels in metric.samples:
            texts = {label: str(each) for label, each in labels.items()}
            if isinstance(value, Histogram):
                _add_histogram(family, texts, value)
            else:
                family.add_sample(shown, texts, value)
        yield family


def _add_histogram(family: Family, labels: dict[str, str], value: Histogram) -> None:
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    sums = list(accumulate(value.counts))
    for bound, count in zip(bounds, sums, strict=True):
        family.add_sample(f"{family.name}_bucket", labels | {"le": bound}, count)
    family.add_sample(f"{family.name}_count", labels, sums[-1])
    family.add_sample(f"{family.name}_sum", labels, value.sum_s)


def _of_process() -> Iterable[Family]:
    from prometheus_client import PlatformCollector, ProcessCollector

    yield from ProcessCollector(registry=None).collect()
    yield from PlatformCollector(registry=None).collect()


class _One:
    """A family as the collector that the text is made of."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> list[Family]:
        return [self._family]


def _text_of(family: Family) -> str:
    from prometheus_client.exposition import generate_latest

    return generate_latest(_One(family)).decode()

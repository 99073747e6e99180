"""The text that Prometheus reads, and the bounds of a page."""

from __future__ import annotations

from scrape import values

from loomlog import limits
from loomlog.errors import Busy
from loomlog.metadata.metrics import cluster_metrics
from loomlog.meters import BOUNDS_S, LOGS_MAX, Histogram, LogTraffic, OpenRequests, Traffic
from loomlog.metrics import (
    SAMPLES_AT_ONCE,
    Metric,
    Sample,
    counter,
    gauge,
    histogram,
    page,
    text,
)
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.operations import OPERATIONS
from loomlog.wire.server_metrics import log_metrics


def test_numbers_have_all_their_digits_and_labels_are_escaped() -> None:
    samples = [Sample(1794837005.493457, {"log": 'a "b"\n\\'})]
    page = text([counter("things", "Things.", 2**53), Metric("time", "gauge", "Time.", samples)])
    found = values(page)
    assert found["loomlog_things_total"] == 2**53
    assert found['loomlog_time{log="a \\"b\\"\\n\\\\"}'] == 1794837005.493457
    assert "# HELP loomlog_things_total Things.\n# TYPE loomlog_things_total counter\n" in page


def test_a_histogram_counts_each_duration_in_all_larger_buckets() -> None:
    times = Histogram()
    for duration_s in (0.00001, 0.003, 0.005, 99.0):
        times.observe(duration_s)
    found = values(text([histogram("work_seconds", "Work.", times)]))
    buckets = [found[f'loomlog_work_seconds_bucket{{le="{bound}"}}'] for bound in BOUNDS_S]
    assert buckets == [1] * 5 + [3] * (len(BOUNDS_S) - 5)
    assert found['loomlog_work_seconds_bucket{le="+Inf"}'] == 4
    assert found["loomlog_work_seconds_count"] == 4
    assert found["loomlog_work_seconds_sum"] == 0.00001 + 0.003 + 0.005 + 99.0


async def test_a_page_is_the_text_and_the_process() -> None:
    samples = [Sample(number, {"log": number}) for number in range(3 * SAMPLES_AT_ONCE + 1)]
    many = Metric("many", "gauge", "Many.", samples)
    metrics = [gauge("one", "One.", 1), many, Metric("none", "gauge", "None.", [])]
    written = (await page(metrics)).decode()
    assert written.startswith(text(metrics))
    assert "# TYPE process_cpu_seconds_total counter\n" in written


def test_a_metric_without_samples_is_still_described() -> None:
    page = text([Metric("nothing", "gauge", "Nothing.", []), gauge("one", "One.", 1)])
    assert "# TYPE loomlog_nothing gauge\n" in page


def test_a_page_of_thousands_of_logs_is_bounded_and_says_what_it_leaves_out() -> None:
    status = pb.Status()
    for number in range(1, 3001):
        log = status.logs.add(log_id=number, name=f"log-{3001 - number}", tail=number)
        log.segments.add(loglet_id=number)
        log.streams.extend(pb.LogStream(log_stream_id=number * 10 + n) for n in range(5))
    found = values(text(cluster_metrics(status)))
    tails = [name for name in found if name.startswith("loomlog_log_tail{")]
    assert len(tails) == limits.METRICS_LOGS_MAX
    assert 'loomlog_log_tail{log="log-3000"}' in tails, "the oldest logs stay"
    running = [name for name in found if name.startswith("loomlog_stream_running{")]
    assert len(running) == limits.METRICS_STREAMS_MAX
    assert found["loomlog_metrics_logs_omitted"] == 2000
    traffic = [(f"log-{number:05}", LogTraffic(appends=1)) for number in range(3000)]
    assert len(values(text(log_metrics(traffic)))) == 5 * limits.METRICS_LOGS_MAX


def test_requests_that_are_refused_are_not_counted_for_logs() -> None:
    traffic = Traffic(OPERATIONS)
    requests = OpenRequests(traffic)
    for number in range(LOGS_MAX + 10):
        read = pb.Read(log_stream_id=number)
        requests.begin(1, "read", read, memoryview(b""))
        requests.refuse(1, Busy("there are too many requests"))
    assert not traffic.logs
    assert traffic.errors == {"Busy": LOGS_MAX + 10}
    requests.begin(1, "read", read, memoryview(b""))
    requests.answer(1, [b"x" * 100])
    assert not requests
    assert [counts.read_bytes for counts in traffic.logs.values()] == [100]
    assert sum(traffic.times["read"].counts) == 1


def test_the_time_of_what_waits_for_entries_is_not_measured() -> None:
    traffic = Traffic(OPERATIONS)
    requests = OpenRequests(traffic)
    for wait_ms, measured in ((1000, 0), (0, 1)):
        fetch = pb.ChainRequest(kind=pb.ChainRequest.FETCH, loglet_id=1, wait_ms=wait_ms)
        requests.begin(1, "chain_request", fetch, memoryview(b""))
        assert len(requests) == 1
        requests.answer(1, [b"x" * 10])
        assert sum(traffic.times.get("chain_fetch", Histogram()).counts) == measured


def test_messages_of_another_version_are_not_measured() -> None:
    requests = OpenRequests(Traffic(OPERATIONS))
    requests.begin(1, "newer", pb.Frame(id=1), memoryview(b""))
    unknown = pb.ChainRequest(kind=99)  # type: ignore[arg-type]
    requests.begin(1, "chain_request", unknown, memoryview(b""))
    assert not requests

"""The pages that a storage node serves over HTTP: health, readiness, metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from loomlog.errors import Unavailable
from loomlog.meters import SYNC_TIMES, LogKey, LogTraffic, Traffic
from loomlog.metrics import CONTENT_TYPE, Metric, Sample, gauge, page, server_info
from loomlog.node.access import LearnedNames
from loomlog.node.disks import Disks
from loomlog.node.metadata_link import MetadataLink
from loomlog.node.volume import Volume
from loomlog.types import LogId
from loomlog.wire.codec import Codec
from loomlog.wire.link import Server
from loomlog.wire.permissions import Target
from loomlog.wire.server_metrics import disk_metrics, log_metrics, server_metrics

if TYPE_CHECKING:
    from loomlog.http import Content, HttpServer, Permits


class Pages:
    """The pages of one node; none without an address."""

    def __init__(
        self,
        server: Server,
        traffic: Traffic,
        disks: Disks,
        link: MetadataLink,
        names: LearnedNames,
        codec: Codec,
        permits: Permits,
    ) -> None:
        self._server = server
        self._traffic = traffic
        self._disks = disks
        self._link = link
        self._names = names
        self._codec = codec
        self._permits = permits
        self._http: HttpServer | None = None

    @property
    def address(self) -> str | None:
        return self._http.address if self._http is not None else None

    async def start(self, address: str | None) -> None:
        if address is None:
            return
        from loomlog.http import HttpServer

        http = HttpServer(
            {
                "/healthz": lambda: ("text/plain; charset=utf-8", b"ok\n"),
                "/readyz": self._readiness,
                "/metrics": self._metrics,
            },
            self._codec.credentials,
            public=("/healthz", "/readyz"),
            permits=self._permits,
        )
        try:
            await http.start(address)
        except BaseException:
            await self._server.stop()
            raise
        self._http = http

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.stop()

    def _readiness(self) -> Content:
        """Return a page if the node serves everything that it stores. Raise Unavailable if not."""
        if not self._link.is_connected:
            held_back = self._link.held_back
            reason = f": {held_back.result()}" if held_back.done() else ""
            raise Unavailable(f"not registered with the metadata repository{reason}")
        failed = {each.name for each in self._disks.volumes if _has_failed(each)}
        if failed := failed.union(self._disks.opened.missing.values()):
            raise Unavailable(
                f"what is on {', '.join(sorted(failed))} is not served: `loom status` says why"
            )
        return "text/plain; charset=utf-8", b"ready\n"

    async def _metrics(self) -> Content:
        await self._names.learn_all(self._loglets().values())
        volumes = self._disks.volumes
        metrics = [
            server_info("vsn"),
            gauge(
                "registered",
                "1 if this node takes part in the cluster.",
                int(self._link.is_connected),
            ),
            *server_metrics(self._traffic, self._server, SYNC_TIMES),
            *log_metrics(self._traffic_of_logs().items()),
            *disk_metrics({each.name: (each.room.free, each.room.total) for each in volumes}),
            self._of_volumes("used_bytes", "Bytes that this node uses.", _used),
            self._failed_volumes(),
            self._of_volumes("full", "1 if a volume takes no appends for lack of space.", _is_full),
            gauge("disk_jobs_waiting", "Jobs that wait for a disk.", self._disks.waiting),
        ]
        return CONTENT_TYPE, await page(metrics)

    def _of_volumes(self, name: str, help: str, value: Callable[[Volume], int]) -> Metric:
        samples = [Sample(value(each), {"volume": each.name}) for each in self._disks.volumes]
        return Metric(f"disk_{name}", "gauge", help, samples)

    def _failed_volumes(self) -> Metric:
        metric = self._of_volumes("failed", "1 if a volume does not work.", _has_failed)
        left_out = [Sample(1, {"volume": name}) for name in sorted(self._disks.failed.names)]
        return metric._replace(samples=[*metric.samples, *left_out])

    def _loglets(self) -> dict[LogKey, LogId]:
        """Return the loglet of everything that was counted and is still here."""
        loglets: dict[LogKey, LogId] = {}
        for field, number in self._traffic.logs:
            is_loglet = field == Target.LOGLET.field
            loglet = number if is_loglet else self._names.loglet_of(number)
            if loglet is not None:
                loglets[field, number] = loglet
        return loglets

    def _traffic_of_logs(self) -> dict[str, LogTraffic]:
        """Return the traffic of each log whose name is known."""
        logs: dict[str, LogTraffic] = {}
        for key, loglet in self._loglets().items():
            if (name := self._names.log_of(loglet)) is not None:
                logs.setdefault(name, LogTraffic()).add(self._traffic.logs[key])
        return logs


def _used(volume: Volume) -> int:
    return volume.room.used


def _has_failed(volume: Volume) -> int:
    return int(not volume.works)


def _is_full(volume: Volume) -> int:
    return int(volume.nearly_full)

"""A site: one of several runners of a pipeline. The holder of the lease is active.

The lease only decides which site should work. Its epoch fences the others: every change of the
pipeline's progress is compared with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from loomlog.errors import Fenced, LoomError
from loomlog.spark.pipelines.store import register_name

if TYPE_CHECKING:
    from loomlog.client.blocking import BlockingCluster
    from loomlog.client.blocking.kv import BlockingLease

_RENEWALS: Final = 3  # within the time that the lease lasts


class Site:
    """The lease of a pipeline, renewed by a thread while this site holds it."""

    def __init__(self, cluster: BlockingCluster, pipeline: str, name: str, ttl_s: float) -> None:
        self.name = name
        self._cluster = cluster
        self._pipeline = pipeline
        self._ttl_s = ttl_s
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None
        self.lease: BlockingLease | None = None

    @property
    def poll_s(self) -> float:
        """The interval at which a standby tries to acquire the lease."""
        return self._ttl_s / _RENEWALS

    def try_activate(self) -> BlockingLease | None:
        """Acquire the lease and return it, or None."""
        name = register_name(self._pipeline)
        self.lease = self._cluster.acquire_lease(name, self.name, self._ttl_s)
        return self.lease

    def keep(self, lease: BlockingLease, on_fenced: Callable[[], None]) -> None:
        """Renew the lease; `on_fenced` is called, in a thread, once it is lost."""
        self._renewing = threading.Thread(
            target=self._renew, args=(lease, on_fenced), name="pipeline-lease", daemon=True
        )
        self._renewing.start()

    def holder(self) -> str:
        """Return the current holder of the lease, for display."""
        info = self._cluster.lease(register_name(self._pipeline))
        return info.holder if info is not None else ""

    def leave(self) -> None:
        """Let another site take over at once."""
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join()
        if self.lease is not None:
            try:
                self.lease.release()
            except LoomError:
                pass  # it runs out
            self.lease = None

    def _renew(self, lease: BlockingLease, on_fenced: Callable[[], None]) -> None:
        while not self._ended.wait(self._ttl_s / _RENEWALS):
            try:
                lease.renew()
            except Fenced:
                on_fenced()
                return
            except LoomError:
                continue  # not reached; that others took over shows when it is

"""Writes the audit trail of a server to the audit log of its cluster, through an ordinary client.

Requests never wait for it. Entries that cannot be written in time are dropped and counted, and all
entries also go to the server's own log.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from loomlog.config import ClientSettings
from loomlog.core.audit import AuditEntry, AuditTrail
from loomlog.core.backoff import Backoff
from loomlog.core.permissions import AUDIT_LOG
from loomlog.errors import LoomError, NotFound
from loomlog.net.address import join_address, split_address

if TYPE_CHECKING:
    from loomlog.cli.processes.server_process import RunnableServer
    from loomlog.client.cluster import Cluster

log = logging.getLogger("loomlog.audit")

_RETRY: Final = Backoff(0.5, 30.0)
FLOOD_PAUSE_S: Final = 1.0  # between entries about omitted ones
ATTEMPTS: Final = 5  # then entries are only in the server's log


class Audited:
    """A server whose audit trail is written while it runs."""

    def __init__(
        self,
        server: RunnableServer,
        name: str,
        trail: AuditTrail,
        metadata: Callable[[], Sequence[str]],
        tls: str,
    ) -> None:
        """`metadata` are the addresses of the metadata repositories; `name` is as vsn-1; `tls` is
        the file of the server's certificate, if any."""
        self._server = server
        self._name = name
        self._trail = trail
        self._metadata = metadata
        self._tls = tls
        self._noted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        trail.noted = self._noted.set

    async def start(self) -> None:
        await self._server.start()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._server.stop()
        self._show(self._trail.take())  # they are no longer written

    async def _run(self) -> None:
        await self._noted.wait()  # connect only when there is something to write
        await asyncio.to_thread(import_module, "loomlog.columns")  # Arrow takes a while
        client = self._client()
        try:
            while True:
                await self._noted.wait()
                self._noted.clear()
                entries = self._trail.take()
                await self._write(client, self._show(entries))
                if any(entry.dropped for entry in entries):
                    await asyncio.sleep(FLOOD_PAUSE_S)
        finally:
            await client.close()

    def _client(self) -> Cluster:
        from loomlog.client.cluster import Cluster

        # Without TLS, the greeting identifies servers.
        return Cluster(list(self._metadata()), ClientSettings(tls=self._tls), role="vsn")

    def _show(self, entries: Sequence[AuditEntry]) -> list[str]:
        """Write entries to the server's own log; return their lines."""
        lines = [json.dumps({"server": self._name, **asdict(entry)}) for entry in entries]
        for line in lines:
            log.warning("%s", line)
        return lines

    async def _write(self, client: Cluster, lines: list[str]) -> None:
        for attempt in range(ATTEMPTS):
            try:
                await client.log(AUDIT_LOG).append_many([line.encode() for line in lines])
                return
            except NotFound:
                return  # there is no audit log: permissions were never enforced
            except LoomError as error:
                log.debug("the audit log is not written yet: %s", error)
                await asyncio.sleep(_RETRY.delay_s(attempt))
        log.error("%d entries are missing in the audit log: it cannot be written", len(lines))


def own_addresses(listening: str, tls: str) -> list[str]:
    """Return the addresses at which a server reaches itself. With TLS that is a host of its
    certificate, because it may listen at the address of all interfaces."""
    if not tls:
        return [listening]
    from loomlog.net.certificates import read_certificate

    host, port = split_address(listening)
    hosts = read_certificate(Path(tls)).hosts
    chosen = [host] if host in hosts else hosts
    return [join_address(each, port) for each in chosen]

"""The console as a server: uvicorn in the event loop of its process."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import uvicorn

from loomlog.client.blocking import connect_sync
from loomlog.client.cluster import Cluster, connect
from loomlog.console.application import application
from loomlog.console.clients import Clients
from loomlog.console.http_protocol import HttpProtocol
from loomlog.console.pages import Pages
from loomlog.console.site import Connector
from loomlog.errors import InvalidArgument, LoomError
from loomlog.net.address import is_loopback
from loomlog.net.listener import Listener

STOP_S: Final = 1  # for requests under way; then they are cancelled
DATE_S: Final = 1.0  # the date in answers is not older
IDLE_S: Final = 60  # a connection without requests is closed after this


class ConsoleServer:
    """Serves the API and the pages of one cluster."""

    def __init__(
        self,
        addresses: str,
        listen: str,
        authorities: Path | None = None,
        certificate: Path | None = None,
        metrics: Sequence[str] = (),
    ) -> None:
        """`authorities` are those of the cluster, and make connections to it use TLS. The
        `certificate` is for HTTPS. It is not shown to the cluster: callers have their own
        permissions, and none of ours."""
        self._listen = listen
        self._certificate = certificate
        tls = "" if authorities is None else str(authorities)
        settings = partial(connect, addresses, tls=tls, spin_s=0.0)

        async def connected(token: str) -> Cluster:
            return await settings(token=token)

        self._connector = Connector(
            Clients(connected),
            lambda token: connect_sync(addresses, tls=tls, token=token, spin_s=0.0),
            addresses,
            tls,
            tuple(metrics),
        )
        self._pages = Pages(self._connector)
        self._listener: Listener | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address that it is bound to."""
        return "" if self._listener is None else self._listener.address

    @property
    def url(self) -> str:
        return f"{'https' if self._certificate else 'http'}://{self.address}/"

    @property
    def failed(self) -> asyncio.Future[LoomError]:
        """A future that is never done: the console waits for a cluster that is away."""
        return asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Listen. Raise InvalidArgument if the address or the certificate cannot be used."""
        https = None if self._certificate is None else _Https(self._certificate)
        only_loopback = https is None and is_loopback(self._listen)
        config = uvicorn.Config(
            application(self._connector, self._pages, only_loopback=only_loopback),
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=STOP_S,
        )
        config.load()
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # warnings: what peers do wrong
        server = _Server(config)
        protocol = partial(
            HttpProtocol, config=config, server_state=server.server_state, app_state={}
        )
        listener = Listener(protocol, https)
        await listener.start(self._listen)
        self._listener, self._server = listener, server
        self._serving = asyncio.get_running_loop().create_task(server.serve())

    async def stop(self) -> None:
        """Stop listening; requests under way get a moment to end."""
        if self._listener is not None:
            await self._listener.stop()
        if self._server is not None and self._serving is not None:
            self._server.end()
            await asyncio.wait([self._serving])
        await self._pages.watches.close()
        await self._connector.clients.close()


class _Server(uvicorn.Server):
    """Answers what arrives; it does not listen itself."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ends = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """Let `serve` return soon."""
        self.should_exit = True
        if not self._ends.done():
            self._ends.set_result(None)

    async def main_loop(self) -> None:
        """Wait for the end. That of uvicorn looks ten times a second, also when nobody asks."""
        while not await self.on_tick(0):
            await asyncio.wait([self._ends], timeout=DATE_S)

    async def startup(self, sockets: object = None) -> None:
        self.servers = []
        self.started = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield


class _Https:
    """The certificate for HTTPS; a renewed one is used from the next handshake on."""

    def __init__(self, file: Path) -> None:
        """Raise InvalidArgument if the file cannot be used."""
        self._file = file
        try:
            self._load()
        except OSError as error:  # an SSLError is one, too
            raise InvalidArgument(
                f"{file} cannot be used for HTTPS: {error.strerror or error}; give a PEM file with "
                "a key and a certificate"
            ) from error

    def accepting(self) -> ssl.SSLContext:
        """Return the context for the next handshake."""
        try:
            if os.stat(self._file).st_mtime_ns != self._loaded:
                self._load()
        except OSError:
            pass  # it is being replaced: the last one stays in use
        return self._context

    def _load(self) -> None:
        loaded = os.stat(self._file).st_mtime_ns
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self._file)
        self._context, self._loaded = context, loaded

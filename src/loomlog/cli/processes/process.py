"""A server process from start to end, the same for vsn and vmr.

Start, one JSON line on stdout when ready, serve until SIGTERM or SIGINT, stop cleanly; a second
signal ends the process at once with exit code 1. What goes wrong at the start is raised, so that
the command says it in one line.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Final, Protocol

from loomlog.cli.processes import event_loop
from loomlog.cli.processes.stop_signals import first, on_stop_signals
from loomlog.errors import LoomError
from loomlog.limits import MIB

log = logging.getLogger(__name__)

# glibc's mallopt(3). Fresh pages cost more than the copy into them, so freed memory is kept:
# buffers of up to 32 MiB come from the heap, and the heap shrinks only above 1 GiB.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_PR_SET_PDEATHSIG: Final = 1

# A worker thread that comes back from fdatasync should not wait 5 ms for the interpreter.
SWITCH_INTERVAL_S: Final = 0.0005


# Entries and secrets are for the user who runs the server, also in files that RocksDB, SQLite or
# etcd make.
PRIVATE_UMASK: Final = 0o077


class Server(Protocol):
    async def start(self) -> None:
        """Return when it serves; raise when it cannot, and leave nothing behind."""

    async def stop(self) -> None: ...


def serve(
    server: Server,
    ready: Callable[[], dict[str, object]],
    failed: Callable[[], asyncio.Future[LoomError]] | None = None,
) -> None:
    """Run the server. `ready` gives the fields of the ready line; `failed` a future that a
    server which cannot go on fills with the reason."""
    os.umask(PRIVATE_UMASK)
    _allow_many_files()
    _keep_freed_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    event_loop.run(_serve(server, ready, failed))


def _allow_many_files() -> None:
    """Raise the limit of open files, often 1,024 by default; connections count too."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def end_with_parent() -> None:
    """Get SIGTERM when the parent dies, so that a killed `loom up` leaves nothing behind."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(1)


async def _serve(
    server: Server,
    ready: Callable[[], dict[str, object]],
    failed: Callable[[], asyncio.Future[LoomError]] | None,
) -> None:
    stop_asked = asyncio.Event()
    on_stop_signals(lambda: _stop_or_exit(stop_asked))
    if not await first(asyncio.ensure_future(server.start()), stop_asked):
        return
    try:
        gc.collect()
        gc.freeze()  # what a server starts with lives as long as the server
        print(json.dumps({"ready": True, "pid": os.getpid(), **ready()}), flush=True)
        never: asyncio.Future[LoomError] = asyncio.get_running_loop().create_future()
        failure = failed() if failed is not None else never
        if await first(failure, stop_asked):
            raise failure.result()
    finally:
        await server.stop()
    log.info("stopped")


def _stop_or_exit(stop_asked: asyncio.Event) -> None:
    if stop_asked.is_set():
        os._exit(1)
    log.info("stopping")
    stop_asked.set()


def _keep_freed_memory() -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(_M_MMAP_THRESHOLD, 32 * MIB)
    mallopt(_M_TRIM_THRESHOLD, 1024 * MIB)

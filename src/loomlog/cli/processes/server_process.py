"""The life of a server process, common to vsn and vmr.

Start, one JSON line on stdout when ready, serve until SIGTERM or SIGINT, stop cleanly; a second
signal ends the process at once with exit code 1. Errors during the start are raised, so that the
command reports them in one line. Log lines go to stderr: JSON for programs, text for people.

Run as a program, this becomes another program that ends when the parent does: for etcd.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import json
import logging
import os
import resource
import signal
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import typer

from loomlog import tracing
from loomlog.cli.console.command import run_async
from loomlog.cli.console.config_file import Config
from loomlog.cli.console.failures import UsageError
from loomlog.errors import InvalidArgument, LoomError
from loomlog.limits import MIB
from loomlog.net.address import is_loopback

log = logging.getLogger(__name__)

# glibc's mallopt(3). Fresh pages cost more than the copy into them, so freed memory is kept:
# buffers of up to 32 MiB come from the heap, and the heap shrinks only above 1 GiB.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_PR_SET_PDEATHSIG: Final = 1

# A worker thread that comes back from fdatasync should not wait 5 ms for the interpreter.
SWITCH_INTERVAL_S: Final = 0.0005

# Entries and secrets are only for the user that runs the server, also in files of RocksDB, SQLite
# and etcd.
PRIVATE_UMASK: Final = 0o077

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


# ---- options


class Format(StrEnum):
    """The forms of log lines."""

    JSON = "json"
    TEXT = "text"


class Level(StrEnum):
    """The least severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Listen = Annotated[
    str, typer.Option(metavar="ADDR", help="Address to serve at; port 0 picks a free one.")
]
Advertise = Annotated[
    str | None,
    typer.Option(metavar="ADDR", show_default="listen", help="Address that others connect to."),
]
LogFormat = Annotated[Format, typer.Option(help="On stderr.")]
LogLevel = Annotated[Level, typer.Option(help="The least important messages to write.")]
Tls = Annotated[
    str,
    typer.Option(
        metavar="DIR|FILE",
        show_default="plain TCP",
        help="Use TLS, with certificates from `loom certs`.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow plain TCP on a network, without authentication.")
]
IdentityLimit = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHAT=N",
        show_default="connections=1000 requests=10000 bytes=512M subscriptions=10000",
        help="Limits per name of a certificate or token. Repeatable.",
    ),
]
Tracing = Annotated[
    bool,
    typer.Option(
        "--tracing",
        help="Send OpenTelemetry spans, configured by OTEL_… variables. Needs the extra tracing.",
    ),
]
EndWithParent = Annotated[bool, typer.Option("--end-with-parent", hidden=True)]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options common to servers: configuration file, logging, TLS, and when to stop."""

    config: Config = None
    log_format: LogFormat = Format.JSON
    log_level: LogLevel = Level.INFO
    tls: Tls = ""
    insecure: Insecure = False
    identity_limit: IdentityLimit = None
    tracing: Tracing = False
    end_with_parent: EndWithParent = False

    def check_exposed(self, *addresses: str) -> None:
        """Raise an error if a server would use a network without TLS."""
        for address in addresses:
            if not (self.tls or self.insecure or is_loopback(address)):
                raise UsageError(
                    f"{address} is on a network, which could read and change everything: give "
                    "--tls (`loom certs` makes certificates), or --insecure if you trust it"
                )

    def set_up(self, server: str) -> None:
        if self.end_with_parent:
            end_with_parent()
        set_up_logs(self.log_format, self.log_level, server=server)
        if self.tracing:
            tracing.export(server)


def keep_private(files: Iterable[Path]) -> None:
    """Remove other users' permissions for files and directories of a server, such as copies from a
    backup. Raise InvalidArgument where that is impossible."""
    for file in files:
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
        except OSError:
            continue  # the server reports what is wrong with its disk
        if not mode & PRIVATE_UMASK:
            continue
        try:
            file.chmod(mode & ~PRIVATE_UMASK)
            log.warning("removed other users' permissions for %s: it had mode %03o", file, mode)
        except OSError as error:
            if error.errno == errno.EROFS:
                continue  # as above
            raise InvalidArgument(
                f"{file} may be used by others: {error.strerror}; give it to the user that runs "
                "this server"
            ) from error


# ---- life


class RunnableServer(Protocol):
    """A server that a process runs."""

    async def start(self) -> None:
        """Return once the server serves; if it cannot, clean up and raise."""

    async def stop(self) -> None: ...


def serve(
    server: RunnableServer,
    ready: Callable[[], dict[str, object]],
    failed: Callable[[], asyncio.Future[LoomError]],
) -> None:
    """Run the server. `ready` gives the fields of the ready line; `failed` a future that is
    done, with the reason, once the server cannot continue."""
    os.umask(PRIVATE_UMASK)
    _allow_many_files()
    _keep_freed_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    run_async(_serve(server, ready, failed))


def _allow_many_files() -> None:
    """Raise the limit of open files, often 1,024 by default; connections count, too."""
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
    server: RunnableServer,
    ready: Callable[[], dict[str, object]],
    failed: Callable[[], asyncio.Future[LoomError]],
) -> None:
    stop_asked = asyncio.Event()
    on_stop_signals(lambda: _stop_or_exit(stop_asked))
    if not await first(asyncio.ensure_future(server.start()), stop_asked):
        return
    try:
        gc.collect()
        gc.freeze()  # objects from the start live as long as the server
        print(json.dumps({"ready": True, "pid": os.getpid(), **ready()}), flush=True)
        failure = failed()
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


# ---- SIGTERM and SIGINT


def on_stop_signals(asked: Callable[[], None]) -> None:
    """Call `asked` on the loop for each SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)


async def first(work: asyncio.Future[Any], stop_asked: asyncio.Event) -> bool:
    """Return True when the work is done, or raise its exception. Return False if a stop was
    requested first; then the work was cancelled and has ended."""
    stop = asyncio.ensure_future(stop_asked.wait())
    await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if work.done():
        work.result()
        return True
    work.cancel()
    await asyncio.wait([work])
    return False


# ---- logs


def set_up_logs(form: Format, level: Level, *, server: str) -> None:
    """Send all logging of this process to stderr, marked with `server` (e.g. vsn-1).

    A field given as `extra={"stream": 3}` becomes a field of the line.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines(server, form))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


class LogLines(logging.Formatter):
    """A JSON object per line, or the text `time level server message field=value …`."""

    def __init__(self, server: str, form: Format) -> None:
        super().__init__()
        self._server = server
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        extra = {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}
        exception = self.formatException(record.exc_info) if record.exc_info else None
        if self._form is Format.TEXT:
            fields = "".join(f" {name}={value}" for name, value in extra.items())
            text = f"{time} {record.levelname:<7} {self._server} {record.getMessage()}{fields}"
            return f"{text}\n{exception}" if exception else text
        line: dict[str, object] = {
            "time": time,
            "level": record.levelname.lower(),
            "server": self._server,
            "logger": record.name,
            "message": record.getMessage(),
            **extra,
        }
        return json.dumps(line | ({"exception": exception} if exception else {}), default=str)


if __name__ == "__main__":
    end_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - the program that this process was started for

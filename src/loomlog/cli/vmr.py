"""`vmr`: a metadata repository as a process."""

from __future__ import annotations

from typing import Annotated

import typer

from loomlog import limits
from loomlog.cli import failures
from loomlog.cli.options import HeartbeatTimeout, ReplaceAfter, SyncRate
from loomlog.cli.server_options import (
    LOG_FORMAT,
    LOG_LEVEL,
    EndWithParent,
    Listen,
    LogFormat,
    LogLevel,
)

app = typer.Typer(
    help="The metadata repository of a loomlog cluster.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def vmr() -> None:
    """The metadata repository of a loomlog cluster."""


@app.command()
def start(
    cluster_id: Annotated[str, typer.Option(help="The cluster that it serves.")],
    data: Annotated[str, typer.Option(metavar="DIR", help="Where metadata lives.")],
    listen: Listen = "127.0.0.1:7400",
    http: Annotated[
        str,
        typer.Option(metavar="ADDR|none", help="Address of /healthz, /status and /metrics."),
    ] = "127.0.0.1:7480",
    heartbeat_timeout: HeartbeatTimeout = limits.FAILURE_DETECTION_S,
    replace_after: ReplaceAfter = None,
    sync_rate: SyncRate = 0.0,
    log_format: LogFormat = LOG_FORMAT,
    log_level: LogLevel = LOG_LEVEL,
    end_with_parent: EndWithParent = False,
) -> None:
    """Start a metadata repository; stop it with SIGTERM."""
    from loomlog.cli import process, structured_logs
    from loomlog.config import MetadataSettings
    from loomlog.metadata import MetadataRepository

    if end_with_parent:
        process.end_with_parent()
    structured_logs.set_up(log_format, log_level, server="vmr-1")
    repository = MetadataRepository(
        MetadataSettings(
            cluster_id=cluster_id,
            directory=data,
            listen=listen,
            http=None if http == "none" else http,
            failure_detection_s=heartbeat_timeout,
            heartbeat_s=min(limits.HEARTBEAT_S, heartbeat_timeout / 3),
            replace_after_s=replace_after,
            sync_bytes_per_s=int(sync_rate * 1e6),
        )
    )
    process.serve(
        repository,
        lambda: {"address": repository.address, "http": repository.http_address},
        lambda: repository.failed,
    )


def main() -> None:
    failures.main(app, "vmr")


if __name__ == "__main__":
    main()

"""Options that vmr and vsn share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from loomlog.cli.processes import structured_logs

Listen = Annotated[
    str, typer.Option(metavar="ADDR", help="Address to serve at; port 0 picks a free one.")
]
LogFormat = Annotated[structured_logs.LogFormat, typer.Option(help="On stderr.")]
LogLevel = Annotated[structured_logs.LogLevel, typer.Option()]
EndWithParent = Annotated[bool, typer.Option("--end-with-parent", hidden=True)]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of servers: logging, and when to stop."""

    log_format: LogFormat = structured_logs.LogFormat.JSON
    log_level: LogLevel = structured_logs.LogLevel.INFO
    end_with_parent: EndWithParent = False

    def set_up(self, server: str) -> None:
        from loomlog.cli.processes import process

        if self.end_with_parent:
            process.end_with_parent()
        structured_logs.set_up(self.log_format, self.log_level, server=server)

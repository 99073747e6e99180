"""Options that vmr and vsn share."""

from __future__ import annotations

from typing import Annotated

import typer

from loomlog.cli import structured_logs

Listen = Annotated[
    str, typer.Option(metavar="ADDR", help="Address to serve at; port 0 picks a free one.")
]
LogFormat = Annotated[structured_logs.LogFormat, typer.Option(help="On stderr.")]
LogLevel = Annotated[structured_logs.LogLevel, typer.Option()]
EndWithParent = Annotated[bool, typer.Option("--end-with-parent", hidden=True)]

LOG_FORMAT = structured_logs.LogFormat.JSON
LOG_LEVEL = structured_logs.LogLevel.INFO

"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, Final

import typer

CLUSTER: Final = "127.0.0.1:7400"  # where a command looks for a cluster when nobody says

Cluster = Annotated[
    str,
    typer.Option(
        envvar="LOOM_CLUSTER", metavar="ADDR", help="The metadata repository of the cluster."
    ),
]
SPARK_MASTER: Final = "local[*,4]"  # without the second number a task is not tried again

SparkMaster = Annotated[
    str, typer.Option(metavar="URL", help="Where Spark runs its tasks: local[N,4], spark://….")
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
LogName = Annotated[str, typer.Argument(metavar="LOG", help="Name of the log.")]
Node = Annotated[int, typer.Argument(metavar="NODE", min=1, help="Number of the storage node.")]
Stream = Annotated[int, typer.Argument(metavar="STREAM", min=1, help="Number of the log stream.")]
Wait = Annotated[
    bool, typer.Option("--wait", help="Stay until it is finished; Ctrl-C ends only the waiting.")
]
WaitMax = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=0,
        metavar="S",
        show_default="never",
        help="With --wait: fail after so long.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

Nodeset = Annotated[
    int | None,
    typer.Option(
        min=1,
        show_default="up to 20",
        help="Of copyset: entries lie on any nodes of so many.",
    ),
]
Retention = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        show_default="for ever",
        help="Entries go when they are so old, by the writers' clocks: 12h, 7d.",
    ),
]

HeartbeatTimeout = Annotated[
    float,
    typer.Option(min=0.1, metavar="S", help="Seconds of silence until a node counts as dead."),
]
ReplaceAfter = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="S",
        show_default="as soon as it counts as dead",
        help="Seconds of silence until its replicas are made anew on other nodes.",
    ),
]
SyncRate = Annotated[
    float,
    typer.Option(
        min=0, metavar="MB/s", help="Most that one copy of a stream may use; 0: no limit."
    ),
]

"""`loom log …`: logs and their settings."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from functools import partial
from types import EllipsisType
from typing import TYPE_CHECKING, Annotated

import typer

from loomlog import protocol_names
from loomlog.cli.commands.archive import print_archives
from loomlog.cli.console import changes
from loomlog.cli.console.command import Invocation, command, connected_sync
from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import (
    CLUSTER,
    Cluster,
    Json,
    LogName,
    Nodeset,
    Retention,
    RetentionBytes,
    Yes,
    parse_moment,
    read_position,
)
from loomlog.cli.console.output import (
    age,
    console,
    epoch_table,
    log_table,
    print_json,
    say,
    segment_table,
    size,
    stream_table,
)
from loomlog.cli.console.scrub import follow_scrub
from loomlog.cli.console.status_view import shown_logs
from loomlog.errors import Unavailable

if TYPE_CHECKING:
    from loomlog import BlockingCluster, LogInfo

app = typer.Typer(help="Create, list, describe, switch, check, trim and delete logs.")

STREAMS = typer.Option(min=1, help="Number of streams: more give more bandwidth; not for copyset.")
REPLICAS = typer.Option(min=1, help="Number of nodes that store each entry.")
MIN_REPLICAS = typer.Option(
    min=1,
    show_default="one less than --replicas, at least 2 if there are several",
    help="Appends continue with this many replicas while nodes are away.",
)
COMPRESSION = typer.Option(help="Compression of batches by clients: none, lz4 or zstd.")
PROTOCOL = typer.Option(help="Protocol: ordered, chained or copyset.")


@app.command()
def create(
    log: LogName,
    streams: Annotated[int, STREAMS] = 1,
    replicas: Annotated[int, REPLICAS] = 3,
    min_replicas: Annotated[int | None, MIN_REPLICAS] = None,
    nodeset: Nodeset = None,
    protocol: Annotated[str, PROTOCOL] = protocol_names.DEFAULT,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    compression: Annotated[str, COMPRESSION] = "none",
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Create a log."""
    with connected_sync(cluster) as client:
        made = client.create_log(
            log,
            protocol,
            streams,
            replicas,
            min_replicas=min_replicas,
            nodeset=nodeset,
            retention=retention,
            retention_bytes=retention_bytes,
            compression=compression,
        )
        if as_json:
            print_json(asdict(made.describe()))
            return
    kept = f", entries stay for {retention}" if retention else ""
    kept += f", the newest {retention_bytes} stay" if retention_bytes else ""
    lies = f", on any of {nodeset} nodes" if nodeset else ""
    print(
        f"created {log}: {protocol}, streams: {streams}, replicas of each: {replicas}{lies}{kept}"
    )


@app.command("list")
def list_all(
    all_logs: Annotated[bool, typer.Option("--all", help="Also list internal logs.")] = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """List logs; --json lists all of them."""
    with connected_sync(cluster) as client:
        logs = client.logs()
    if as_json:
        print_json([asdict(info) for info in logs])
    elif logs:
        shown, hidden = shown_logs(logs, all_logs=all_logs)
        console().print(*([log_table(shown)] if shown else []), *([hidden] if hidden else []))
    else:
        print("no logs yet: create one with `loom log create NAME`")


@app.command()
def describe(log: LogName, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Show a log and its streams."""
    with connected_sync(cluster) as client:
        info, archive = _as_far_as_known(client, log), client.log(log).archive()
    if as_json:
        print_json(asdict(info) | {"archive": archive and asdict(archive)})
        return
    console().print(log_table([info]), segment_table(info), stream_table([info]))
    if (epochs := epoch_table(info)).row_count:
        console().print(epochs)
    if archive is not None:
        print_archives({log: archive})


def _as_far_as_known(client: BlockingCluster, name: str) -> LogInfo:
    """Describe a log; show its conditions even if its tail cannot be determined."""
    try:
        return client.log(name).describe()
    except Unavailable as error:
        for info in client.logs():
            if info.name == name:
                print(f"its tail may be higher than shown: {error}", file=sys.stderr)
                return replace(info, tail=None)
        raise


@app.command()
def switch(
    log: LogName,
    protocol: Annotated[str | None, PROTOCOL] = None,
    streams: Annotated[int | None, STREAMS] = None,
    replicas: Annotated[int | None, REPLICAS] = None,
    min_replicas: Annotated[int | None, MIN_REPLICAS] = None,
    nodeset: Nodeset = None,
    compression: Annotated[str | None, COMPRESSION] = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Switch a log to other settings while it is in use."""
    with connected_sync(cluster) as client:
        change = client.switch_log(
            log,
            protocol=protocol,
            streams=streams,
            replicas=replicas,
            min_replicas=min_replicas,
            nodeset=nodeset,
            compression=compression,
        )
    changes.say(change, as_json=as_json)


@app.command("retention")
def set_retention(
    log: LogName,
    retention: Annotated[
        str | None,
        typer.Argument(
            metavar="[TIME|none]",
            help="Age limit of entries: 12h, 7d, or none.",
            show_default=False,
        ),
    ] = None,
    retention_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE|none",
            help="Size limit: keep the newest 500M, 10G, or none.",
            show_default=False,
        ),
    ] = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Change the retention of a log by age or size; none removes a limit."""
    if retention is None and retention_bytes is None:
        raise UsageError("nothing to change: give a time, --retention-bytes, or both")
    with connected_sync(cluster) as client:
        info = client.log(log).set_retention(
            _wanted(retention), retention_bytes=_wanted(retention_bytes)
        )
    stay = f"for {age(info.retention_s)}" if info.retention_s else "forever"
    if info.retention_bytes:
        stay += f", while they are among the newest {size(info.retention_bytes)}"
    fields = {
        "log": log,
        "retention_s": info.retention_s,
        "retention_bytes": info.retention_bytes,
    }
    say(fields, f"entries of {log} stay {stay} from now on", as_json=as_json)


def _wanted(text: str | None) -> str | EllipsisType | None:
    """Return an argument of set_retention: unchanged, none, or the text."""
    return ... if text is None else None if text == "none" else text


@app.command()
def find_time(
    log: LogName,
    moment: Annotated[
        str,
        typer.Argument(
            metavar="TIME",
            help="Time such as 2026-11-16T03:00 (UTC by default), or 1h (ago).",
        ),
    ],
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Show the first position at or after a time, by the writers' clocks."""
    wanted = parse_moment(moment)
    time = wanted.isoformat()
    with connected_sync(cluster) as client:
        position = client.log(log).find_time(wanted)
        exists = position <= client.log(log).tail()
    text = f"{time} begins in {log} at {position}"
    if not exists:
        text = f"{log} has no entries from {time} on; the next position is {position}"
    fields = {"log": log, "time": time, "position": position, "found": exists}
    say(fields, text, as_json=as_json)


@app.command()
def trim(
    log: LogName,
    position: Annotated[
        int,
        typer.Argument(
            parser=read_position,
            metavar="POSITION",
            help="Last position to delete, such as 4200 or e3n17.",
        ),
    ],
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Delete all entries up to and including a position. Asks first on a terminal."""
    question = f"Delete all entries of {log} up to and including position {position}?"
    changes.confirm_at_terminal(question, yes=yes)
    with connected_sync(cluster) as client:
        client.log(log).trim(position)
        head = client.log(log).head()
    text = f"trimmed {log}: its first entry is now at {head}"
    say({"log": log, "head": head}, text, as_json=as_json)


@app.command()
def delete(
    log: LogName, yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False
) -> None:
    """Delete a log and all its entries."""
    changes.confirm(lambda: f"Delete {log} and all its entries?", yes=yes)
    with connected_sync(cluster) as client:
        client.delete_log(log)
    say({"deleted": log}, f"deleted {log}", as_json=as_json)


@command(app)
def scrub(log: LogName, how: Invocation) -> None:
    """Check all stored data of a log on all nodes; repair corrupt or missing data."""
    with connected_sync(how.cluster) as client:
        follow_scrub(f"log {log!r}", partial(client.scrub_log, log), how)

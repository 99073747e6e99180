"""`loom queue …`: work queues and their progress."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from loomlog.cli.console import changes
from loomlog.cli.console.command import connected_sync
from loomlog.cli.console.options import CLUSTER, Cluster, Json, LogName, LogOrAll, Yes
from loomlog.cli.console.output import console, new_table, plain, print_json, say

app = typer.Typer(help="Work queues: programs that take entries of a log one by one.")

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]


@app.command("list")
def list_all(log: LogOrAll = None, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """List the queues of a log, or of all logs."""
    with connected_sync(cluster) as client:
        logs = [info.name for info in client.logs()] if log is None else [log]
        queues = [(name, info) for name in logs for info in client.log(name).queues().values()]
    if as_json:
        print_json([{"log": name, **asdict(info)} for name, info in queues])
        return
    if not queues:
        print(f"{log or 'the cluster'} has no queues: programs create them with `log.queue(NAME)`")
        return
    table = new_table("log", "queue", "members", "position", "behind", "taken", "waiting again")
    for name, info in queues:
        behind = "unknown" if info.behind is None else f"{info.behind:,}"
        counts = str(len(info.members)), f"{info.position:,}", behind
        jobs = f"{info.taken:,}", f"{info.free:,}"
        table.add_row(plain(name), plain(info.name), *counts, *jobs)
    console().print(table)


@app.command()
def describe(log: LogName, name: Name, cluster: Cluster = CLUSTER, as_json: Json = False) -> None:
    """Show the progress, jobs and members of a queue."""
    with connected_sync(cluster) as client:
        info = client.log(log).queue(name).describe()
    behind = "an unknown number of" if info.behind is None else f"{info.behind:,}"
    members = ", ".join(map(plain, info.members)) or "nobody"
    say(
        {"log": log, **asdict(info)},
        f"queue {name} of {log}: entries up to {info.position:,} were taken, {behind} positions "
        f"wait; {info.taken:,} jobs are taken, {info.free:,} wait to be taken again; "
        f"members: {members}",
        as_json=as_json,
    )


@app.command()
def delete(
    log: LogName, name: Name, yes: Yes = False, cluster: Cluster = CLUSTER, as_json: Json = False
) -> None:
    """Delete a queue without members, including the state of its jobs."""
    changes.confirm(lambda: f"Delete queue {name} of {log} and the state of its jobs?", yes=yes)
    with connected_sync(cluster) as client:
        client.log(log).queue(name).delete()
    say({"deleted": name, "log": log}, f"deleted queue {name} of {log}", as_json=as_json)

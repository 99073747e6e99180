"""`loom maintenance`: restart all servers one at a time, without failed appends.

Storage nodes come first, then metadata repositories, the leader last. A server is restarted when
every log has all its copies, so that at most one of them is missing at any time. The command keeps
no state: after an interruption it begins again, and servers may be restarted twice.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from loomlog.cli.console import changes
from loomlog.cli.console.changes import WaitProgress
from loomlog.cli.console.command import connected
from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import CLUSTER, Cluster, Json, Yes, read_nodes
from loomlog.cli.console.output import duration, say
from loomlog.errors import LoomError, NotFound, Retryable, Timeout, Unavailable, seconds

if TYPE_CHECKING:
    from loomlog import Cluster as Client
    from loomlog import ClusterStatus
    from loomlog.client.operator_results import NodesOutage
    from loomlog.types import NodeId

HAND_OVER_S: Final = 10.0  # then it is restarted anyway: a sequencer that is gone is replaced
NODE, REPOSITORY = "vsn", "vmr"


@dataclass(frozen=True, slots=True)
class Server:
    """A server to restart."""

    kind: str
    id: int
    address: str
    process: str = ""  # of a storage node

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.id}"

    def is_restarted(self, status: ClusterStatus, waited_s: float) -> bool:
        """Return whether it has been restarted within the last `waited_s` seconds, and is back."""
        if self.kind == NODE:
            return any(
                node.id == self.id and node.alive and node.process != self.process
                for node in status.nodes
            )
        return any(
            member.id == self.id
            and member.reachable
            and not member.lag
            and member.connected_s < waited_s
            for member in status.members
        )


def servers_in_order(status: ClusterStatus, only: Iterable[NodeId] = ()) -> list[Server]:
    """Return the servers to restart: all, or only some storage nodes."""
    nodes = {node.id: Server(NODE, node.id, node.address, node.process) for node in status.nodes}
    if wanted := list(only):
        for number in wanted:
            if number not in nodes:
                raise NotFound(f"there is no node {number}: `loom node list` shows them")
        return [nodes[number] for number in wanted]
    members = sorted(status.members, key=lambda member: (member.leads, member.id))
    repositories = [Server(REPOSITORY, member.id, member.address) for member in members]
    return [*nodes.values(), *repositories]


async def maintenance(
    restart_command: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            show_default="wait until you restart it",
            help="Command that restarts a server, e.g. 'systemctl restart {kind}@{id}'. {kind} is "
            "vsn or vmr, {id} its number, {address} its address.",
        ),
    ] = "",
    nodes: Annotated[
        str,
        typer.Option(
            metavar="N,N,…", show_default="all servers", help="Restart only these storage nodes."
        ),
    ] = "",
    timeout: Annotated[
        float,
        typer.Option(min=1, metavar="S", help="How long a server may be away before this fails."),
    ] = 600.0,
    yes: Yes = False,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Restart all servers one at a time; appends may pause, but do not fail."""
    _check_command(restart_command)
    async with connected(cluster) as client:
        servers = servers_in_order(await client.status(), read_nodes(nodes))
        await _check_ready(client)
        await _confirm(client, servers, yes=yes)
        restart = _Restarts(client, restart_command, timeout, as_json=as_json)
        for number, server in enumerate(servers, start=1):
            restart.progress = f"{number} of {len(servers)}"
            await restart.one(server)
    say({"event": "finished", "servers": len(servers)}, "all were restarted", as_json=as_json)


def _check_command(command: str) -> None:
    try:
        if command and not _words(command, Server(NODE, 1, "")):
            raise ValueError("it is empty")
    except (AttributeError, KeyError, IndexError, ValueError) as error:
        raise UsageError(f"--restart-command is wrong ({error}): see --help") from None


def _words(command: str, server: Server) -> list[str]:
    return shlex.split(command.format(kind=server.kind, id=server.id, address=server.address))


async def _check_ready(client: Client) -> None:
    """Raise if copies are missing already."""
    outage = await client.check_nodes()
    if outage.away:
        raise Unavailable(f"node {outage.away[0]} is away: start it first")
    if outage.affected:
        raise Unavailable(f"{_lacking(outage)}: see `loom status`, and begin when it is complete")


def _lacking(outage: NodesOutage) -> str:
    log = outage.affected[0]
    more = f" (and {len(outage.affected) - 1} others)" if len(outage.affected) > 1 else ""
    return f"log {log.log}{more} has {log.copies_left} of {log.copies} copies"


async def _confirm(client: Client, servers: list[Server], *, yes: bool) -> None:
    """Ask if logs would pause because they need a node that is restarted."""
    pausing: dict[str, None] = {}
    for server in servers:
        if server.kind == NODE:
            outage = await client.check_nodes(server.id)
            pausing |= {
                log.log: None for log in outage.affected if log.appends_stop or log.reads_stop
            }
    if pausing:
        some = ", ".join(list(pausing)[:3]) + (" …" if len(pausing) > 3 else "")
        question = (
            f"{len(pausing)} logs need every one of their nodes ({some}): their appends or reads "
            "wait while one is restarted. Continue?"
        )
        await asyncio.to_thread(changes.confirm, lambda: question, yes=yes)


class _Restarts:
    """Restarts servers, and waits until each is back and all copies are complete."""

    progress = ""

    def __init__(self, client: Client, command: str, timeout_s: float, *, as_json: bool) -> None:
        self._client = client
        self._command = command
        self._timeout_s = timeout_s
        self._as_json = as_json

    async def one(self, server: Server) -> None:
        await self._until_whole()
        if server.kind == NODE:
            await self._hand_over(server)
        began_s = _now_s()
        if self._command:
            self._say(server, "restarts", "is being restarted")
            await self._run_command(server)
        else:
            self._say(server, "restart", f"restart it now, within {seconds(self._timeout_s)}")
        await self._until_back(server, began_s)
        back_s = _now_s()
        self._say(server, "back", f"is back after {duration(back_s - began_s)}")
        await self._until_whole()
        self._say(server, "whole", f"all copies are there after {duration(_now_s() - back_s)}")

    def _say(self, server: Server, event: str, text: str) -> None:
        fields = {"event": event, "server": server.name, "progress": self.progress}
        say(fields, f"{server.name} ({self.progress}): {text}", as_json=self._as_json)
        sys.stdout.flush()

    async def _hand_over(self, server: Server) -> None:
        await self._client.restart_node(server.id, self._timeout_s)

        async def look() -> WaitProgress:
            left = _sequenced_by(await self._client.status(), server.id)
            return WaitProgress(not left, 0.0, f"{left} logs are still sequenced by {server.name}")

        try:
            await _until(look, lambda: HAND_OVER_S)
        except Timeout as error:
            self._say(server, "handover", f"{error}; their appends pause for a moment")

    async def _run_command(self, server: Server) -> None:
        words = _words(self._command, server)
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr
            )
        except OSError as error:
            raise LoomError(f"cannot run {words[0]}: {error.strerror}") from None
        if code := await process.wait():
            raise LoomError(
                f"the command for {server.name} ended with code {code}: check whether it runs, and "
                "run this command again"
            )

    async def _until_back(self, server: Server, began_s: float) -> None:
        async def look() -> WaitProgress:
            back = server.is_restarted(await self._client.status(), _now_s() - began_s)
            return WaitProgress(back, 0.0, f"waiting until {server.name} was restarted")

        try:
            await _until(look, lambda: self._timeout_s)
        except Timeout:
            raise Timeout(
                f"{server.name} did not come back within {seconds(self._timeout_s)}: see its log "
                "and start it. Servers after it were not touched; begin again when all is well"
            ) from None

    async def _until_whole(self) -> None:
        """Wait until every log has all its copies: without a limit while all nodes are there."""
        all_there_s = _now_s()

        async def look() -> WaitProgress:
            nonlocal all_there_s
            outage = await self._client.check_nodes()
            if not outage.away:
                all_there_s = _now_s()
            text = f"node {outage.away[0]} is away" if outage.away else ""
            if outage.affected:
                text = "; ".join(filter(None, (text, _lacking(outage))))
            whole = not outage.away and not outage.affected
            share = 1 - len(outage.affected) / max(1, outage.logs)
            return WaitProgress(whole, share, text)

        def limit_s() -> float:
            return self._timeout_s + all_there_s - began_s

        began_s = _now_s()
        await _until(look, limit_s)


def _sequenced_by(status: ClusterStatus, node: NodeId) -> int:
    """Return how many logs a node sequences that another one could."""
    if sum(each.alive for each in status.nodes) < 2:
        return 0
    streams = (stream for log in status.logs for stream in log.streams)
    return sum(stream.sequencer == node for stream in streams)


async def _until(look: Callable[[], Awaitable[WaitProgress]], limit_s: Callable[[], float]) -> None:
    """Poll until it is finished. A Timeout reports the progress."""
    began_s, text = _now_s(), "the metadata repository does not answer"
    with changes.bar() as show:
        while True:
            try:
                progress = await look()
            except Retryable as error:  # the metadata repository is restarted, too
                progress = WaitProgress(False, 0.0, str(error))
            if progress.finished:
                return
            text = progress.text or text
            show(progress)
            if _now_s() - began_s >= limit_s():
                raise Timeout(f"still under way after {seconds(_now_s() - began_s)}: {text}")
            await asyncio.sleep(changes.LOOK_EVERY_S)


def _now_s() -> float:
    return asyncio.get_running_loop().time()

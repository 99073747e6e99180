"""`loom rebalance`: spread the load evenly over all nodes, including new ones."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from loomlog.cli.console import changes
from loomlog.cli.console.changes import WaitProgress
from loomlog.cli.console.command import connected
from loomlog.cli.console.options import CLUSTER, Cluster, Json
from loomlog.cli.console.output import console, duration, new_table, plain, print_json, size
from loomlog.errors import Busy, LoomError, Retryable, Timeout, seconds

if TYPE_CHECKING:
    from loomlog import Cluster as Client
    from loomlog.client.operator_results import PlannedMove, RebalancePlan

AT_ONCE: Final = 4  # moves; more would take disks and network from appends
SHOWN_MAX: Final = 40  # moves in the table; --json has all


async def rebalance(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the plan.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="S", show_default="never", help="Fail after this long."),
    ] = None,
    cluster: Cluster = CLUSTER,
    as_json: Json = False,
) -> None:
    """Plan moves that spread the load evenly over the nodes, and carry them out."""
    async with connected(cluster) as client:
        plan = await client.plan_rebalance()
        if not as_json:
            _print_plan(plan)
        skipped: list[str] = []
        waited_s = None
        if not dry_run and (plan.moves or plan.renewals):
            work = _Work(client, plan)
            waited_s = await work.run(timeout)
            skipped = work.skipped
    if as_json:
        print_json(asdict(plan) | {"waited_s": waited_s, "skipped": skipped})
    elif waited_s is not None:
        for reason in skipped:
            print(f"skipped: {reason}")
        print(f"finished after {duration(waited_s)}")


class _Work:
    """Carries out a plan, a few moves at a time. Moves that have begun continue without it."""

    def __init__(self, client: Client, plan: RebalancePlan) -> None:
        self._client = client
        self._plan = plan
        self._waiting = deque(plan.moves)
        self._moving: list[PlannedMove] = []
        self._moved_bytes = 0
        self._all_bytes = sum(move.stored_bytes for move in plan.moves)
        self.skipped: list[str] = []

    async def run(self, timeout_s: float | None) -> float:
        """Return how long it took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await self._renew()
        with changes.bar() as show:
            while self._waiting or self._moving:
                await self._begin_more()
                await self._look()
                show(self._progress())
                if timeout_s is not None and loop.time() - began_s >= timeout_s:
                    raise Timeout(
                        f"still under way after {seconds(timeout_s)}: {self._progress().text}; "
                        "moves that have begun continue, and `loom rebalance` plans the rest again"
                    )
                await asyncio.sleep(changes.LOOK_EVERY_S)
        return loop.time() - began_s

    async def _renew(self) -> None:
        for renewal in self._plan.renewals:
            try:
                await self._client.renew_stream(renewal.stream)
            except LoomError as error:
                self.skipped.append(f"stream {renewal.stream} of {renewal.log}: {error}")

    async def _begin_more(self) -> None:
        for _ in range(len(self._waiting)):
            if len(self._moving) >= AT_ONCE:
                return
            move = self._waiting.popleft()
            try:
                await self._client.move_stream(move.stream, move.from_node, move.to_node, move.part)
            except (Busy, Retryable):  # another replica of it is moved first
                self._waiting.append(move)
            except LoomError as error:  # it has changed since the plan was made
                self.skipped.append(f"stream {move.stream} of {move.log}: {error}")
            else:
                self._moving.append(move)

    async def _look(self) -> None:
        try:
            logs = await self._client.logs()
        except Retryable:
            return
        streams = {stream.id: stream for log in logs for stream in log.streams}
        for move in list(self._moving):
            stream = streams.get(move.stream)
            if stream is None or move.from_node not in stream.nodes_of(move.part):
                self._moving.remove(move)
                self._moved_bytes += move.stored_bytes

    def _progress(self) -> WaitProgress:
        left, total = len(self._waiting) + len(self._moving), len(self._plan.moves)
        text = f"{total - left} of {total} replicas moved"
        if self._all_bytes:
            text += f", {size(self._moved_bytes)} of {size(self._all_bytes)}"
        return WaitProgress(not left, 1 - left / max(1, total), text)


def _print_plan(plan: RebalancePlan) -> None:
    if not plan.moves and not plan.renewals:
        more = f"the busiest node has {_percent(plan.imbalance_before)} more than the average"
        print(f"the load is even enough: {more}")
        return
    loads = new_table("node", "replicas", "after", "stored", "after")
    for load in plan.loads:
        counts = (f"{load.replicas_before:,}", f"{load.replicas_after:,}")
        loads.add_row(str(load.node), *counts, size(load.bytes_before), size(load.bytes_after))
    console().print(loads)
    if plan.moves:
        console().print(_move_table(plan))
    if plan.renewals:
        renewals = new_table("log", "stream", "nodes for new entries", "after")
        for renewal in plan.renewals[:SHOWN_MAX]:
            nodes = (
                ", ".join(map(str, each)) for each in (renewal.nodes_before, renewal.nodes_after)
            )
            renewals.add_row(plain(renewal.log), str(renewal.stream), *nodes)
        console().print(renewals)
    stored_bytes = sum(move.stored_bytes for move in plan.moves)
    print(
        f"{len(plan.moves)} replicas move ({size(stored_bytes)}), {len(plan.renewals)} logs use "
        f"other nodes for new entries; the node with the most load has "
        f"{_percent(plan.imbalance_before)} more than the average, then "
        f"{_percent(plan.imbalance_after)}",
        flush=True,
    )


def _move_table(plan: RebalancePlan) -> object:
    table = new_table("log", "stream", "part", "from", "to", "stored")
    for move in plan.moves[:SHOWN_MAX]:
        nodes = (f"node {move.from_node}", f"node {move.to_node}")
        stored = size(move.stored_bytes) if move.stored_bytes else ""
        table.add_row(plain(move.log), str(move.stream), str(move.part), *nodes, stored)
    if (more := len(plan.moves) - SHOWN_MAX) > 0:
        table.add_row(f"and {more:,} more", *[""] * 5)
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"

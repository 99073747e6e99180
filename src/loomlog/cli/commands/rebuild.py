"""`loom metadata rebuild` and `loom metadata catch-up`: restore metadata from the storage nodes.

`rebuild` restores positions when every round log is lost; `catch-up` brings metadata that was
restored from a copy up to date.
"""

from __future__ import annotations

import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import CLUSTER, Etcd, EtcdAccess, Json
from loomlog.cli.console.output import console, plain, print_json
from loomlog.errors import AlreadyExists, LoomError

if TYPE_CHECKING:
    from loomlog.metadata.offline.rebuild import Findings, LogFinding
    from loomlog.metadata.offline.transfer import MovableStore
    from loomlog.metadata.rollback.catch_up import CatchUpPlan
    from loomlog.types import NodeId

WriteRounds: TypeAlias = Callable[[Sequence[bytes], int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class How:
    """The options of both commands."""

    data: Annotated[
        str,
        typer.Option(
            metavar="DIR", show_default=False, help="Directory of the vmr, if there is only one."
        ),
    ] = ""
    listen: Annotated[
        str, typer.Option(metavar="ADDR", help="Address of the vmr, at which nodes register.")
    ] = CLUSTER
    without: Annotated[
        list[int] | None,
        typer.Option(
            metavar="NODE", min=1, help="Storage node that is permanently lost. Repeatable."
        ),
    ] = None
    was_away: Annotated[
        list[int] | None,
        typer.Option(
            metavar="NODE",
            min=1,
            help="Storage node that knows less than others because it was away, and not because "
            "its disks were restored from a copy. Repeatable.",
        ),
    ] = None
    timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="How long to wait for the nodes.")
    ] = 60.0
    etcd: Etcd = ""
    as_json: Json = False

    @property
    def lost(self) -> tuple[NodeId, ...]:
        return tuple(self.without or ())

    @property
    def start(self) -> str:
        """The next step, for people."""
        if self.data:
            return f"start the vmr on {self.data}"
        return "start all vmr, each with an empty --data"


async def catch_up(
    how: How,
    access: EtcdAccess,
    leave: Annotated[
        list[int] | None,
        typer.Option(
            metavar="SEGMENT",
            min=1,
            help="Segment of a log that was created after the copy was made. Repeatable.",
        ),
    ] = None,
    deleted: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOG",
            help="Log that was deleted after the copy was made. Repeatable.",
        ),
    ] = None,
) -> None:
    """Bring metadata that was restored from a copy up to date with the storage nodes.

    Nothing is deleted or guessed: the command reports what is lost, and changes nothing unless
    everything that it restores is certain. The vmr must be stopped.
    """
    from loomlog.metadata.leader import membership
    from loomlog.metadata.registry import REBUILD
    from loomlog.metadata.rollback.catch_up import catching_up

    async with (
        _stopped(how, access) as (store, write_rounds),
        catching_up(store, how.listen) as catch_up,
    ):
        plan = await catch_up.plan(
            without=how.lost,
            leave=tuple(leave or ()),
            deleted=tuple(deleted or ()),
            was_away=tuple(how.was_away or ()),
            timeout_s=how.timeout,
            waiting=partial(_say_waiting, catch_up.address),
        )
        if not plan.certain:
            _say_plan(plan, how)
            raise _uncertain()
        await catch_up.write(plan)
        await REBUILD.give_up(store, how.lost)
        await write_rounds(plan.rounds.records, plan.rounds.epoch)
        if how.etcd:
            await membership.raise_epoch(store, plan.rounds.epoch)
        await catch_up.finish(plan)
    _say_plan(plan, how, how.start)


async def rebuild(how: How, access: EtcdAccess) -> None:
    """Restore positions from the storage nodes after all round logs were lost.

    Nothing is guessed: the command reports what is uncertain, and changes nothing unless everything
    is certain.
    """
    from loomlog.metadata.data_directory import has_rounds, rounds_in
    from loomlog.metadata.registry import REBUILD
    from loomlog.storage.disk import RealFiles

    async with _stopped(how, access) as (store, write_rounds):
        if how.data and has_rounds(RealFiles(), how.data):
            raise AlreadyExists(
                f"{rounds_in(how.data)} is not empty: a readable round log is "
                "better than a rebuilt one; if it cannot, move it away"
            )
        async with REBUILD.listening(store, how.listen) as rebuild:
            rebuild.check_nodes(how.lost)
            findings = await rebuild.examine(
                without=how.lost,
                was_away=tuple(how.was_away or ()),
                timeout_s=how.timeout,
                waiting=partial(_say_waiting, rebuild.address),
            )
        if not findings.certain:
            _print(findings, how, {"rebuilt": False}, _lines(findings))
            raise _uncertain()
        await REBUILD.give_up(store, findings.given_up)
        await write_rounds(findings.records, findings.epoch)
    _print(findings, how, {"rebuilt": True}, [*_lines(findings), f"rebuilt: {how.start}"])


@asynccontextmanager
async def _stopped(how: How, access: EtcdAccess) -> AsyncIterator[tuple[MovableStore, WriteRounds]]:
    """Open the metadata of stopped vmr; yield the store, and a function that replaces the
    rounds."""
    if bool(how.data) == bool(how.etcd):
        raise UsageError("give --data for one vmr, or --etcd for several")
    if how.data:
        from loomlog.metadata.offline import embedded

        async def write(records: Sequence[bytes], epoch: int) -> None:
            embedded.replace_rounds(how.data, records, epoch)

        async with embedded.opened(how.data) as store:
            yield store, write
        return
    from loomlog.metadata.offline import replicated

    async def begin_again(records: Sequence[bytes], epoch: int) -> None:
        await replicated.begin_again(shared, records)

    settings = access.settings(how.etcd)
    async with replicated.opened(settings) as shared:
        await replicated.check_stopped(shared, settings)
        yield shared, begin_again


# ---- output


def _say_plan(plan: CatchUpPlan, how: How, start: str = "") -> None:
    """Print a plan; `start` is the command to run afterwards."""
    fields = {"notes": plan.notes, "reasons": plan.reasons, "up_to_date": bool(start)}
    end = [f"the metadata is up to date: {start}"] if start else []
    _print(plan.rounds, how, fields, [*plan.reasons, *_lines(plan.rounds), *plan.notes, *end])


def _uncertain() -> LoomError:
    return LoomError(
        "not everything is certain, so nothing was changed: see the output for what is missing"
    )


def _say_waiting(address: str, missing: list[NodeId]) -> None:
    text = f"listening on {address} in place of the vmr, waiting for node {_names(missing)}"
    print(text, file=sys.stderr, flush=True)


def _print(findings: Findings, how: How, more: dict[str, Any], lines: Iterable[str]) -> None:
    if how.as_json:
        print_json(_fields(findings) | more)
        return
    for line in lines:
        console().print(plain(line), highlight=False, soft_wrap=True)


def _fields(findings: Findings) -> dict[str, object]:
    logs = [
        {
            "name": log.name,
            "last_position": log.tail,
            "doubts": [{"stream": d.stream_id or None, "what": d.text} for d in log.doubts],
        }
        for log in findings.logs
    ]
    return {
        "logs": logs,
        "absent": findings.absent,
        "given_up": findings.given_up,
        "outdated": findings.outdated,
    }


def _lines(findings: Findings) -> Iterator[str]:
    if findings.outdated:
        yield findings.outdated
    for node, streams in findings.absent.items():
        yield (
            f"node {node} did not come, and stream {_names(streams)} is there: start its vsn; "
            f"if it is permanently lost, try --without {node}"
        )
    for log in findings.logs:
        if not log.doubts:
            yield f"log {log.name}: certain, {_where_it_ends(log)}"
        for doubt in log.doubts:
            where = f"stream {doubt.stream_id}: " if doubt.stream_id else ""
            yield f"log {log.name}: {where}{doubt.text}"
    for node, streams in findings.given_up.items():
        yield f"node {node} is given up: stream {_names(streams)} gets another replica elsewhere"


def _where_it_ends(log: LogFinding) -> str:
    if log.tail is None:
        return "its nodes know where it ends"
    return f"its last position is {log.tail}"


def _names(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))

"""`loom metadata rebuild` and `loom metadata catch-up`: metadata from the storage nodes.

`rebuild` restores positions when every round log is lost; `catch-up` brings metadata that was
restored from a copy up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loomlog.cli.console.failures import UsageError
from loomlog.cli.console.options import CLUSTER, Etcd, EtcdAccess, Json
from loomlog.cli.console.output import console, plain, print_json
from loomlog.errors import AlreadyExists, LoomError

if TYPE_CHECKING:
    from loomlog.config import EtcdSettings
    from loomlog.metadata.offline.rebuild import Findings, LogFinding
    from loomlog.metadata.rollback.catch_up import CatchUpPlan, MetadataCatchUp
    from loomlog.metadata.store.contract import MetaStore
    from loomlog.types import LogId, NodeId

Listen = Annotated[str, typer.Option(metavar="ADDR", help="Where the vmr was: nodes come there.")]
Without = Annotated[
    list[int] | None,
    typer.Option(metavar="NODE", min=1, help="A storage node that is lost for good; repeatable."),
]
NodesTimeout = Annotated[
    float, typer.Option(min=0, metavar="S", help="How long to wait for the nodes.")
]
START_SEVERAL = "start all vmr, each with an empty --data"


@dataclass(frozen=True, slots=True)
class How:
    """The options of the command."""

    listen: str
    without: tuple[NodeId, ...]
    timeout_s: float
    as_json: bool
    leave: tuple[LogId, ...] = ()
    deleted: tuple[str, ...] = ()


async def catch_up(
    data: Annotated[
        str,
        typer.Option(
            metavar="DIR", show_default=False, help="Of the vmr that is restored, if it is alone."
        ),
    ] = "",
    listen: Listen = CLUSTER,
    without: Without = None,
    leave: Annotated[
        list[int] | None,
        typer.Option(
            metavar="SEGMENT",
            min=1,
            help="A segment of a log that was created after the copy was made; repeatable.",
        ),
    ] = None,
    deleted: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOG",
            help="A log that was deleted after the copy was made; repeatable.",
        ),
    ] = None,
    timeout: NodesTimeout = 60.0,
    etcd: Etcd = "",
    *,
    access: EtcdAccess,
    as_json: Json = False,
) -> None:
    """Bring metadata that was restored from a copy up to date with the storage nodes.

    Nothing is deleted or guessed: it prints what is lost, and changes nothing unless all that it
    restores is certain. Its vmr must be stopped.
    """
    _check_where(data, etcd)
    how = How(
        listen, tuple(without or ()), timeout, as_json, tuple(leave or ()), tuple(deleted or ())
    )
    if data:
        await catch_up_alone(data, how)
    else:
        await catch_up_several(access.settings(etcd), how)


async def rebuild(
    data: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            show_default=False,
            help="Of the vmr that lost its rounds, if it is alone.",
        ),
    ] = "",
    listen: Listen = CLUSTER,
    without: Without = None,
    timeout: NodesTimeout = 60.0,
    etcd: Etcd = "",
    *,
    access: EtcdAccess,
    as_json: Json = False,
) -> None:
    """Last resort, all round logs are lost: restore positions from the storage nodes.

    Nothing is guessed: it prints what cannot be known, and changes nothing unless all is certain.
    """
    _check_where(data, etcd)
    how = How(listen, tuple(without or ()), timeout, as_json)
    if data:
        await rebuild_alone(data, how)
    else:
        await rebuild_several(access.settings(etcd), how)


def _check_where(data: str, etcd: str) -> None:
    if bool(data) == bool(etcd):
        raise UsageError("give --data for one vmr, or --etcd for several")


# ---- rebuild


async def rebuild_alone(directory: str, how: How) -> None:
    from loomlog.metadata.data_directory import has_rounds, rounds_in
    from loomlog.metadata.offline import embedded
    from loomlog.metadata.registry import REBUILD
    from loomlog.storage.disk import RealFiles

    async with embedded.opened(directory) as store:
        if has_rounds(RealFiles(), directory):
            raise AlreadyExists(
                f"{rounds_in(directory)} is not empty: a round log that can be read is "
                "better than a rebuilt one; if it cannot, move it away"
            )
        findings = await _examine(store, how)
        await REBUILD.give_up(store, findings.given_up)
        embedded.write_rounds(directory, findings.records, findings.epoch)
    _say_rebuilt(findings, f"start the vmr on {directory}", how)


async def rebuild_several(settings: EtcdSettings, how: How) -> None:
    from loomlog.metadata.offline import replicated
    from loomlog.metadata.registry import REBUILD

    async with replicated.opened(settings) as store:
        await replicated.check_stopped(store, settings)
        findings = await _examine(store, how)
        await REBUILD.give_up(store, findings.given_up)
        await replicated.begin_again(store, findings.records)
    _say_rebuilt(findings, START_SEVERAL, how)


async def _examine(store: MetaStore, how: How) -> Findings:
    """Return what the nodes know; raise if that is incomplete."""
    from loomlog.metadata.registry import REBUILD

    async with REBUILD.listening(store, how.listen) as rebuild:
        rebuild.check_nodes(how.without)
        findings = await rebuild.examine(
            without=how.without,
            timeout_s=how.timeout_s,
            waiting=partial(_say_waiting, rebuild.address),
        )
    if not findings.certain:
        _print(findings, how, {"rebuilt": False}, _lines(findings))
        raise _uncertain()
    return findings


def _say_rebuilt(findings: Findings, start: str, how: How) -> None:
    _print(findings, how, {"rebuilt": True}, [*_lines(findings), f"rebuilt: {start}"])


# ---- catch-up


async def catch_up_alone(directory: str, how: How) -> None:
    from loomlog.metadata.offline import embedded
    from loomlog.metadata.registry import REBUILD
    from loomlog.metadata.rollback.catch_up import catching_up

    async with embedded.opened(directory) as store, catching_up(store, how.listen) as catch_up:
        plan = await _plan(catch_up, how)
        await catch_up.write(plan)
        await REBUILD.give_up(store, how.without)
        embedded.replace_rounds(directory, plan.rounds.records, plan.rounds.epoch)
        await catch_up.finish(plan)
    _say_plan(plan, how, f"start the vmr on {directory}")


async def catch_up_several(settings: EtcdSettings, how: How) -> None:
    from loomlog.metadata.leader import membership
    from loomlog.metadata.offline import replicated
    from loomlog.metadata.registry import REBUILD
    from loomlog.metadata.rollback.catch_up import catching_up

    async with replicated.opened(settings) as store:
        await replicated.check_stopped(store, settings)
        async with catching_up(store, how.listen) as catch_up:
            plan = await _plan(catch_up, how)
            await catch_up.write(plan)
            await REBUILD.give_up(store, how.without)
            await replicated.begin_again(store, plan.rounds.records)
            await membership.raise_epoch(store, plan.rounds.epoch)
            await catch_up.finish(plan)
    _say_plan(plan, how, START_SEVERAL)


async def _plan(catch_up: MetadataCatchUp, how: How) -> CatchUpPlan:
    """Return what the metadata will become; raise if that is not certain."""
    plan = await catch_up.plan(
        without=how.without,
        leave=how.leave,
        deleted=how.deleted,
        timeout_s=how.timeout_s,
        waiting=partial(_say_waiting, catch_up.address),
    )
    if not plan.certain:
        _say_plan(plan, how)
        raise _uncertain()
    return plan


def _say_plan(plan: CatchUpPlan, how: How, start: str = "") -> None:
    """Print a plan; `start` is the command to run afterwards."""
    fields = {"notes": plan.notes, "reasons": plan.reasons, "up_to_date": bool(start)}
    end = [f"the metadata is up to date: {start}"] if start else []
    _print(plan.rounds, how, fields, [*plan.reasons, *_lines(plan.rounds), *plan.notes, *end])


# ---- output


def _uncertain() -> LoomError:
    return LoomError("not everything is certain, so nothing was changed: see what is missing")


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
            f"if it is lost for good, see what is certain --without {node}"
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

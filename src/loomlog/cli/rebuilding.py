"""`loom metadata rebuild`: positions from the storage nodes, when every round log is lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from loomlog.cli.output import console, plain, print_json
from loomlog.errors import AlreadyExists, LoomError

if TYPE_CHECKING:
    from loomlog.config import EtcdSettings
    from loomlog.metadata.rebuild import Findings
    from loomlog.metadata.store import MetaStore
    from loomlog.types import NodeId


@dataclass(frozen=True, slots=True)
class How:
    """How the command was called."""

    listen: str
    without: tuple[NodeId, ...]
    timeout_s: float
    as_json: bool


async def alone(directory: str, how: How) -> None:
    from loomlog.metadata import embedded, rebuild

    async with embedded.opened(directory) as store:
        if embedded.has_rounds(directory):
            raise AlreadyExists(
                f"{embedded.rounds_in(directory)} is not empty: a round log that can be read is "
                "better than a rebuilt one; if it cannot, move it away"
            )
        found = await _examine(store, how)
        await rebuild.give_up(store, found.given_up)
        embedded.write_rounds(directory, found.records, found.epoch)
    _say_done(found, f"start the vmr on {directory}", how)


async def several(settings: EtcdSettings, how: How) -> None:
    from loomlog.metadata import rebuild, replicated

    async with replicated.opened(settings) as store:
        await replicated.check_stopped(store, settings)
        found = await _examine(store, how)
        await rebuild.give_up(store, found.given_up)
        await replicated.begin_again(store, found.records)
    _say_done(found, "start all vmr, each with an empty --data", how)


async def _examine(store: MetaStore, how: How) -> Findings:
    """What the nodes know; raises if that is not everything."""
    from loomlog.metadata.rebuild import rebuilding

    async with rebuilding(store, how.listen) as rebuild:
        rebuild.check_nodes(how.without)
        found = await rebuild.examine(
            without=how.without,
            timeout_s=how.timeout_s,
            waiting=partial(_say_waiting, rebuild.address),
        )
    if not found.certain:
        _print(found, how, rebuilt=False)
        raise LoomError("not everything is certain, so nothing was changed: see what is missing")
    return found


def _say_waiting(address: str, missing: list[NodeId]) -> None:
    text = f"listening on {address} in place of the vmr, waiting for node {_names(missing)}"
    print(text, file=sys.stderr, flush=True)


# ---- what was found


def _say_done(found: Findings, start: str, how: How) -> None:
    _print(found, how, rebuilt=True)
    if not how.as_json:
        print(f"rebuilt: {start}")


def _print(found: Findings, how: How, *, rebuilt: bool) -> None:
    if how.as_json:
        print_json(_fields(found) | {"rebuilt": rebuilt})
        return
    for line in _lines(found):
        console().print(plain(line), highlight=False, soft_wrap=True)


def _fields(found: Findings) -> dict[str, object]:
    logs = [
        {
            "name": log.name,
            "last_position": log.high_watermark,
            "doubts": [{"stream": d.stream_id or None, "what": d.text} for d in log.doubts],
        }
        for log in found.logs
    ]
    return {
        "logs": logs,
        "absent": found.absent,
        "given_up": found.given_up,
        "outdated": found.outdated,
    }


def _lines(found: Findings) -> Iterator[str]:
    if found.outdated:
        yield found.outdated
    for node, streams in found.absent.items():
        yield (
            f"node {node} did not come, and stream {_names(streams)} is there: start its vsn; "
            f"if it is lost for good, see what is certain --without {node}"
        )
    for log in found.logs:
        if not log.doubts:
            yield f"log {log.name}: certain, its last position is {log.high_watermark}"
        for doubt in log.doubts:
            where = f"stream {doubt.stream_id}: " if doubt.stream_id else ""
            yield f"log {log.name}: {where}{doubt.text}"
    for node, streams in found.given_up.items():
        yield f"node {node} is given up: stream {_names(streams)} gets another replica elsewhere"


def _names(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))

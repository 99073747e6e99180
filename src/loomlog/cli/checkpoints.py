"""`loom checkpoint …`: where readers are."""

from __future__ import annotations

from loomlog.cli.connection import connected
from loomlog.cli.output import console, new_table, plain, print_json
from loomlog.errors import InvalidArgument, NotFound


async def list_all(address: str, name: str, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        log = cluster.log(name)
        tail, found = await log.tail(), await log.checkpoints()
    if as_json:
        print_json(
            [
                {"name": one, "position": info.position, "changed": info.changed.isoformat()}
                for one, info in found.items()
            ]
        )
        return
    if not found:
        print(f"{name} has no checkpoints: `loom tail {name} --checkpoint NAME` makes one")
        return
    table = new_table("checkpoint", "position", "behind", "changed")
    for one, info in found.items():
        behind = f"{max(0, tail - info.position):,}"
        changed = info.changed.isoformat(" ", "seconds")
        table.add_row(plain(one), f"{info.position:,}", behind, changed)
    console().print(table)


async def set_to(address: str, name: str, reader: str, position: int, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        log = cluster.log(name)
        tail = await log.tail()
        if position > tail:
            raise InvalidArgument(f"{name} ends at {tail}: set a position up to there")
        await log.checkpoint(reader).set(position, back=True)
    if as_json:
        print_json({"log": name, "name": reader, "position": position})
    else:
        print(f"checkpoint {reader} of {name} is at {position}")


async def delete(address: str, name: str, reader: str, *, as_json: bool) -> None:
    async with connected(address) as cluster:
        checkpoint = cluster.log(name).checkpoint(reader)
        if await checkpoint.get() is None:
            raise NotFound(
                f"{name} has no checkpoint {reader!r}: `loom checkpoint list {name}` shows them"
            )
        await checkpoint.delete()
    if as_json:
        print_json({"deleted": reader, "log": name})
    else:
        print(f"deleted checkpoint {reader} of {name}")

"""All consumer groups of one log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from loomlog.client.arguments import is_name
from loomlog.client.context import Client
from loomlog.client.groups.group import Group, GroupInfo, GroupOptions
from loomlog.client.groups.membership import MemberLeases
from loomlog.client.groups.store import StateStore
from loomlog.client.kv.registers import Registers
from loomlog.core.groups.state import GroupState
from loomlog.core.permissions import Verb
from loomlog.errors import InvalidArgument, NotFound, shown
from loomlog.types import LogId

if TYPE_CHECKING:
    from loomlog.client.log_parts import LogParts

_NAME_CHARS_MAX: Final = 100

Info = TypeVar("Info")


class Groups(Registers):
    """The consumer groups of one log. Each consists of a register, and a lease per member."""

    def __init__(self, parts: LogParts, client: Client) -> None:
        self._parts = parts
        self._client = client
        self._metadata = client.metadata
        self._rng = client.rng
        self._prefix = f"group/{parts.name}/"

    def group(self, name: str, options: GroupOptions) -> Group:
        register = self.register(self._prefix + check_group_name("group", name))
        what = f"group {name!r} of log {self._parts.name!r}"
        store = StateStore(what, register, GroupState.decode)
        leases = MemberLeases(f"{register.name}/", self._client)
        return Group(name, self._parts, store, leases, options)

    async def all(self) -> dict[str, GroupInfo]:
        """Return all groups of the log, by name."""
        await self._parts.cached.fetch(Verb.CHECKPOINT)  # raises NotFound if there is no such log
        return await describe_states(
            self, self._prefix, lambda name: self.group(name, GroupOptions()).describe()
        )

    async def forget(self, log_id: LogId) -> None:
        """Delete the groups of a deleted log."""
        await self._forget(self._prefix, lambda value: GroupState.decode(value).log_id == log_id)


def check_group_name(what: str, name: object) -> str:
    """Return the name of a group or queue; raise InvalidArgument if it cannot be one."""
    if not is_name(name, _NAME_CHARS_MAX) or "/" in name:
        raise InvalidArgument(
            f"a {what}'s name has 1 to {_NAME_CHARS_MAX} printable characters, no slash, "
            f"not {shown(name)}"
        )
    return name


async def describe_states(
    registers: Registers, prefix: str, describe: Callable[[str], Awaitable[Info]]
) -> dict[str, Info]:
    """Return the descriptions of all groups or queues, by name."""
    infos = {}
    for register in await registers.registers(prefix):
        name = register.removeprefix(prefix)
        try:
            infos[name] = await describe(name)
        except NotFound:
            pass  # it belongs to a deleted log of this name, or was deleted just now
    return infos

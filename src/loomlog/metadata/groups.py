"""The consumer groups of the cluster, for its status. Members change them; see client/groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from loomlog.core.groups.state import GroupState
from loomlog.errors import LoomError
from loomlog.types import LogId
from loomlog.wire import loomlog_pb2 as pb

PREFIX: Final = "group/"  # of the names of their registers


class GroupStates:
    """The states of all groups as they were stored last; decoded only when they are shown."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}  # by register

    def take(self, register: str, value: bytes | None) -> None:
        """Take the value of a register, if it is that of a group; None: it was deleted."""
        if not register.startswith(PREFIX):
            return
        if value is None:
            self._values.pop(register, None)
        else:
            self._values[register] = value

    def of_log(self, log_id: LogId, name: str) -> list[pb.GroupStatus]:
        prefix = f"{PREFIX}{name}/"
        return [
            pb.GroupStatus(
                name=register.removeprefix(prefix),
                members=len(state.members),
                positions=[shard.position for shard in state.shards],
            )
            for register, state in self._states(prefix)
            if state.log_id == log_id
        ]

    def _states(self, prefix: str) -> Iterator[tuple[str, GroupState]]:
        for register, value in sorted(self._values.items()):
            if register.startswith(prefix):
                try:
                    yield register, GroupState.decode(value)
                except LoomError:
                    pass  # another program wrote it, or another release

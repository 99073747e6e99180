"""The consumer groups and work queues of the cluster, for its status. Members change them; see
client/groups and client/queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeVar

from loomlog.core.groups.state import GroupState
from loomlog.core.queues.state import QueueState
from loomlog.errors import LoomError
from loomlog.types import LogId
from loomlog.wire import loomlog_pb2 as pb

GROUPS: Final = "group/"
QUEUES: Final = "queue/"
PREFIXES: Final = (GROUPS, QUEUES)  # of the names of their registers


class OfLog(Protocol):
    @property
    def log_id(self) -> LogId: ...


S = TypeVar("S", bound=OfLog)


class GroupStates:
    """The states of all groups and queues as last stored; decoded only when they are shown."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}  # by register

    def take(self, register: str, value: bytes | None) -> None:
        """Take the new value of a register, if it belongs to a group or queue; None: it was
        deleted."""
        if not register.startswith(PREFIXES):
            return
        if value is None:
            self._values.pop(register, None)
        else:
            self._values[register] = value

    def of_log(self, log_id: LogId, log: str) -> list[pb.GroupStatus]:
        return [
            pb.GroupStatus(
                name=name,
                members=len(state.members),
                positions=[shard.position for shard in state.shards],
            )
            for name, state in self._states(f"{GROUPS}{log}/", GroupState.decode, log_id)
        ]

    def queues_of_log(self, log_id: LogId, log: str) -> list[pb.QueueStatus]:
        return [
            pb.QueueStatus(
                name=name,
                members=len(state.members),
                position=state.position,
                taken=len(state.jobs) - len(free := state.free()),
                free=len(free),
            )
            for name, state in self._states(f"{QUEUES}{log}/", QueueState.decode, log_id)
        ]

    def _states(
        self, prefix: str, decode: Callable[[bytes], S], log_id: LogId
    ) -> Iterator[tuple[str, S]]:
        for register, value in sorted(self._values.items()):
            if register.startswith(prefix):
                try:
                    state = decode(value)
                except LoomError:
                    continue  # another program wrote it, or another release
                if state.log_id == log_id:
                    yield register.removeprefix(prefix), state

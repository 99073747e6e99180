"""All work queues of one log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from loomlog.client.append.encoders import encoded_headers
from loomlog.client.context import Client
from loomlog.client.groups.groups import check_group_name, describe_states
from loomlog.client.groups.membership import MemberLeases
from loomlog.client.groups.store import StateStore
from loomlog.client.kv.registers import Registers
from loomlog.client.queues.queue import Queue, QueueInfo, QueueOptions
from loomlog.core.permissions import Verb
from loomlog.core.queues.state import QueueState
from loomlog.errors import AlreadyExists
from loomlog.types import Entry, LogId
from loomlog.wire import loomlog_pb2 as pb

if TYPE_CHECKING:
    from loomlog.client.log_parts import LogParts


class Queues(Registers):
    """The work queues of one log. Each consists of a register, and a lease per member."""

    def __init__(
        self, parts: LogParts, client: Client, parts_of: Callable[[str], LogParts]
    ) -> None:
        self._parts = parts
        self._client = client
        self._parts_of = parts_of
        self._metadata = client.metadata
        self._rng = client.rng
        self._prefix = f"queue/{parts.name}/"

    def queue(self, name: str, options: QueueOptions) -> Queue:
        register = self.register(self._prefix + check_group_name("queue", name))
        what = f"queue {name!r} of log {self._parts.name!r}"
        store = StateStore(what, register, QueueState.decode)
        leases = MemberLeases(f"{register.name}/", self._client)
        return Queue(name, self._parts, store, leases, self._bury, options)

    async def all(self) -> dict[str, QueueInfo]:
        """Return all queues of the log, by name."""
        await self._parts.cached.fetch(Verb.CHECKPOINT)  # raises NotFound if there is no such log
        return await describe_states(
            self, self._prefix, lambda name: self.queue(name, QueueOptions()).describe()
        )

    async def forget(self, log_id: LogId) -> None:
        """Delete the queues of a deleted log."""
        await self._forget(self._prefix, lambda value: QueueState.decode(value).log_id == log_id)

    async def _bury(self, entry: Entry) -> None:
        """Append an entry to the log of dead letters, which is created when it is first needed."""
        name = f"{self._parts.name}.dead-letters"
        active = (await self._parts.describe()).segments[-1]
        request = pb.CreateLog(
            name=name, protocol=active.protocol, streams=1, replicas=active.replicas
        )
        try:
            await self._metadata.request(pb.Frame(create_log=request), repeatable=False)
        except AlreadyExists:
            pass
        headers = encoded_headers(entry.headers)
        await self._parts_of(name).appender.append_special(
            entry.value, entry.key, None, headers, None
        )

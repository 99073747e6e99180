"""Consumer groups for programs without an event loop."""

from __future__ import annotations

from collections.abc import Iterator

from loomlog.client.blocking.loop_thread import BlockingContext, LoopThread, blocking
from loomlog.client.groups.group import Group
from loomlog.types import Entry


class BlockingGroup(BlockingContext[Group]):
    """A consumer group of one log; the blocking form of `Group`. `with` joins the group; then it is
    an iterator over the entries of the shards that this member owns, in order."""

    def __init__(self, thread: LoopThread, group: Group) -> None:
        super().__init__(thread, group)
        self.name = group.name

    def __repr__(self) -> str:
        return f"<BlockingGroup {self.name!r}>"

    def __iter__(self) -> Iterator[Entry]:
        group = self._target
        consumption = group._consumption_joined()
        while True:
            for entry in self._thread.run(group._next_entries()):
                consumption.reading = entry.position
                yield entry
                if group._stale:
                    break

    @property
    def member(self) -> str:
        """The id of this member; raise InvalidArgument before it has joined."""
        return self._target.member

    @property
    def shards(self) -> frozenset[int]:
        """The shards that this member currently owns."""
        return self._target.shards

    commit = blocking(Group.commit)
    describe = blocking(Group.describe)
    reset = blocking(Group.reset)
    delete = blocking(Group.delete)

"""Access rules on a storage node, which are stored on its volumes so that a restarted node can
judge requests before the metadata repository answers; and the names of logs, to which they apply.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from loomlog.core.permissions import AccessRules
from loomlog.errors import LoomError, NotFound
from loomlog.node.workers import off_loop
from loomlog.storage import small_files
from loomlog.storage.files import Files, Worker
from loomlog.types import LogId, StreamId
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.access import Access
from loomlog.wire.link import Frame

logger = logging.getLogger(__name__)

_FILE: Final = "access"
NAMES_MAX: Final = 100_000  # remembered
LEARN_S: Final = 1.0  # for all names of one page


class KnownAccess:
    """The newest rules that this node was given. The constructor reads the files, which blocks.

    An unreadable file counts as rules without any grant, until the node registers."""

    def __init__(self, files: Files, paths: Sequence[str], worker: Worker) -> None:
        self._files = files
        self._paths = paths
        self._worker = worker
        self.current = self._load()

    def _load(self) -> Access:
        stored = [access for path in self._paths if (access := self._load_from(path)) is not None]
        return max(stored, key=lambda access: access.version, default=Access())

    def _load_from(self, path: str) -> Access | None:
        try:
            if not self._files.exists(f"{path}/{_FILE}"):
                return None
            fields = small_files.decode(small_files.read(self._files, f"{path}/{_FILE}"))
            if fields is not None:
                return Access.from_wire(pb.Access.FromString(bytes.fromhex(fields["access"])))
        except (OSError, ValueError, KeyError, TypeError, DecodeError, LoomError) as error:
            logger.warning("%s/%s cannot be read: %s", path, _FILE, error)
        logger.error("%s/%s is damaged: requests wait for the metadata repository", path, _FILE)
        return Access(rules=AccessRules(enforced=True))

    async def save(self, access: Access) -> None:
        """Apply and store new rules. They apply even if the disk fails."""
        if access == self.current:
            return
        self.current = access
        await off_loop(self._worker, partial(self._save, access))

    def _save(self, access: Access) -> None:
        fields = {"access": access.to_wire().SerializeToString(deterministic=True).hex()}
        for path in self._paths:
            try:
                small_files.replace_small_file(
                    self._files, f"{path}/{_FILE}", small_files.encode(fields)
                )
            except OSError as error:
                logger.warning("access rules cannot be kept at %s: %s", path, error)


class LearnedNames:
    """Names of logs by loglet, learned from the metadata repository; they never change."""

    def __init__(
        self,
        loglet_of: Callable[[StreamId], LogId | None],
        request: Callable[[Frame], Awaitable[Frame]],
    ) -> None:
        self.loglet_of = loglet_of
        self._request = request
        self._names: dict[LogId, str] = {}

    def log_of(self, loglet: LogId) -> str | None:
        return self._names.get(loglet)

    async def learn_all(self, loglets: Collection[LogId]) -> None:
        """Learn unknown names, as many as possible within LEARN_S."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEARN_S):
                for loglet in sorted(set(loglets) - self._names.keys()):
                    with suppress(LoomError):
                        await self.learn(loglet)

    async def learn(self, loglet: LogId) -> None:
        question = pb.Frame(describe_loglet=pb.DescribeLoglet(loglet_id=loglet))
        name = (await self._request(question)).loglet_name.log
        if not name:
            raise NotFound(f"there is no log with a loglet {loglet}: refresh the metadata")
        if len(self._names) >= NAMES_MAX:
            self._names.clear()
        self._names[loglet] = name

"""Lead in an epoch that this process has won.

It opens the round log, which seals a majority and adopts everything that was decided, then begins a
term and serves until another member has a newer epoch. A change of members takes two takeovers of
the same leader: one with majorities of the old and the new members, then one with the new members
only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from loomlog.config import MetadataSettings
from loomlog.core.quorum.leader import RoundsLost
from loomlog.core.quorum.member import Leader, MemberId
from loomlog.errors import (
    Busy,
    Conflict,
    Corrupt,
    InvalidArgument,
    LoomError,
    NotLeader,
    Retryable,
    SwapUnknown,
)
from loomlog.metadata.leader import membership as membership_
from loomlog.metadata.leader.membership import LEADER, Membership
from loomlog.metadata.leader.peers import Peers, announce
from loomlog.metadata.rounds import imported_rounds
from loomlog.metadata.rounds.quorum_member import QuorumMember
from loomlog.metadata.rounds.quorum_round_log import QuorumRoundLog
from loomlog.metadata.store.contract import Fence, FencedStore, MetaStore, WatchedStore
from loomlog.metadata.term import Mandate, Term, explained
from loomlog.net.endpoints import connect
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.link import Connection, Handler

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.1
DAMAGED_RETRY_S: Final = 2.0  # between checks whether damaged or lost metadata was restored
TAKEOVER_S: Final = 10.0  # a takeover that takes longer is abandoned and retried


class Won(NamedTuple):
    """An epoch, and the version of the record that is its fence."""

    leader: Leader
    version: int


class Takeover:
    """Leads in the epochs that this process wins."""

    def __init__(
        self,
        settings: MetadataSettings,
        store: MetaStore,
        member: QuorumMember,
        codec: Codec,
        peers: Peers,
        begin_term: Callable[[Mandate], Awaitable[Term]],
        waits_for: Callable[[str], None],
        file_bytes: int,
    ) -> None:
        """`waits_for` is called with the reason why a takeover waits; "" if it succeeded."""
        self._me: MemberId = settings.member_id
        self._peers_given = dict(settings.peers)
        self._silence_s = settings.leader_silence_s
        self._store = store
        self._member = member
        self._codec = codec
        self._peers = peers
        self._begin_term = begin_term
        self._waits_for = waits_for
        self._file_bytes = file_bytes
        self._changing = asyncio.Lock()
        self.membership = Membership(self._peers_given, {}, 0)  # as last read

    async def read_membership(self, store: MetaStore) -> Membership:
        self.membership = await membership_.read_membership(store, self._peers_given)
        return self.membership

    async def serve(self, won: Won) -> bool:
        """Serve nodes and clients in an epoch; return whether to lead again in a new one."""
        store = FencedStore(self._store, Fence(LEADER, won.version))
        try:
            async with asyncio.timeout(TAKEOVER_S):
                # Read only now, when an older leader can no longer change it.
                membership = await self.read_membership(store)
                log = await QuorumRoundLog.open(
                    won.leader,
                    membership.configuration,
                    membership.addresses,
                    self._member,
                    self._connect,
                    waits_for=self._waits_for,
                    file_bytes=self._file_bytes,
                )
        except TimeoutError:
            logger.warning("the takeover in epoch %d took too long", won.leader.epoch)
            return False
        except RoundsLost as error:
            self._waits_for(str(error))
            await asyncio.sleep(DAMAGED_RETRY_S)
            return True
        except Retryable as error:
            logger.warning("the takeover in epoch %d failed: %s", won.leader.epoch, error)
            return False
        try:
            return await self._serve_with(log, store, won.leader)
        except Corrupt as error:
            self._waits_for(str(error))
            await asyncio.sleep(DAMAGED_RETRY_S)
            return True
        except (Retryable, Conflict, SwapUnknown) as error:
            logger.warning("cannot lead in epoch %d: %s", won.leader.epoch, error)
            return False
        finally:
            log.close()  # before the term ends: snapshots need its state

    async def _serve_with(self, log: QuorumRoundLog, store: MetaStore, leader: Leader) -> bool:
        if self.membership.previous:
            # Now a majority of both has everything: take over again, with only the new members.
            settled = await membership_.change_is_over(store, self.membership)
            return self._me in settled.members
        rounds = await imported_rounds.import_rounds(store, log)
        cut_short = asyncio.Event()
        term = await self._begin_term(
            Mandate(
                leader=leader,
                store=WatchedStore(store, cut_short.set),
                round_log=rounds,
                confirm=log.confirm,
                members=lambda: self._standing(log),
                change_members=self._change,
            )
        )
        self._waits_for("")
        logger.info("leads in epoch %d", leader.epoch)
        works = [self._announce(term), self._mend(term, cut_short)]
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            ends: list[asyncio.Future[Any]] = [term.over, log.lost, *tasks]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # they end before the term only after an error
        finally:
            for task in tasks:
                task.cancel()
        error = term.over.result() if term.over.done() else log.lost.result()
        if not isinstance(error, NotLeader):
            raise explained(error)
        return isinstance(error, _TakeOverAgain)

    async def _announce(self, term: Term) -> None:
        """Announce the leader repeatedly to nodes that are not connected: a node that was not
        reached may still follow an older leader that does not know that it was replaced."""
        while True:
            away = [
                record.address
                for node, record in term.catalog.nodes.items()
                if not term.nodes.connected(node)
            ]
            secret = term.catalog.cluster.secret
            await announce(term.leader, away, secret, self._codec, self._silence_s)
            await asyncio.sleep(self._silence_s)

    async def _mend(self, term: Term, cut_short: asyncio.Event) -> None:
        """Begin another term once the store answers again, to complete or undo a partial change."""
        await cut_short.wait()
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                await self._store.get(LEADER)
            except LoomError:
                continue
            term.end_with(_TakeOverAgain("a change of metadata was cut short"))
            return

    async def _connect(self, address: str, handler: Handler) -> Connection:
        return await connect(address, self._codec, handler, self._silence_s, wanted=("metadata", 0))

    def _standing(self, log: QuorumRoundLog) -> list[pb.MetadataMember]:
        standing = {found.member: found for found in log.standing()}
        return [
            pb.MetadataMember(
                member_id=member,
                address=address,
                reachable=standing[member].reachable,
                lag=standing[member].lag,
                leaving=member not in self.membership.members,
                connected_s=standing[member].connected_s,
            )
            for member, address in sorted(self.membership.addresses.items())
            if member in standing
        ]

    # ---- members change

    async def _change(self, term: Term, request: pb.ChangeMetadata) -> pb.Changed:
        """Record the change. Two takeovers of this leader then carry it out: one with majorities of
        the old and the new members, then one with only the new members."""
        async with self._changing:
            membership = await self.read_membership(self._store)
            adds = request.action == pb.ChangeMetadata.ADD
            if adds and request.member_id not in membership.members:
                await self._check_runs(request.member_id, request.address)
            try:
                await membership_.change_members(term.store, membership, request)
            except (Busy, SwapUnknown):  # an earlier change is unfinished, or its outcome unknown
                _take_over_again(term)
                raise
        _take_over_again(term)
        verb = "added" if adds else "removed"
        return pb.Changed(
            done=f"metadata repository {request.member_id} is being {verb}",
            next="it takes effect with a takeover: look at `loom status`",
        )

    async def _check_runs(self, member: MemberId, address: str) -> None:
        try:
            found = await self._peers.number(address, self._silence_s)
        except LoomError as error:
            raise InvalidArgument(
                f"no metadata repository runs at {address} ({error}): start it first"
            ) from error
        if found != member:
            which = f"metadata repository {found}" if found else "a metadata repository alone"
            raise InvalidArgument(
                f"{which} runs at {address}: start one with --member-id {member}, give its address"
            )


def _take_over_again(term: Term) -> None:
    """End the term after the answer, which is sent in this iteration of the loop."""
    asyncio.get_running_loop().call_soon(term.end_with, _TakeOverAgain("its members change"))


class _TakeOverAgain(NotLeader):
    """Raised to let this leader begin a new term, in a new epoch."""

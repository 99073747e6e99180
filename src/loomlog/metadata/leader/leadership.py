"""A member of a replicated metadata repository: it follows, stands for leader, or leads.

    follow      polls the leader. It is missed if it closes the connection, does not answer in
                time (core.quorum.patience), or answers that it does not lead
    stand       asks whether the others miss the leader, too, or have at least waited long for it
                (core.quorum.election), then takes the next epoch by compare-and-swap in the
                MetaStore, or follows if another member was faster
    lead        serves nodes and clients (takeover.py) until another member has a newer epoch

Clocks only determine when to try. A replaced leader can do no harm: its rounds find no majority,
and the fence refuses its writes of metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from loomlog.config import MetadataSettings
from loomlog.core.quorum import election
from loomlog.core.quorum.election import Opinion
from loomlog.core.quorum.member import NOBODY, Leader, MemberId
from loomlog.core.quorum.patience import Patience
from loomlog.errors import (
    Conflict,
    LoomError,
    NotLeader,
    Timeout,
)
from loomlog.metadata.leader import membership as membership_
from loomlog.metadata.leader.peers import Peers
from loomlog.metadata.leader.takeover import Takeover, Won
from loomlog.metadata.rounds.quorum_member import QuorumMember
from loomlog.metadata.store.contract import MetaStore
from loomlog.metadata.term import Mandate, Term
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec

logger = logging.getLogger(__name__)

BEATS_PER_SILENCE: Final = 8  # polls of the leader within the longest time that it may be silent
LOOKS: Final = 6  # for an answer, until the leader is missed; after half of them it is doubted
STAGGER_S: Final = 0.03  # between members that miss the leader at the same moment
RETRY_S: Final = 0.1


class Leadership:
    """Decides when this process leads, and begins and ends its terms."""

    def __init__(
        self,
        settings: MetadataSettings,
        store: MetaStore,
        member: QuorumMember,
        codec: Codec,
        begin_term: Callable[[Mandate], Awaitable[Term]],
        end_term: Callable[[], Awaitable[None]],
        failed: Callable[[LoomError], None],
        resigned: Callable[[], None],
        file_bytes: int,
    ) -> None:
        """`resigned` is called first when a leader stops, to make the others check."""
        self._me: MemberId = settings.member_id
        self._silence_s = settings.leader_silence_s
        self._beat_s = settings.leader_silence_s / BEATS_PER_SILENCE
        self._store = store
        self._member = member
        self._end_term = end_term
        self._failed = failed
        self._resigned = resigned
        self._known = member.leader  # the newest one known
        self._leading: Leader | None = None  # from taking an epoch to its end
        self._hears = False  # the leader, as its follower
        self._doubts = False  # a check whether it is alive, because it takes long to answer
        self._patience: dict[MemberId, Patience] = {}
        self._asking: asyncio.Task[Opinion] | None = None  # the leader; also after it was missed
        self._asked = NOBODY
        self._is_silent = False  # it did not answer within its time
        self._trouble = ""  # what a takeover waits for
        self._news = asyncio.Event()  # check again: a newer leader, a lost connection
        self._peers = Peers(self._me, codec, self._news.set)
        self._task: asyncio.Task[None] | None = None
        self._takeover = Takeover(
            settings, store, member, codec, self._peers, begin_term, self._waits_for, file_bytes
        )

    def start(self) -> None:
        self._unwatch = self._member.watch(self._learn)
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        if self._leading is not None:
            self._leading = None  # the others are notified while this process ends its term
            self._resigned()
        if self._task is not None:
            self._unwatch()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._asking is not None:
            self._asking.cancel()
        self._peers.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, LoomError):
            self._failed(error)
        elif error is not None:
            logger.error("leadership failed", exc_info=error)
            self._failed(LoomError("internal error while leading or following: see the log"))

    # ---- answers to other members

    def beat(self) -> pb.LeaderBeat:
        """Return the leader as known here."""
        epoch, member, address = self._leading or self._known
        heard = self._leading is not None or (self._hears and not self._doubts)
        return pb.LeaderBeat(
            epoch=epoch, leader=member, address=address, heard=heard, member=self._me
        )

    def not_leader(self) -> NotLeader:
        """Return the error for clients that connect although another process leads, or none
        does."""
        if self._hears:
            return NotLeader(f"{self._known.address} leads: ask there", self._known.address)
        waits = self._trouble or "a takeover is under way"
        return NotLeader(f"no metadata repository leads at the moment: {waits}")

    def as_dict(self) -> dict[str, Any]:
        """Return the state, ready for JSON."""
        return {
            "member": self._me,
            "leader": self._known.member or None,
            "leader_address": self._known.address or None,
            "leader_epoch": self._known.epoch,
            "hears_leader": self._hears,
            "waits_for": self._trouble,
        }

    # ---- the loop

    async def _run(self) -> None:
        while True:
            await self._follow()
            won = await self._stand()
            while won is not None:
                again = await self._lead(won)
                won = await self._take_epoch() if again else None

    def _learn(self, leader: Leader) -> None:
        if leader.epoch > self._known.epoch:
            self._known = leader
            self._news.set()

    async def _hear_of(self, leader: Leader) -> None:
        """Check the MetaStore after a report that another process leads."""
        if leader.epoch <= self._known.epoch:
            return
        try:
            newest, _ = await membership_.read_leader(self._store)
        except LoomError as error:
            logger.debug("epoch %d cannot be verified: %s", leader.epoch, error)
        else:
            self._learn(newest)

    async def _wait(self, seconds: float) -> None:
        """Wait this long, or less if there is news."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    # ---- follow

    async def _follow(self) -> None:
        """Follow until the leader is missed."""
        while self._known.member not in (NOBODY.member, self._me):
            if not await self._follows(self._known):
                return

    async def _follows(self, leader: Leader) -> bool:
        """Wait until the leader is missed (False) or there is a newer one (True)."""
        try:
            while self._known == leader:
                if not await self._leads(leader):
                    break
                if not self._hears:
                    logger.info("follows %s, which leads in epoch %d", leader.address, leader.epoch)
                self._hears, self._trouble = True, ""
                await self._wait(self._beat_s)
        finally:
            self._hears = False
        if self._known != leader:
            return True
        logger.warning("misses the leader of epoch %d at %s", leader.epoch, leader.address)
        return False

    async def _leads(self, leader: Leader) -> bool:
        if self._asking is None or self._asking.done() or self._asked != leader:
            self._asked = leader
            self._asking = asyncio.get_running_loop().create_task(self._ask(leader))
            self._asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        self._is_silent = not await self._answers(self._asking, leader)
        if self._is_silent:
            return False
        try:
            opinion = self._asking.result()
        except LoomError as error:
            self._is_silent = isinstance(error, Timeout)
            return False
        await self._hear_of(opinion.leader)
        return opinion.heard and opinion.leader.epoch >= leader.epoch

    async def _ask(self, leader: Leader) -> Opinion:
        """Ask the leader. Even a late answer shows how slow the leader is."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        opinion = await self._peers.ask(leader.address, self._silence_s)
        self._patience_with(leader).answered(loop.time(), loop.time() - begun_s)
        return opinion

    def _patience_with(self, leader: Leader) -> Patience:
        longest_s = self._silence_s - self._beat_s
        return self._patience.setdefault(leader.member, Patience(longest_s))

    async def _answers(self, asking: asyncio.Task[Opinion], leader: Leader) -> bool:
        """Return whether an answer arrives in time. Checks are counted, not timed, because this
        process may have been suspended itself."""
        try:
            for look in range(LOOKS):
                self._doubts = look >= LOOKS / 2
                look_s = self._patience_with(leader).wait_s / LOOKS
                if (await asyncio.wait({asking}, timeout=look_s))[0]:
                    return True
            return False
        finally:
            self._doubts = False

    # ---- stand

    async def _stand(self) -> Won | None:
        """Take over if the others miss the leader as well; None: there is a leader to follow."""
        missed = self._known
        await self._wait(
            STAGGER_S * election.rank(self._me, self._takeover.membership.configuration, missed)
        )
        while self._known == missed:
            match await self._verdict(missed):
                case election.Stand():
                    if (won := await self._take_epoch()) is not None:
                        return won
                case election.Follow(leader):
                    await self._hear_of(leader)
                    if self._known == missed:  # others reach it: check again, but not at once
                        await self._wait(self._beat_s)
                    return None
                case election.Wait(reason):
                    self._waits_for(reason)
            await self._wait(RETRY_S)
        return None

    async def _verdict(self, missed: Leader) -> election.Verdict:
        try:
            newest, _ = await membership_.read_leader(self._store)
            await self._takeover.read_membership(self._store)
        except LoomError as error:
            return election.Wait(f"the MetaStore: {error}")
        if newest.epoch < self._member.leader.epoch:
            return election.Wait(_store_is_behind(newest.epoch, self._member.leader.epoch))
        if newest.epoch > missed.epoch and newest.member != self._me:
            return election.Follow(newest)
        passed_by = {self._me, missed.member if self._is_silent else self._me}
        members = self._takeover.membership
        asked = {m: at for m, at in members.addresses.items() if m not in passed_by}
        opinions = await self._peers.ask_all(asked, self._beat_s)
        return election.decide(self._me, members.configuration, missed, opinions)

    async def _take_epoch(self) -> Won | None:
        """Take the next epoch; None if another process did, or if it is impossible now."""
        try:
            newest, version = await membership_.read_leader(self._store)
            if newest.epoch > self._known.epoch and newest.member != self._me:
                self._learn(newest)
                return None
            epoch = max(newest.epoch, self._known.epoch) + 1
            leader = Leader(epoch, self._me, self._takeover.membership.addresses[self._me])
            return Won(leader, await membership_.take_epoch(self._store, leader, version))
        except Conflict:
            return None  # another one was faster
        except LoomError as error:
            self._waits_for(f"the MetaStore: {error}")
            return None

    def _waits_for(self, reason: str) -> None:
        """Record why no metadata repository leads; "": one leads."""
        if reason and reason != self._trouble:
            logger.warning("no metadata repository leads; a takeover waits for this: %s", reason)
        self._trouble = reason

    # ---- lead

    async def _lead(self, won: Won) -> bool:
        """Lead until another member leads; True: lead again in a new epoch."""
        self._known = self._leading = won.leader
        logger.info("takes over in epoch %d", won.leader.epoch)
        serving = asyncio.ensure_future(self._takeover.serve(won))
        replaced = asyncio.ensure_future(self._until_newer(won.leader))
        try:
            await asyncio.wait((serving, replaced), return_when=asyncio.FIRST_COMPLETED)
            return serving.result() if serving.done() else False
        finally:
            self._leading = None
            for task in (serving, replaced):
                task.cancel()
            try:
                await asyncio.gather(serving, replaced, return_exceptions=True)
            finally:  # not in a task that may be cancelled meanwhile: it must complete
                await self._end_term()
            logger.info("does not lead in epoch %d any more", won.leader.epoch)

    async def _until_newer(self, leader: Leader) -> None:
        while self._known.epoch <= leader.epoch:
            await self._news.wait()
            self._news.clear()


def _store_is_behind(known: int, promised: int) -> str:
    """Return the error for a member that knows an epoch which the MetaStore does not have."""
    what = f"knows leaders up to epoch {known}" if known else "is empty"
    return (
        f"the MetaStore {what}, but this vmr had one of epoch {promised}: give the etcd and prefix "
        "of its cluster; if that was restored from a copy, stop all vmr and run `loom metadata "
        "catch-up`; for a new cluster give an empty --data"
    )

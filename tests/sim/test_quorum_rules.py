"""The rules of the quorum round log, as stories, and the log without each of them.

A story is a schedule that breaks a log without its rule. It ends well as it is, and goes wrong when
the rule is taken away. That a takeover asks a majority, and that a member refuses an older epoch,
chance alone finds out often enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import pytest
from quorum_parts import Channel, LeaderProcess, Member
from quorum_world import QuorumWorld
from violation import Violation

from loomlog.core.quorum import leader as leading
from loomlog.core.quorum import member as rules
from loomlog.core.quorum.leader import Choice, LeaderLog, Progress, Sealed
from loomlog.core.quorum.member import NOBODY, Configuration, MemberId, MemberState

SEEDS = 200


class Stage(QuorumWorld):
    """Three members; nothing happens but what the story says."""

    def __init__(self) -> None:
        super().__init__(0, members=3)
        self.file_bytes = 4000
        self._held: set[tuple[int, MemberId]] = set()  # epoch of the leader, member

    def led_by(self, member: MemberId, *followers: MemberId) -> LeaderProcess:
        """Return the next leader, connected to itself and these members."""
        leader = self.lead(member)
        for other in (member, *followers):
            leader.connect(other)
        self.settle()
        return leader

    def hold(self, leader: LeaderProcess, member: MemberId) -> None:
        """Hold back what the leader sends to the member from now on."""
        self._held.add((leader.identity.epoch, member))

    def release(self, leader: LeaderProcess, member: MemberId) -> None:
        self._held.discard((leader.identity.epoch, member))
        self.settle()

    def append(self, leader: LeaderProcess) -> None:
        """Append a value, which may or may not be acknowledged."""
        self.last_value += 1
        leader.append(self.last_value)
        self.settle()

    def reconnect(self, leader: LeaderProcess, member: MemberId) -> None:
        leader.disconnect(member)
        leader.connect(member)
        self.settle()

    def power_cycle(self, member: MemberId, *, lose_disk: bool = False) -> None:
        self.members[member].crash(self.random)
        for channel in self._channels():
            channel.broken = channel.broken or channel.member == member
        if lose_disk:
            self.members[member].lose_disk()
        self.members[member].up = True

    def settle(self) -> None:
        """Let everything arrive that is not held."""
        while sum(self._arrive_at(channel) for channel in self._channels()):
            pass

    def _arrive_at(self, channel: Channel) -> bool:
        if (channel.leader.identity.epoch, channel.member) in self._held:
            return False
        busy = bool(channel.requests or channel.answers)
        while channel.requests:
            self._arrive(channel)
        member = self.members[channel.member]
        while member.queue:
            member.begin_job()
            member.finish_job()
        if channel.answers and channel.leader in self.leaders:
            channel.leader.take_answer(channel)
        return busy and channel.leader in self.leaders

    def _channels(self) -> list[Channel]:
        return [channel for leader in self.leaders for channel in leader.channels.values()]

    def deliver_late(self) -> None:
        """Deliver what was in flight on connections that were given up."""
        for channel in self.zombies:
            while channel.requests:
                self._arrive(channel)
        for member in self.members.values():
            while member.queue:
                member.begin_job()
                member.finish_job()


Story: TypeAlias = Callable[[Stage], None]


# ---- the stories


def a_long_tail_of_an_old_leader(stage: Stage) -> None:
    """An old leader left many unacknowledged records; later acknowledged ones are few."""
    old = stage.led_by(1, 2, 3)
    stage.append(old)
    old.disconnect(2)
    old.disconnect(3)
    for _ in range(5):
        stage.append(old)
    stage.append(stage.led_by(2, 3))
    stage.append(stage.led_by(1, 2))


def an_old_leader_and_a_member_that_restarts(stage: Stage) -> None:
    """A member promises itself to a newer leader, restarts, and hears of the older one."""
    old = stage.led_by(1, 2, 3)
    stage.append(old)
    stage.hold(old, 3)
    new = stage.led_by(3, 2)
    stage.append(new)
    stage.hold(new, 2)
    stage.power_cycle(2)
    old.disconnect(2)
    old.connect(2)
    stage.settle()
    if old in stage.leaders:
        stage.append(old)


def an_installation_that_comes_late(stage: Stage) -> None:
    """A connection is given up with an installation in it; meanwhile the member has much more."""
    leader = stage.lead(1)
    leader.connect(1)
    leader.connect(2)
    stage.settle()
    leader.disconnect(2)
    leader.core.members[2].installed = False  # it is installed again, and that is slow
    leader.connect(2)
    _to_the_first_installation(stage, leader.channels[2])
    leader.disconnect(2)
    leader.connect(2)
    stage.settle()
    stage.append(leader)
    stage.deliver_late()
    stage.end(leader)
    stage.led_by(2, 3)


def _to_the_first_installation(stage: Stage, channel: Channel) -> None:
    """Run until the seal is answered and the installation that follows is in flight."""
    stage._arrive(channel)
    member = stage.members[channel.member]
    member.begin_job()
    member.finish_job()
    channel.leader.take_answer(channel)
    assert len(channel.requests) == 1


def a_disk_is_replaced(stage: Stage) -> None:
    """A member comes back with nothing, and the others have not got all."""
    leader = stage.led_by(1, 2)
    stage.append(leader)
    stage.power_cycle(2, lose_disk=True)
    stage.end(leader)
    stage.led_by(3, 2)


def a_disk_is_replaced_under_an_old_leader(stage: Stage) -> None:
    """The member that is filled again had promised itself to a newer leader."""
    old = stage.led_by(1, 2, 3)
    stage.append(old)
    stage.hold(old, 2)
    stage.hold(old, 3)
    new = stage.led_by(3, 2)
    stage.append(new)
    stage.power_cycle(2, lose_disk=True)
    old.disconnect(2)
    old.connect(2)
    stage.release(old, 2)
    if old in stage.leaders:
        stage.append(old)


def a_disk_is_replaced_during_a_takeover(stage: Stage) -> None:
    """The promise that the new leader counted on is gone, and the old one knows nothing of it."""
    old = stage.led_by(1, 2, 3)
    stage.hold(old, 2)
    stage.append(old)
    new = stage.lead(3)
    new.connect(2)
    stage.settle()  # it is promised
    stage.power_cycle(2, lose_disk=True)
    stage.release(old, 2)
    stage.reconnect(old, 2)
    stage.hold(old, 3)
    stage.append(old)
    new.connect(3)
    stage.settle()
    if new in stage.leaders:
        stage.reconnect(new, 2)


STORIES: Mapping[str, Story] = {
    story.__name__: story
    for story in (
        a_long_tail_of_an_old_leader,
        an_old_leader_and_a_member_that_restarts,
        an_installation_that_comes_late,
        a_disk_is_replaced,
        a_disk_is_replaced_under_an_old_leader,
        a_disk_is_replaced_during_a_takeover,
    )
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_it_ends_well(story: Story) -> None:
    stage = Stage()
    story(stage)
    assert stage.acknowledgements


def goes_wrong(story: Story) -> bool:
    try:
        story(Stage())
    except Violation:
        return True
    return False


# ---- the rules, taken away


def test_a_leader_that_takes_the_longest_tail_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def longest(configuration: Configuration, answers: Mapping[MemberId, Sealed]) -> Choice | None:
        if not configuration.has_majority(answers):
            return None
        best = max(sorted(answers), key=lambda member: answers[member].last_index)
        return Choice(best, answers[best].knows)

    monkeypatch.setattr(leading, "choose", longest)
    monkeypatch.setattr(LeaderLog, "_eligible", lambda self, answer: True)
    assert goes_wrong(a_long_tail_of_an_old_leader)


def test_a_member_that_answers_a_seal_and_does_not_store_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crash = Member.crash

    def forget(self: Member, *chance: object) -> None:
        crash(self, *chance)  # type: ignore[arg-type]
        self.state = self.state._replace(promised=NOBODY)

    monkeypatch.setattr(Member, "crash", forget)
    assert goes_wrong(an_old_leader_and_a_member_that_restarts)


def test_a_member_that_goes_back_to_an_older_installation_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        rules,
        "install",
        lambda state, epoch, last_index: MemberState(state.promised, epoch, last_index),
    )
    assert goes_wrong(an_installation_that_comes_late)


def test_a_member_that_does_not_say_what_it_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: Member) -> None:
        self.state, self.records = MemberState(), []

    monkeypatch.setattr(Member, "lose_disk", forget)
    assert goes_wrong(a_disk_is_replaced)


def test_a_leader_that_fills_a_lost_member_without_asking_others_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_install = LeaderLog._may_install

    def at_once(self: LeaderLog, progress: Progress) -> bool:
        return self.open or may_install(self, progress)

    monkeypatch.setattr(LeaderLog, "_may_install", at_once)
    assert goes_wrong(a_disk_is_replaced_under_an_old_leader)


def test_a_takeover_that_installs_on_whom_it_did_not_ask_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LeaderLog, "_eligible", lambda self, answer: True)
    assert goes_wrong(a_disk_is_replaced_during_a_takeover)


# ---- by chance


def is_found() -> bool:
    for seed in range(SEEDS):
        try:
            QuorumWorld(seed).run()
        except Violation:
            return True
    return False


def test_a_takeover_that_trusts_a_minority_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(configuration: Configuration, answers: Mapping[MemberId, Sealed]) -> Choice | None:
        best = max(sorted(answers), key=lambda member: answers[member].knows, default=None)
        return None if best is None else Choice(best, answers[best].knows)

    monkeypatch.setattr(leading, "choose", trusting)
    monkeypatch.setattr(LeaderLog, "_eligible", lambda self, answer: True)
    assert is_found()


def test_a_leader_that_acknowledges_what_a_minority_stored_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Configuration, "agreed", lambda self, reached: max(reached.values()))
    assert is_found()


def test_a_member_that_takes_what_an_older_leader_sends_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "check_leader", lambda state, epoch: None)
    assert is_found()

"""The pure core of the quorum round log: majorities, the member, and the leader."""

from __future__ import annotations

import pytest

from loomlog.core.quorum import member as rules
from loomlog.core.quorum.leader import (
    IN_FLIGHT_MAX,
    Append,
    Choice,
    Install,
    LeaderLog,
    Message,
    Read,
    RoundsLost,
    Seal,
    Sealed,
    choose,
)
from loomlog.core.quorum.member import Configuration, Leader, MemberId, MemberState
from loomlog.errors import NotLeader, Unavailable

THREE = Configuration(frozenset({1, 2, 3}))
CHANGING = Configuration(frozenset({2, 3, 4}), frozenset({1, 2, 3}))
FIVE = Leader(5, 2, "two:7400")


# ---- majorities


def test_a_majority_is_more_than_half() -> None:
    assert not THREE.has_majority({1})
    assert THREE.has_majority({1, 3})
    assert not THREE.has_majority({1, 7, 8, 9})
    assert Configuration(frozenset({1})).has_majority({1})


def test_while_members_change_both_configurations_need_a_majority() -> None:
    assert CHANGING.everybody == [1, 2, 3, 4]
    assert CHANGING.has_majority({2, 3})
    assert not CHANGING.has_majority({1, 2})
    assert not CHANGING.has_majority({3, 4})
    assert CHANGING.has_majority({1, 3, 4})


def test_agreed_is_how_far_a_majority_has_come() -> None:
    assert THREE.agreed({1: 9, 2: 7, 3: 4}) == 7
    assert THREE.agreed({1: 9}) == 0
    assert CHANGING.agreed({1: 9, 2: 9, 3: 5, 4: 3}) == 5


# ---- what a member takes


def test_a_member_keeps_its_promise() -> None:
    state = rules.seal(MemberState(), FIVE)
    assert state.promised == FIVE
    assert rules.seal(state, FIVE) == state
    with pytest.raises(NotLeader, match=r"member 2 at two:7400 .* epoch 5") as caught:
        rules.seal(state, Leader(4, 1, "one:7400"))
    assert caught.value.leader == "two:7400"
    with pytest.raises(NotLeader):
        rules.install(state, 4, 1)
    with pytest.raises(NotLeader):
        rules.append(state, 4, 1, 1)


def test_a_leader_that_has_not_sealed_a_member_must_do_so_first() -> None:
    state = rules.seal(MemberState(), FIVE)
    with pytest.raises(Unavailable, match="seal"):
        rules.append(state, 6, 1, 1)
    with pytest.raises(Unavailable, match="seal"):
        rules.install(state, 6, 1)


def test_appends_follow_on_what_the_same_leader_installed() -> None:
    state = rules.seal(MemberState(file_epoch=3, last_index=7), FIVE)
    assert rules.append(state, 5, 8, 1) is state  # what it has is of another epoch
    assert rules.stored_index(state, 5) == 0
    state = rules.install(state, 5, 9)
    assert rules.append(state, 5, 11, 1) is state  # one is missing
    state = rules.append(state, 5, 10, 3)
    assert rules.stored_index(state, 5) == 12


def test_a_lost_member_stays_lost_until_it_is_installed() -> None:
    state = rules.seal(MemberState(lost=True), FIVE)
    assert state.lost
    assert rules.append(state, 5, 1, 1) is state
    assert not rules.install(state, 5, 9).lost


def test_an_installation_takes_nothing_away() -> None:
    state = rules.install(rules.seal(MemberState(), FIVE), 5, 9)
    assert rules.install(state, 5, 8) is state
    assert rules.install(state, 5, 10).last_index == 10


# ---- whose tail to take


def test_the_newest_epoch_counts_before_the_length() -> None:
    assert choose(THREE, {1: Sealed(2, 90)}) is None
    assert choose(THREE, {1: Sealed(2, 90), 3: Sealed(3, 4)}) == Choice(3, (3, 4))
    assert choose(THREE, {1: Sealed(2, 90), 2: Sealed(2, 91)}) == Choice(2, (2, 91))


def test_a_lost_member_has_no_say() -> None:
    assert choose(THREE, {1: Sealed(2, 90), 3: Sealed(0, 0, lost=True)}) is None


# ---- what a leader sends


def drain(log: LeaderLog, member: MemberId) -> list[Message]:
    messages = []
    while (message := log.next_message(member)) is not None:
        messages.append(message)
    return messages


def opened(configuration: Configuration = THREE, file_bytes: int = 4096) -> LeaderLog:
    """Open on members 1 and 2; what was found is one record."""
    log = LeaderLog(5, configuration, file_bytes)
    for member in (1, 2):
        log.connected(member)
        assert drain(log, member) == [Seal()]
        log.sealed(member, Sealed(4, 10))
    assert drain(log, 2) == []
    assert drain(log, 1) == [Read()]
    log.tail_read(1, [b"found"])
    for member in (1, 2):
        assert drain(log, member) == [Install(11, [b"found"])]
    for member in (1, 2):
        assert not log.open
        log.stored(member, 11)
    assert log.open
    return log


def test_records_go_to_all_and_are_done_at_a_majority() -> None:
    log = opened()
    assert [log.append(b"a"), log.append(b"b")] == [12, 13]
    assert drain(log, 1) == [Append(12, [b"a", b"b"])]
    assert log.append(b"c") == 14
    assert drain(log, 1) == [Append(14, [b"c"])]
    assert drain(log, 2) == [Append(12, [b"a", b"b", b"c"])]
    log.stored(1, 13)
    assert log.done_index == 11
    log.stored(2, 14)
    assert log.done_index == 13
    log.stored(1, 14)
    assert log.done_index == 14


def test_a_member_that_comes_later_gets_a_snapshot_and_what_is_under_way() -> None:
    log = opened()
    log.snapshot = lambda: [b"all that is done"]
    log.append(b"under way")
    log.connected(3)
    assert drain(log, 3) == [Seal()]
    log.sealed(3, Sealed(4, 99))  # it has more of an older epoch: that was never acknowledged
    assert drain(log, 3) == [Install(12, [b"all that is done", b"under way"])]
    log.stored(3, 12)
    assert log.done_index == 11  # nobody else has stored it


def test_a_member_that_was_away_for_a_moment_goes_on_where_it_was() -> None:
    log = opened()
    log.append(b"a")
    assert drain(log, 1) == [Append(12, [b"a"])]
    log.disconnected(1)
    log.append(b"b")
    log.connected(1)
    assert drain(log, 1) == [Seal()]
    log.sealed(1, Sealed(5, 12))
    assert drain(log, 1) == [Append(13, [b"b"])]


def test_what_is_under_way_to_a_silent_member_is_bounded() -> None:
    log = opened(file_bytes=640)
    log.snapshot = lambda: [b"snapshot"]
    for number in range(200):
        log.append(b"%d" % number)
        drain(log, 1)
        if (messages := drain(log, 2)) and isinstance(messages[-1], Append | Install):
            for message in messages:
                end = message.last_index if isinstance(message, Install) else log.last_index
                log.stored(2, end)
    assert len(log.members[1].in_flight) == IN_FLIGHT_MAX
    for _ in range(IN_FLIGHT_MAX):
        log.stored(1, 12)
    assert isinstance(drain(log, 1)[0], Install | Append)


def test_a_large_file_is_replaced_while_a_majority_is_left() -> None:
    log = opened(file_bytes=640)
    log.snapshot = lambda: [b"snapshot"]
    log.connected(3)
    drain(log, 3)
    log.sealed(3, Sealed(0, 0))
    drain(log, 3)
    log.stored(3, 11)
    sent: list[type[Message]] = []
    while Install not in sent:
        assert log.append(b"record") < 30
        sent = [type(message) for member in (1, 2, 3) for message in drain(log, member)]
        for member in (1, 2, 3):
            log.stored(member, log.last_index)
    assert sent == [Append, Install, Append, Append]


def test_a_question_is_answered_by_a_majority_after_it_was_asked() -> None:
    log = opened()
    log.append(b"before")
    drain(log, 1)
    drain(log, 2)
    question = log.confirm()
    assert drain(log, 1) == drain(log, 2) == [Append(13, [])]
    log.stored(1, 12)
    log.stored(2, 12)
    assert log.confirmed < question
    log.stored(1, 12)
    assert log.confirmed < question
    log.stored(2, 12)
    assert log.confirmed == question


def test_once_a_majority_has_lost_its_rounds_nothing_is_waited_for() -> None:
    log = LeaderLog(5, THREE, 1000)
    for member in (2, 3):
        log.connected(member)
        assert log.next_message(member) == Seal()
    log.sealed(2, Sealed(0, 0, lost=True))
    with pytest.raises(RoundsLost, match=r"2 and 3 lost their rounds.*`loom metadata rebuild`"):
        log.sealed(3, Sealed(0, 0, lost=True))


def test_who_is_waited_for_is_said() -> None:
    log = LeaderLog(5, THREE, 1000)
    for member in (1, 2):
        log.connected(member)
        assert log.next_message(member) == Seal()
    log.sealed(1, Sealed(4, 90))
    log.sealed(2, Sealed(0, 0, lost=True))
    assert log.why_not_open() == (
        "metadata repository 3 is away, and 2 lost its rounds: start 3; if that is not possible, "
        "stop all and see `loom metadata rebuild`"
    )
    log.members[2].sealed = None
    assert log.why_not_open().startswith("metadata repositories 2 and 3 are away: start 2 and 3;")


def test_a_lost_member_is_filled_when_a_majority_without_it_has_confirmed() -> None:
    log = opened()
    log.connected(3)
    drain(log, 3)
    log.sealed(3, Sealed(0, 0, lost=True))
    assert drain(log, 3) == []
    for member in (1, 2):
        assert drain(log, member) == [Append(12, [])]
        log.stored(member, 11)
    assert drain(log, 3) == [Install(11, [b"found"])]


def test_whose_tail_was_chosen_and_went_away_is_not_waited_for() -> None:
    log = LeaderLog(5, THREE, 4096)
    for member, found in ((1, Sealed(4, 10)), (2, Sealed(4, 9)), (3, Sealed(4, 9))):
        log.connected(member)
        drain(log, member)
        log.sealed(member, found)
    assert drain(log, 1) == [Read()]
    log.disconnected(1)
    assert drain(log, 2) == [Read()]


def test_one_that_knows_more_than_was_chosen_is_installed_only_when_the_log_is_open() -> None:
    log = LeaderLog(5, THREE, 4096)
    for member in (1, 2):
        log.connected(member)
        drain(log, member)
        log.sealed(member, Sealed(4, 10))
    drain(log, 1)
    log.tail_read(1, [])
    log.connected(3)
    drain(log, 3)
    log.sealed(3, Sealed(4, 12))
    assert drain(log, 3) == []
    for member in (1, 2):
        drain(log, member)
        log.stored(member, 11)
    assert drain(log, 3) == [Install(11, [])]


def test_an_epoch_whose_members_came_and_went_is_given_up() -> None:
    log = LeaderLog(5, THREE, 4096)
    for member in (1, 2):
        log.connected(member)
        drain(log, member)
        log.sealed(member, Sealed(4, 10))
    drain(log, 1)
    log.tail_read(1, [])
    log.disconnected(2)
    log.connected(3)
    drain(log, 3)
    with pytest.raises(Unavailable, match="new epoch"):
        log.sealed(3, Sealed(4, 12))


def test_records_have_the_newest_format_that_every_member_reads() -> None:
    """A member may lead next: it must be able to read what it stores."""
    log = LeaderLog(5, THREE, 4096)
    for member in (1, 2):
        log.connected(member)
        drain(log, member)
        log.sealed(member, Sealed(4, 10, record_format=2))
    assert log.record_format == 0, "nothing is known about the third"
    for read, common in ((1, 1), (2, 2), (0, 0)):  # it is started again with another release
        log.connected(3)
        drain(log, 3)
        log.sealed(3, Sealed(4, 10, record_format=read))
        assert log.record_format == common
        log.disconnected(3)
        assert log.record_format == common

"""Upkeep decides the next step of a chained loglet: who leaves, joins, or is waited for."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from loomlog.core.chained.chain import Replica, Unheard, first_projection
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.upkeep import (
    ChainsStanding,
    Join,
    NewEpoch,
    Wait,
    condition,
    decide,
    describe_losses,
    is_needless,
    is_trimmed,
    may_become_short,
    to_compare,
    unreadable,
    why_appends_wait,
)
from loomlog.types import LogId, NodeId


class Nodes:
    """Nodes 1 to 5, all well unless the test says otherwise."""

    def __init__(
        self,
        *,
        silent: AbstractSet[NodeId] = frozenset(),
        late: AbstractSet[NodeId] = frozenset(),
        leaving: AbstractSet[NodeId] = frozenset(),
        awaited: AbstractSet[NodeId] = frozenset(),
        spares: dict[int, NodeId] | None = None,
        fresh: NodeId | None = None,
        lives: dict[NodeId, int] | None = None,
    ) -> None:
        self._silent = silent | awaited
        self._late = late
        self._leaving = leaving
        self._awaited = awaited
        self._spares = spares or {}
        self._fresh = fresh
        self._lives = lives or {}

    def reachable(self, node: NodeId) -> bool:
        return node not in self._silent and node not in self._late

    def silent(self, loglet: LogId, node: NodeId) -> bool:
        return node in self._silent

    def replaced(self, node: NodeId) -> bool:
        return node not in self._awaited

    def leaving(self, node: NodeId) -> bool:
        return node in self._leaving

    def life(self, node: NodeId) -> int:
        return self._lives.get(node, 0)

    def spare(
        self, record: ChainedRecord, chain: int, preferred: NodeId | None = None
    ) -> NodeId | None:
        return preferred or self._spares.get(chain)

    def fresh(self, record: ChainedRecord) -> NodeId | None:
        return self._fresh


def loglet(
    *chains: list[NodeId],
    joining: tuple[Replica, ...] = (),
    left: tuple[Replica, ...] = (),
    given_up: tuple[Replica, ...] = (),
    least: int = 1,
    **changes: object,
) -> ChainsStanding:
    projection = first_projection(1, list(chains), birth=1, sequencer=1, least=least)
    record = ChainedRecord(
        1, 1, 1, projection, made=True, joining=joining, dropping=left, given_up=given_up
    )
    return ChainsStanding(record, 3)._replace(**changes)  # type: ignore[arg-type]


def test_nothing_is_to_be_done_while_all_is_well() -> None:
    assert decide(loglet([1, 2, 3], [2, 3, 4]), Nodes(spares={0: 5})) == Wait()


def test_who_is_silent_leaves_at_once() -> None:
    assert decide(loglet([1, 2, 3]), Nodes(silent={2})) == NewEpoch("node 2 is silent")


def test_who_lost_its_blocks_leaves() -> None:
    lost = loglet([1, 2, 3], unfit=frozenset([Replica(2, 1, 0, 1)]))
    assert decide(lost, Nodes()) == NewEpoch("node 2 is there without its blocks", unfit=lost.unfit)


def test_who_crashed_since_the_epoch_began_needs_another_one() -> None:
    """However often it has stopped and was started since."""
    lives = {1: 1, 2: 4, 3: 2}
    begun = loglet([1, 2, 3])
    begun = begun._replace(
        record=replace(begun.record, projection=begun.projection._replace(lives=(*lives.items(),)))
    )
    assert decide(begun, Nodes(lives=lives)) == Wait()
    crashed = Nodes(lives={**lives, 2: 5})
    reason = "node 2 crashed, and may have forgotten blocks"
    assert decide(begun, crashed) == NewEpoch(reason)
    away = Nodes(lives={**lives, 2: 5}, late={2})
    assert decide(begun, away) == Wait(), "it may be back in a moment"
    assert decide(loglet([1, 2, 3]), crashed) == Wait(), "an older version did not keep lives"
    assert decide(begun, Nodes()) == Wait(), "nor count them"


def test_nobody_is_left_behind_who_is_only_late() -> None:
    waiting = Wait("node 3 is expected back in a moment")
    assert decide(loglet([1, 2, 3]), Nodes(silent={2}, late={3})) == waiting
    assert decide(loglet([1, 2, 3], needs_epoch="takeover"), Nodes(late={3})) == waiting
    assert decide(loglet([1, 2, 3]), Nodes(late={3})) == Wait()


def test_a_chain_without_anybody_waits() -> None:
    waiting = Wait("nobody has all of chain 1: start node 3 or 4")
    assert decide(loglet([1, 2], [3, 4]), Nodes(silent={3, 4})) == waiting
    unfit = frozenset([Replica(3, 1, 1, 1), Replica(4, 1, 1, 1)])
    there = decide(loglet([1, 2], [3, 4], unfit=unfit), Nodes())
    assert isinstance(there, Wait)
    assert "what node 3 and node 4 had of it is lost" in there.reason
    assert decide(loglet([1, 2], [3, 4], unfit=unfit), Nodes(silent={4})) == Wait(
        "nobody has all of chain 1: start node 4"
    )


def test_a_short_chain_that_is_missing_begins_again_with_what_left_it() -> None:
    """The replicas that left when the chain became too short have every acknowledged block."""
    here, left = Replica(3, 1, 0, 1), (Replica(1, 1, 0, 1), Replica(2, 1, 0, 1))
    gone = frozenset([here])
    short = loglet([3], left=left, least=2, unfit=gone, missing=gone)
    why = "node 3 is there without its blocks"
    nodes = Nodes(fresh=1)
    assert decide(short, nodes) == NewEpoch(
        why, unfit=gone, fresh=((0, 1),), older=left[::-1], short=True
    )
    away = decide(short, Nodes(fresh=1, silent={2}))
    assert away == Wait("chain 0 is lost but for what node 2 may have left: start it")
    waiting = (
        loglet([3], left=left, least=1, unfit=gone, missing=gone),
        loglet([3], least=2, unfit=gone, missing=gone),
        loglet([3], left=left, least=2, unfit=gone),
    )
    for chains in waiting:
        found = decide(chains, nodes)
        assert isinstance(found, Wait)
        assert "bring the volumes back" in found.reason


def test_a_new_epoch_comes_before_all_else() -> None:
    lacking = loglet([1, 2], needs_epoch="takeover")
    assert decide(lacking, Nodes(spares={0: 5})) == NewEpoch("takeover", short=True)


def test_a_chain_becomes_too_short_only_if_it_is_known_who_is_away() -> None:
    """A failed attempt is enough, too: a silent node may be back, or about to stop."""
    three = loglet([1, 2, 3], least=2)
    assert decide(three, Nodes(silent={1})) == NewEpoch("node 1 is silent")
    assert decide(three, Nodes(silent={1, 2})) == NewEpoch("node 1 is silent", short=True)
    unfit = frozenset([Replica(2, 1, 0, 1)])
    one = decide(three._replace(unfit=unfit), Nodes(silent={1}))
    assert one == NewEpoch("node 1 is silent", unfit=unfit, short=True)
    again = decide(three._replace(needs_epoch="unfinished"), Nodes(silent={1}))
    assert again == NewEpoch("unfinished", short=True)


def test_a_spare_joins_the_chain_that_lacks_a_replica() -> None:
    lacking = loglet([1, 2, 3], [1, 2])
    assert decide(lacking, Nodes(spares={0: 5, 1: 4})) == Join(1, 4)
    assert decide(lacking, Nodes()) == Wait("there is no spare node")


def test_one_that_is_being_filled_is_enough() -> None:
    filled = loglet([1, 2], joining=(Replica(4, 1, 0, 2),))
    assert decide(filled, Nodes(spares={0: 5})) == Wait()


def test_who_left_may_come_back_before_it_is_replaced() -> None:
    left = loglet([1, 2], left=(Replica(3, 1, 0, 1),))
    waiting = Wait("node 3 may come back before it is replaced")
    assert decide(left, Nodes(awaited={3}, spares={0: 5})) == waiting
    assert decide(left, Nodes(silent={3}, spares={0: 5})) == Join(0, 5)


def test_nobody_is_waited_for_while_appends_wait() -> None:
    gone = (Replica(2, 1, 0, 1), Replica(3, 1, 0, 1))
    nodes = Nodes(awaited={2, 3}, spares={0: 5})
    assert decide(loglet([1], left=gone, least=2), nodes) == Join(0, 5)
    filled = loglet([1], left=gone, least=2, joining=(Replica(4, 1, 0, 2),))
    assert decide(filled, nodes) == Wait("node 2 may come back before it is replaced")


def test_appends_wait_for_nodes_that_are_named() -> None:
    two, three = Replica(2, 1, 0, 1), Replica(3, 1, 0, 1)
    short = "appends wait: chain 0 has 1 replica and needs"
    away = Nodes(silent={2, 3})
    either = loglet([1], left=(two, three), least=2).record
    assert why_appends_wait(either, away) == f"{short} 2: start node 2 or node 3"
    assert why_appends_wait(either, Nodes(silent={3})) == f"{short} 2: start node 3"
    both = loglet([1], left=(two, three), least=3).record
    assert why_appends_wait(both, away) == f"{short} 3: start node 2 and node 3"
    new = loglet([1], least=2).record
    assert why_appends_wait(new, Nodes()) == f"{short} 2: start another node"
    filled = loglet([1], joining=(Replica(4, 1, 0, 2),), least=2).record
    assert why_appends_wait(filled, Nodes()) == f"{short} 2"


def test_nothing_waits_with_enough_replicas_or_at_the_end_of_a_segment() -> None:
    assert why_appends_wait(loglet([1, 2], [1, 2, 3], least=2).record, Nodes()) == ""
    record = loglet([1], least=2).record
    closed = replace(record, projection=record.projection._replace(closed=True))
    assert why_appends_wait(closed, Nodes()) == ""


def test_if_it_is_not_to_be_emptied_any_more_the_newest_leaves() -> None:
    joined = loglet([1, 2, 3, 4], [1, 2, 3, 5])
    chains = tuple((*chain[:3], chain[3]._replace(birth=2)) for chain in joined.projection.chains)
    record = replace(joined.record, projection=joined.projection._replace(chains=chains))
    joined = joined._replace(record=record)
    assert decide(joined, Nodes()) == NewEpoch("node 5 is one more than needed", frozenset([5]))
    assert decide(loglet([1, 2, 3, 4], [1, 2, 3]), Nodes()) == NewEpoch(
        "node 4 is one more than needed", frozenset([4])
    )
    assert decide(loglet([1, 2, 3, 4], [4, 1, 2], [3, 2, 1]), Nodes()) == Wait()


def test_a_node_leaves_when_others_took_its_place_in_all_its_chains() -> None:
    emptied = Nodes(leaving={1}, spares={0: 5, 1: 5})
    assert decide(loglet([1, 2, 3], [1, 3, 4]), emptied) == Join(0, 5)
    assert decide(loglet([1, 2, 3, 5], [1, 3, 4]), emptied) == Join(1, 5)
    assert decide(loglet([1, 2, 3, 5], [1, 3, 4, 5]), emptied) == NewEpoch(
        "node 1 is emptied", frozenset([1])
    )


def test_a_replica_that_is_moved_leaves_when_another_took_its_place() -> None:
    def moving(*chains: list[NodeId], target: NodeId = 5) -> ChainsStanding:
        found = loglet(*chains)
        return found._replace(record=found.record.move(Replica(1, 1, 0, 1), target))

    assert decide(moving([1, 2, 3], [1, 3, 4]), Nodes()) == Join(0, 5)
    assert decide(moving([1, 2, 3], target=0), Nodes(spares={0: 4})) == Join(0, 4)
    assert decide(moving([1, 2, 3], target=0), Nodes()) == Wait("there is no spare node")
    moved = moving([1, 2, 3, 5], [1, 3, 4])
    action = decide(moved, Nodes())
    assert action == NewEpoch(
        "others took the place of 1 replicas", moved=frozenset([Replica(1, 1, 0, 1)])
    )
    silent = decide(moving([1, 2, 3]), Nodes(silent={2}))
    assert silent == NewEpoch("node 2 is silent"), "what is broken comes first"


def test_a_chain_of_which_all_replicas_are_lost_begins_anew() -> None:
    lost = frozenset([Replica(3, 1, 1, 1), Replica(4, 1, 1, 1)])
    half = loglet([1, 2], [3, 4], unfit=lost, lost=lost)
    reason = "node 3 is there without its blocks"
    assert decide(half, Nodes(fresh=3)) == NewEpoch(reason, unfit=lost, fresh=((1, 3),), short=True)
    assert decide(half, Nodes()) == Wait(
        "chain 1 is lost, and there is no node where it can begin again"
    )


def test_a_chain_waits_for_the_one_node_that_may_have_it() -> None:
    lost = frozenset([Replica(3, 1, 1, 1)])
    away = loglet([1, 2], [3, 4], unfit=lost, lost=lost)
    waiting = Wait("nobody has all of chain 1: start node 4")
    assert decide(away, Nodes(silent={4}, fresh=3)) == waiting
    late = Wait("node 4 is expected back in a moment")
    assert decide(away, Nodes(late={4}, fresh=3)) == late


def test_a_node_that_was_removed_is_not_waited_for() -> None:
    lost = frozenset([Replica(1, 1, 0, 1), Replica(2, 1, 0, 1)])
    removed = decide(loglet([1, 2], unfit=lost, lost=lost), Nodes(silent={2}, fresh=3))
    reason = "node 1 is there without its blocks"
    gone = (Replica(2, 1, 0, 1),)
    wanted = NewEpoch(reason, frozenset([2]), lost, ((0, 3),), short=True, given_up=gone)
    assert removed == wanted


def test_a_chain_begins_again_without_nodes_that_were_given_up() -> None:
    """The blocks of those nodes may be all that is left of it: they stay if the nodes return."""
    first, second, left = Replica(1, 1, 0, 1), Replica(2, 1, 0, 1), old(4)
    chains = loglet([1, 2], left=(left,), unfit=frozenset([first]), lost=frozenset([first]))
    away = Nodes(silent={1, 2, 4}, fresh=3)
    assert decide(chains, away) == Wait("nobody has all of chain 0: start node 1 or 2")
    both = frozenset([first, second])
    waiting = decide(chains._replace(unfit=both, lost=both), away)
    assert waiting == Wait("chain 0 is lost but for what node 4 may have left: start it")
    wanted = decide(chains._replace(unfit=both, lost=both | {left}), away)
    assert isinstance(wanted, NewEpoch)
    assert (wanted.leaving, wanted.fresh) == (frozenset([1, 2, 4]), ((0, 3),))
    assert wanted.given_up == (first, second, left)
    assert wanted.older == (left,)


def old(node: NodeId, birth: int = 1) -> Replica:
    return Replica(node, 1, 0, birth)


def test_a_lost_chain_gets_what_replicas_that_left_and_newcomers_have() -> None:
    lost = frozenset([old(1)])
    chains = loglet(
        [1],
        left=(old(2), old(3)),
        given_up=(old(4, 7),),
        joining=(old(2, 8),),
        unfit=lost,
        lost=lost,
    )
    begun = NewEpoch(
        "node 1 is there without its blocks",
        unfit=lost,
        fresh=((0, 1),),
        older=(old(2, 8), old(4, 7), old(3), old(2)),
        short=True,
    )
    assert decide(chains, Nodes(fresh=1)) == begun


def test_a_lost_chain_waits_for_nodes_that_may_have_older_replicas() -> None:
    lost = frozenset([old(1)])
    chains = loglet([1], unfit=lost, lost=lost, left=(old(2),))
    words = "chain 0 is lost but for what node 2 may have left: start it"
    assert decide(chains, Nodes(silent={2}, fresh=1)) == Wait(words)
    removed = chains._replace(lost=lost | {old(2)})
    assert isinstance(decide(removed, Nodes(silent={2}, fresh=1)), NewEpoch)


def test_a_chain_of_which_all_replicas_are_damaged_begins_again() -> None:
    damaged = frozenset([old(1), old(2)])
    chains = loglet([1, 2], unfit=damaged, damaged=damaged)
    wanted = decide(chains, Nodes(fresh=3))
    assert isinstance(wanted, NewEpoch)
    assert (wanted.fresh, wanted.damaged) == (((0, 3),), damaged)
    assert decide(chains, Nodes(silent={2}, fresh=3)) == Wait(
        "nobody has all of chain 0: start node 2"
    )


def test_a_replica_that_left_stays_until_its_chain_has_all_its_replicas() -> None:
    left = old(4)
    assert not is_needless(loglet([1, 2], left=(left,)), left, Nodes())
    assert is_needless(loglet([1, 2, 3], left=(left,)), left, Nodes())
    unfit = frozenset([old(3)])
    assert not is_needless(loglet([1, 2, 3], left=(left,), unfit=unfit), left, Nodes())


def test_a_replica_with_damaged_blocks_stays_until_the_loss_is_trimmed() -> None:
    left, sound = old(4), old(5)
    chains = loglet([1, 2, 3], left=(left, sound))
    record = chains.record.note_damaged(left, left)
    assert record.damaged == (left,)
    assert is_needless(chains._replace(record=record), left, Nodes()), "nothing was lost"
    record = replace(record, projection=chains.projection._replace(lost=(7,)))
    chains = chains._replace(record=record)
    assert not is_needless(chains, left, Nodes())
    assert is_needless(chains, sound, Nodes()), "what it has was copied"
    assert is_needless(chains, left, Nodes(leaving={4}))
    assert is_needless(chains._replace(lost=frozenset([left])), left, Nodes())
    for trimmed, gone in ((5, False), (6, True)):
        trimmed_chains = chains._replace(record=replace(record, trimmed=trimmed))
        assert is_needless(trimmed_chains, left, Nodes()) is gone
    assert record.forget(left).damaged == ()


def test_an_unheard_replica_stays_until_it_was_compared() -> None:
    left = old(4)
    chains = loglet([1, 2, 3], left=(left,))
    unheard = Unheard(left, 5, 9)
    record = replace(chains.record, unheard=(unheard,))
    chains = chains._replace(record=record)
    for nodes in (Nodes(), Nodes(leaving={4})):
        assert not is_needless(chains, left, nodes)
    assert is_needless(chains._replace(record=record.hear(left)), left, Nodes())
    assert to_compare(record, Nodes()) == [unheard]
    assert to_compare(record, Nodes(silent={4})) == []
    assert not is_trimmed(replace(record, trimmed=7), unheard)
    assert is_trimmed(replace(record, trimmed=8), unheard)


def test_a_replica_that_has_what_others_lost_stays_until_that_is_trimmed() -> None:
    """Junk in its place may be on another chain."""
    left = old(4)
    chains = loglet([1, 2, 3], [1, 2, 3], left=(left,))
    lost = chains.projection._replace(lost=(0, 7), lost_from=(0, 5))
    record = replace(chains.record, projection=lost, witnesses=(left,))
    chains = chains._replace(record=record)
    assert not is_needless(chains, left, Nodes())
    assert is_needless(chains, left, Nodes(leaving={4}))
    assert is_needless(chains._replace(record=replace(record, trimmed=6)), left, Nodes())


def test_a_newcomer_that_did_not_join_stays_while_nobody_else_has_its_blocks() -> None:
    newcomer = old(4, 7)
    chains = loglet([1, 2], given_up=(newcomer,))
    assert is_needless(chains, newcomer, Nodes(silent={1}))
    assert not is_needless(chains, newcomer, Nodes(silent={1, 2}))
    assert not is_needless(chains._replace(unfit=frozenset([old(1), old(2)])), newcomer, Nodes())


def test_a_node_that_left_twice_is_awaited_once() -> None:
    chains = loglet([1], left=(old(2),), given_up=(old(2, 7),))
    assert decide(chains, Nodes(awaited={2}, spares={0: 5})) == Join(0, 5)


def test_what_chains_lost_is_named_and_nothing_else() -> None:
    two = first_projection(1, [[1], [2]], birth=1, sequencer=1)
    assert describe_losses(two, 0) == []
    lost = two._replace(lost=(9, 12), lost_from=(8, 3))
    texts = ["chain 0 lost position 8", "chain 1 lost entries from position 3 to 11"]
    assert describe_losses(lost, 0) == texts
    assert describe_losses(lost, 5) == [texts[0], "chain 1 lost entries from position 6 to 11"]
    assert describe_losses(lost, 8) == ["chain 1 lost entries from position 9 to 11"]
    assert describe_losses(lost, 11) == []
    [unknown] = describe_losses(two._replace(lost=(1 << 40, 0), lost_from=(7, 0)), 0)
    assert unknown.startswith("chain 0 may have lost entries from position 7 on: nobody knows")


def test_a_chain_that_nobody_has_is_not_said_to_run() -> None:
    unfit = frozenset([Replica(1, 1, 0, 1), Replica(2, 1, 0, 1)])
    chains, wait = loglet([1, 2], unfit=unfit), Wait("nobody has all of chain 0")

    def text(chains: ChainsStanding, nodes: Nodes) -> str:
        runs, projection = not unreadable(chains, nodes), chains.projection
        return condition(projection, 3, "", wait, {}, "", 0, {}, runs=runs)

    assert text(chains, Nodes()) == "nobody has all of chain 0"
    assert text(loglet([1, 2]), Nodes(late={1, 2})) == "nobody has all of chain 0"
    assert text(loglet([1, 2]), Nodes(late={1})).startswith("runs with 2 of 3 replicas")


def test_a_chain_may_become_short_only_if_it_is_known_who_is_away() -> None:
    chains = loglet([1, 2, 3], least=2)
    assert not may_become_short(chains, Nodes())
    assert not may_become_short(chains, Nodes(late={1}))
    assert may_become_short(chains, Nodes(silent={1}, late={2}))
    unfit = frozenset([Replica(1, 1, 0, 1), Replica(2, 1, 0, 1)])
    assert may_become_short(chains._replace(unfit=unfit), Nodes())
    assert may_become_short(chains._replace(needs_epoch="an attempt failed"), Nodes())

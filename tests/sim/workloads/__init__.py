"""Workloads that run under faults. Each builds its hosts, runs, and returns a History.

The first one is the default.
"""

from collections.abc import Callable, Mapping

from loomlog.testing.history import History
from loomlog.testing.sim import FaultPlan, Simulation
from workloads.clocks import clocks, clocks_chained, clocks_copyset
from workloads.cluster import cluster
from workloads.decisions import decisions
from workloads.forgotten import absent, absent_chained, in_turn, reported
from workloads.given_up import given_up, given_up_chained, given_up_copyset
from workloads.impostors import impostors
from workloads.losses import forgetful, forgetful_killed, losses
from workloads.lost_in_turn import (
    lost_in_turn,
    lost_in_turn_chained,
    lost_in_turn_copyset,
)
from workloads.protocols import (
    chosen,
    conditional,
    copysets,
    mortals,
    pipelines,
    protocols,
    switches,
)
from workloads.publications import (
    publishing,
    publishing_chained,
    publishing_clocks,
    publishing_copyset,
)
from workloads.rebuilds import rebuilding
from workloads.rollbacks import rollbacks
from workloads.rounds import rounds
from workloads.statuses import statuses, statuses_operated
from workloads.takeovers import takeovers
from workloads.toy import toy
from workloads.transactions import transactions

Workload = Callable[[Simulation, FaultPlan], History]
"""Builds hosts in the simulation, runs it under the faults, returns what was done and seen.
It raises what it finds wrong by itself; the history is checked by the caller."""

WORKLOADS: Mapping[str, Workload] = {
    "cluster": cluster,
    "clocks": clocks,
    "clocks-chained": clocks_chained,
    "clocks-copyset": clocks_copyset,
    "absent": absent,
    "absent-chained": absent_chained,
    "chosen": chosen,
    "conditional": conditional,
    "copysets": copysets,
    "decisions": decisions,
    "forgetful": forgetful,
    "forgetful-killed": forgetful_killed,
    "given-up": given_up,
    "given-up-chained": given_up_chained,
    "given-up-copyset": given_up_copyset,
    "impostors": impostors,
    "in-turn": in_turn,
    "losses": losses,
    "lost-in-turn": lost_in_turn,
    "lost-in-turn-chained": lost_in_turn_chained,
    "lost-in-turn-copyset": lost_in_turn_copyset,
    "mortals": mortals,
    "pipelines": pipelines,
    "protocols": protocols,
    "publishing": publishing,
    "publishing-chained": publishing_chained,
    "publishing-clocks": publishing_clocks,
    "publishing-copyset": publishing_copyset,
    "rebuilding": rebuilding,
    "reported": reported,
    "rollbacks": rollbacks,
    "rounds": rounds,
    "statuses": statuses,
    "statuses-operated": statuses_operated,
    "switches": switches,
    "takeovers": takeovers,
    "toy": toy,
    "transactions": transactions,
}

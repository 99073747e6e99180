"""Workloads that run under faults. Each builds its hosts, runs, and returns a History.

The first one is the default.
"""

from collections.abc import Mapping

from loomlog.testing.sim.run import Workload
from loomlog.testing.sim.workloads.clocks import clocks, clocks_chained, clocks_copyset
from loomlog.testing.sim.workloads.cluster import cluster
from loomlog.testing.sim.workloads.losses import losses
from loomlog.testing.sim.workloads.protocols import copysets, mortals, protocols, switches
from loomlog.testing.sim.workloads.publications import (
    publishing,
    publishing_chained,
    publishing_clocks,
    publishing_copyset,
)
from loomlog.testing.sim.workloads.rollbacks import rollbacks
from loomlog.testing.sim.workloads.rounds import rounds
from loomlog.testing.sim.workloads.takeovers import takeovers
from loomlog.testing.sim.workloads.toy import toy

WORKLOADS: Mapping[str, Workload] = {
    "cluster": cluster,
    "clocks": clocks,
    "clocks-chained": clocks_chained,
    "clocks-copyset": clocks_copyset,
    "copysets": copysets,
    "losses": losses,
    "mortals": mortals,
    "protocols": protocols,
    "publishing": publishing,
    "publishing-chained": publishing_chained,
    "publishing-clocks": publishing_clocks,
    "publishing-copyset": publishing_copyset,
    "rollbacks": rollbacks,
    "rounds": rounds,
    "switches": switches,
    "takeovers": takeovers,
    "toy": toy,
}

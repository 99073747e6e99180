"""What can run under faults. A workload builds its hosts, runs, and returns a History.

The first one is what runs if nothing else is asked for.
"""

from collections.abc import Mapping

from loomlog.testing.sim.run import Workload
from loomlog.testing.sim.workloads.cluster import cluster
from loomlog.testing.sim.workloads.protocols import copysets, mortals, protocols
from loomlog.testing.sim.workloads.publishing import (
    publishing,
    publishing_chained,
    publishing_copyset,
)
from loomlog.testing.sim.workloads.rounds import rounds
from loomlog.testing.sim.workloads.switches import switches
from loomlog.testing.sim.workloads.takeovers import takeovers
from loomlog.testing.sim.workloads.toy import toy

WORKLOADS: Mapping[str, Workload] = {
    "cluster": cluster,
    "copysets": copysets,
    "mortals": mortals,
    "protocols": protocols,
    "publishing": publishing,
    "publishing-chained": publishing_chained,
    "publishing-copyset": publishing_copyset,
    "rounds": rounds,
    "switches": switches,
    "takeovers": takeovers,
    "toy": toy,
}

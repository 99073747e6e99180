"""What can run under faults. A workload builds its hosts, runs, and returns a History."""

from collections.abc import Mapping

from loomlog.testing.sim.run import Workload
from loomlog.testing.sim.workloads.toy import toy

WORKLOADS: Mapping[str, Workload] = {"toy": toy}

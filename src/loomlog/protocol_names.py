"""The names of the replication protocols, as they are written to records and shown to users.

Only a protocol's own packages and the registries compare or look up these names."""

from __future__ import annotations

from typing import Final

ORDERED: Final = "ordered"
CHAINED: Final = "chained"
COPYSET: Final = "copyset"

DEFAULT: Final = ORDERED  # of a log that is made without naming one
DECISIONS: Final = CHAINED  # of the log of decisions: positions are reserved, and written once
STAGING: Final = ORDERED  # of staging logs: it has the bandwidth, and its tail never falls

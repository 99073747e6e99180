"""The names of the replication protocols, as stored in records and shown to users.

Only a protocol's own packages and the registries may compare or look up these names."""

from __future__ import annotations

from typing import Final

ORDERED: Final = "ordered"
CHAINED: Final = "chained"
COPYSET: Final = "copyset"

DEFAULT: Final = ORDERED  # of new logs for which no protocol is given
DECISIONS: Final = CHAINED  # of the log of decisions: it reserves positions
STAGING: Final = ORDERED  # of staging logs: has the highest bandwidth, and its tail never falls

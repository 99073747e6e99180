"""How much it means that a node does not have a record. Pure words."""

from __future__ import annotations

from enum import StrEnum


class Authority(StrEnum):
    FULL = "fully authoritative"  # it has all that it was given
    UNDERREPLICATED = "underreplicated"  # it may miss some: what it has counts, what it lacks not
    EMPTY = "authoritatively empty"  # what it had is on others by now, as often as it should be
    UNAVAILABLE = "unavailable"  # away for long, or for ever, perhaps with the only copy of
    # something: who reads waits for it, who writes or recovers does not

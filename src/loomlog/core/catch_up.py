"""Decide how to update metadata that is older than what the storage nodes know. Pure.

The nodes do not know everything. Decisions here are safe with what they do know: numbers above all
that were ever used, and replicas that are certain to be whole. If anything cannot be decided that
way, the update is refused. Nothing is ever removed from a node because of it.
"""

from __future__ import annotations

from typing import NamedTuple


class Unknowable(NamedTuple):
    """The reason why the metadata cannot be brought up to date."""

    why: str

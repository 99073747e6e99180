"""A pipeline's progress in its register: one compare-and-swap per transition.

A change is a pure function of the progress. Where somebody else came between (an operator who
pauses it, say), it is applied again to what is there now, or refuses it. A runner's changes are
fenced by its lease as well: one that was replaced changes nothing more.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from loomlog.client.registers import Versioned
from loomlog.errors import Conflict, NotFound
from loomlog.spark.pipelines import codec, units
from loomlog.spark.pipelines.units import Progress

if TYPE_CHECKING:
    from loomlog.client.blocking import BlockingCluster
    from loomlog.client.blocking_registers import BlockingLease

PREFIX: Final = "pipeline/"
_ATTEMPTS: Final = 100  # of others who come between, in a row

Change = Callable[[Progress], Progress]


def register_name(pipeline: str) -> str:
    """Of its progress; its lease has the same name."""
    return PREFIX + pipeline


class ProgressStore:
    """The progress of one pipeline."""

    def __init__(self, cluster: BlockingCluster, pipeline: str) -> None:
        self.pipeline = pipeline
        self._register = cluster.register(register_name(pipeline))
        self._lease: BlockingLease | None = None
        self._known: Versioned | None = None  # what was there when this one looked last

    def fence(self, lease: BlockingLease) -> None:
        """From now on changes are those of this lease's holder."""
        self._lease = lease

    def find(self) -> Progress | None:
        self._known = self._register.get()
        return None if self._known is None else codec.decode(self._known.value)

    def load(self) -> Progress:
        found = self.find()
        if found is None:
            raise self._missing()
        return found

    def create(self, progress: Progress) -> Progress:
        """With a life of its own, unless it is there already: then what is there."""
        progress = replace(progress, life=secrets.token_hex(4))
        try:
            self._swap(progress, 0)
        except Conflict:
            return self.load()
        return progress

    def change(self, change: Change) -> Progress:
        """The progress after the change; raises what the change raises, and Fenced."""
        for _ in range(_ATTEMPTS):
            known = self._known or self._register.get()
            if known is None:
                raise self._missing()
            after = change(self._taken_over(codec.decode(known.value)))
            try:
                self._swap(after, known.version)
            except Conflict:
                continue
            return after
        raise Conflict(f"the pipeline {self.pipeline!r} is changed by too many others: try again")

    def _missing(self) -> NotFound:
        return NotFound(
            f"there is no pipeline {self.pipeline!r}: `loom pipeline list` shows those that ran"
        )

    def _taken_over(self, progress: Progress) -> Progress:
        return progress if self._lease is None else units.taken_over(progress, self._lease.epoch)

    def _swap(self, progress: Progress, expected: int) -> None:
        self._known = None  # unless it goes well
        value = codec.encode(progress)
        version = self._register.swap(value, expected, lease=self._lease)
        self._known = Versioned(value, version)

"""A pipeline's progress in its register: one compare-and-swap per transition.

A change is a pure function of the progress. After a concurrent change, such as a pause by an
operator, it is applied again to the new progress, or refuses it. A runner's changes are also fenced
by its lease: after another runner has replaced it, it can change nothing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from loomlog.client.kv.registers import Versioned
from loomlog.errors import Conflict, Corrupt, NotFound, VersionMismatch
from loomlog.spark.pipelines import units
from loomlog.spark.pipelines.units import Counters, Progress, Unit, UnitRange, UnitState
from loomlog.types import Glsn

if TYPE_CHECKING:
    from loomlog.client.blocking import BlockingCluster
    from loomlog.client.blocking.kv import BlockingLease


PREFIX: Final = "pipeline/"
FORMAT: Final = 1
_ATTEMPTS: Final = 100  # consecutive conflicts with other changes

Change = Callable[[Progress], Progress]


def register_name(pipeline: str) -> str:
    """Return the name of a pipeline's register, which is also that of its lease."""
    return PREFIX + pipeline


class ProgressStore:
    """The progress of one pipeline."""

    def __init__(self, cluster: BlockingCluster, pipeline: str) -> None:
        self.pipeline = pipeline
        self._register = cluster.register(register_name(pipeline))
        self._lease: BlockingLease | None = None
        self._known: Versioned | None = None  # what was there when this one looked last

    def fence(self, lease: BlockingLease) -> None:
        """Make all later changes as the holder of this lease."""
        self._lease = lease

    def find(self) -> Progress | None:
        self._known = self._register.get()
        return None if self._known is None else decode(self._known.value)

    def load(self) -> Progress:
        found = self.find()
        if found is None:
            raise self._missing()
        return found

    def create(self, progress: Progress) -> Progress:
        """Create the progress, or return what is there."""
        progress = replace(progress, life=_new_life())
        try:
            self._swap(progress, 0)
        except Conflict:
            return self.load()
        return progress

    def change(self, change: Change) -> Progress:
        """Return the progress after the change; raise what the change raises, or Fenced."""
        for _ in range(_ATTEMPTS):
            known = self._known or self._register.get()
            if known is None:
                raise self._missing()
            after = change(self._taken_over(decode(known.value)))
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
        value = encode(progress)
        version = self._register.swap(value, expected, lease=self._lease)
        self._known = Versioned(value, version)


# ---- as bytes


def encode(progress: Progress) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(progress)}, separators=(",", ":")).encode()


def decode(value: bytes) -> Progress:
    try:
        fields = json.loads(value)
        if fields.pop("format") != FORMAT:
            raise VersionMismatch("the pipeline's progress is of a newer loomlog: update this one")
        unit = fields.pop("unit")
        pieces = tuple(UnitRange(*piece) for piece in fields.pop("pieces"))
        counters = Counters(**fields.pop("counters"))
        return Progress(**fields, unit=unit and _unit(unit), pieces=pieces, counters=counters)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Corrupt(f"the register does not hold a pipeline's progress: {error}") from None


def _unit(fields: dict[str, Any]) -> Unit:
    ranges = {log: UnitRange(*found) for log, found in fields.pop("ranges").items()}
    return Unit(**fields | {"ranges": ranges, "state": UnitState(fields["state"])})


# ---- what operators change; runners read the progress before they begin something new


def pause(cluster: BlockingCluster, name: str, *, wanted: bool) -> Progress:
    """Pause or resume a pipeline: no unit starts while it is paused."""
    return ProgressStore(cluster, name).change(lambda now: units.paused(now, wanted))


def reset(cluster: BlockingCluster, name: str, to: Glsn | str, *, same_output: bool) -> Progress:
    """Restart at a position of its sources, "earliest" or "latest"."""
    store = ProgressStore(cluster, name)
    behind = positions_before(cluster, store.load().positions, to)
    epoch, life = last_epoch(cluster, name), _new_life()
    return store.change(
        lambda now: units.reset(now, behind, same_output=same_output, life=life, epoch=epoch)
    )


def last_epoch(cluster: BlockingCluster, name: str) -> int:
    """Return the epoch of the last runner, or the one that a catch-up of the metadata left."""
    lease = cluster.lease(register_name(name))
    return 0 if lease is None else lease.epoch


def _new_life() -> str:
    return secrets.token_hex(4)


def positions_before(
    cluster: BlockingCluster, logs: Iterable[str], start: Glsn | str
) -> dict[str, Glsn]:
    """Return the last position before `start`, "earliest" or "latest", of each log."""
    if isinstance(start, int):
        return dict.fromkeys(logs, start - 1)
    if start == "latest":
        return {log: cluster.log(log).tail() for log in logs}
    return {log: cluster.log(log).earliest() - 1 for log in logs}

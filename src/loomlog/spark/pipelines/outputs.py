"""Outputs of pipelines, written in two phases.

`stage` writes the rows of a unit invisibly and returns JSON that describes them. The JSON is
recorded with the unit; then `publish` makes exactly these rows visible. `publish` may be called
again, also by another process and after later units, and must then change nothing. Staged rows
that are never published stay invisible. If they are gone, `publish` raises StagedLostError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from loomlog.errors import LoomError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Staged: TypeAlias = Any  # JSON


class StagedLostError(LoomError):
    """The staged rows are gone and were never visible: compute them again."""


@dataclass(frozen=True, slots=True)
class UnitId:
    """Identifies a unit of output: (`owner`, `number`) is unique forever, and numbers grow."""

    cluster: str
    pipeline: str
    number: int
    version: int  # of the output
    life: str = ""  # of the pipeline, which may have had namesakes, in another cluster say

    @property
    def owner(self) -> str:
        """The name of the pipeline in tables, which may outlive it."""
        return f"{self.pipeline}-{self.life}" if self.life else self.pipeline

    def place(self, name: str) -> str:
        """Return the place of this version of the output `name`."""
        return versioned(name, self.version)


class Output(Protocol):
    """The interface of outputs; users may write their own, with `stage` and `publish`."""

    def stage(self, frame: DataFrame, unit: UnitId) -> Staged:
        """Write the rows, invisibly; None if there is nothing to publish."""

    def publish(self, unit: UnitId, staged: Staged) -> None:
        """Make the staged rows visible permanently."""

    def describe(self) -> str:
        """Return a short, stable description."""


@runtime_checkable
class CountedOutput(Protocol):
    """An output that knows which units it has."""

    def last_unit(self, unit: UnitId) -> int:
        """Return the number of the last published unit of the owner of `unit`; 0 if it has none."""


@runtime_checkable
class SearchedOutput(Protocol):
    """An output in which units of pipelines of any life can be found."""

    def may_have(self, unit: UnitId) -> bool:
        """Return whether it may have units of the pipeline of `unit`, or of one of this name."""


def versioned(name: str, version: int) -> str:
    """Return the name of a version; version 1 has the plain name."""
    return name if version == 1 else f"{name}.v{version}"

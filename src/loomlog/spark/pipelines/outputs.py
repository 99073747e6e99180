"""Where a pipeline's results go, in two phases.

`stage` writes the rows of a unit where nobody sees them and says, as JSON, what it wrote; that is
recorded with the unit, and then `publish` makes exactly this visible. `publish` may be called
again, also by another process and after others: it must then change nothing. What was staged and
not published is rubbish that nobody sees. If it is gone before, `publish` raises StagedLostError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from loomlog.errors import LoomError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Staged: TypeAlias = Any  # JSON


class StagedLostError(LoomError):
    """What was staged does not exist any more, and nobody has seen it: compute it again."""


@dataclass(frozen=True, slots=True)
class UnitId:
    """Whose output it is: (`owner`, `number`) is unique for ever, and numbers grow."""

    cluster: str
    pipeline: str
    number: int
    version: int  # of the output
    life: str = ""  # of the pipeline, which may have had namesakes, in another cluster say

    @property
    def owner(self) -> str:
        """The pipeline, as tables know it, which may outlive it."""
        return f"{self.pipeline}-{self.life}" if self.life else self.pipeline

    def place(self, name: str) -> str:
        """Where this version of an output called `name` is."""
        return versioned(name, self.version)


class Output(Protocol):
    """Also the hook for outputs of one's own: any object with `stage` and `publish`."""

    def stage(self, frame: DataFrame, unit: UnitId) -> Staged:
        """Write the rows, invisibly; None if there is nothing to publish."""

    def publish(self, unit: UnitId, staged: Staged) -> None:
        """Make what `stage` returned visible, once and for all."""

    def describe(self) -> str:
        """What it is, in a few words that stay the same."""


def versioned(name: str, version: int) -> str:
    """Version 1 has the plain name."""
    return name if version == 1 else f"{name}.v{version}"

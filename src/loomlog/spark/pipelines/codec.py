"""A pipeline's progress as the bytes of its register, and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from loomlog.errors import Corrupt, VersionMismatch
from loomlog.spark.pipelines.units import Counters, Progress, Range, Unit, UnitState

FORMAT: Final = 1


def encode(progress: Progress) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(progress)}, separators=(",", ":")).encode()


def decode(value: bytes) -> Progress:
    try:
        fields = json.loads(value)
        if fields.pop("format") != FORMAT:
            raise VersionMismatch("the pipeline's progress is of a newer loomlog: update this one")
        unit = fields.pop("unit")
        pieces = tuple(Range(*piece) for piece in fields.pop("pieces"))
        counters = Counters(**fields.pop("counters"))
        return Progress(**fields, unit=unit and _unit(unit), pieces=pieces, counters=counters)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Corrupt(f"the register does not hold a pipeline's progress: {error}") from None


def _unit(fields: dict[str, Any]) -> Unit:
    ranges = {log: Range(*found) for log, found in fields.pop("ranges").items()}
    return Unit(**fields | {"ranges": ranges, "state": UnitState(fields["state"])})

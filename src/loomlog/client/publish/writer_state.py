"""The content of a writer's register: its last publication and its intent, as versioned JSON."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, replace
from typing import Any, Final

from loomlog import references
from loomlog.client.loglets.contract import Fixed
from loomlog.errors import Corrupt, VersionMismatch
from loomlog.references import Reference
from loomlog.types import Glsn, StreamId

VERSION: Final = 2
NOTHING: Final = (1 << 63) - 1  # above every staged position
SILENT_US: Final = 24 * 3600 * 1_000_000  # staged rows of a writer are kept this long


@dataclass(frozen=True, slots=True)
class Intent:
    """A publication that is decided but may not have happened yet."""

    reference: Reference
    fixed: Fixed  # the destination, for every process that sends it
    staged_tail: Glsn
    min_timestamp_us: int
    max_timestamp_us: int

    def encode(self, producer_id: int) -> bytearray:
        """Return the batch that is appended."""
        return references.encode(
            self.reference,
            producer_id=producer_id,
            min_timestamp_us=self.min_timestamp_us,
            max_timestamp_us=self.max_timestamp_us,
        )


@dataclass(frozen=True, slots=True)
class WriterState:
    """The state of a writer: its last publication, and the next one if it is in progress."""

    producer_id: int  # by which streams detect repeated references; new for each register
    sequence: int  # of the last publication; 0 if there is none
    published: tuple[Glsn, Glsn]  # its first and last position
    stream: StreamId  # of the last publication
    staged_from: Glsn  # the first position of the staging log that may hold unpublished rows
    next_staged_from: Glsn  # the same after the next publication
    changed_us: int
    intent: Intent | None = None  # None unless a publication is in progress

    def holds_back(self, now_us: int) -> bool:
        """Return whether the rows it may have staged must be kept."""
        return self.intent is not None or now_us - self.changed_us < SILENT_US

    @property
    def is_expired(self) -> bool:
        """True if its staged rows may have been deleted because it was silent for too long."""
        return self.staged_from == NOTHING

    def expired(self) -> WriterState:
        return replace(self, staged_from=NOTHING, next_staged_from=NOTHING)

    def renewed(self, staged_from: Glsn, now_us: int) -> WriterState:
        """Return the state of an expired writer that is in use again."""
        return replace(
            self, staged_from=staged_from, next_staged_from=staged_from, changed_us=now_us
        )

    def encode(self) -> bytes:
        fields: dict[str, Any] = {
            "version": VERSION,
            "producer": self.producer_id,
            "sequence": self.sequence,
            "published": self.published,
            "stream": self.stream,
            "staged_from": [self.staged_from, self.next_staged_from],
            "changed_us": self.changed_us,
        }
        if self.intent is not None:
            fields["intent"] = {
                "reference": b64encode(references.encode_body(self.intent.reference)).decode(),
                "fixed": self.intent.fixed,
                "staged_tail": self.intent.staged_tail,
                "timestamps_us": [self.intent.min_timestamp_us, self.intent.max_timestamp_us],
            }
        return json.dumps(fields, separators=(",", ":")).encode()


def decode(value: bytes) -> WriterState:
    try:
        fields = json.loads(value)
        version = fields["version"]
        if version == VERSION:
            return _decode(fields)
    except (ValueError, KeyError, TypeError) as problem:
        raise Corrupt(f"the register does not hold a writer's state: {problem!r}") from None
    raise VersionMismatch(
        f"the register holds a writer's state of version {version}, this software reads {VERSION}; "
        "upgrade the software"
    )


def _decode(fields: dict[str, Any]) -> WriterState:
    first, last = fields["published"]
    staged_from, next_staged_from = fields["staged_from"]
    return WriterState(
        producer_id=fields["producer"],
        sequence=fields["sequence"],
        published=(first, last),
        stream=fields["stream"],
        staged_from=staged_from,
        next_staged_from=next_staged_from,
        changed_us=fields["changed_us"],
        intent=_decode_intent(fields["intent"]) if "intent" in fields else None,
    )


def _decode_intent(fields: dict[str, Any]) -> Intent:
    earliest, latest = fields["timestamps_us"]
    return Intent(
        reference=references.decode_body(b64decode(fields["reference"], validate=True)),
        fixed=Fixed(*fields["fixed"]),
        staged_tail=fields["staged_tail"],
        min_timestamp_us=earliest,
        max_timestamp_us=latest,
    )

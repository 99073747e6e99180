"""What the register of a writer holds: how far it has published, and what it is about to.

JSON, so that an operator can read it; versioned, so that a later program can, too.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any, Final

from loomlog import references
from loomlog.core.chained.messages import Ticket
from loomlog.errors import Corrupt, VersionMismatch
from loomlog.references import Reference
from loomlog.types import Glsn, StreamId

VERSION: Final = 1
SILENT_US: Final = 24 * 3600 * 1_000_000  # who says nothing for a day holds nothing back


@dataclass(frozen=True, slots=True)
class Intent:
    """A publication that is decided, and may have happened or not."""

    reference: Reference
    stream: StreamId  # where it goes, whoever sends it
    tail: Glsn  # of the log before: it cannot stand at or below
    staged_tail: Glsn
    min_timestamp_us: int
    max_timestamp_us: int
    ticket: Ticket | None = None  # its place, in a stream whose writers choose it before
    epoch: int = 0  # that it is to be in, in a stream of protocol `copyset`


@dataclass(frozen=True, slots=True)
class WriterState:
    """`intent` is None unless a publication is under way."""

    producer_id: int  # by which streams recognise its references, in this life of the register
    sequence: int  # of the last publication, 0: none yet
    published: tuple[Glsn, Glsn]  # its first and last position
    stream: StreamId  # that took it
    staged_from: Glsn  # nothing it has yet to publish stands before, in the staging log
    next_staged_from: Glsn  # the same after the next publication
    changed_us: int
    intent: Intent | None = None

    def holds_back(self, now_us: int) -> bool:
        """What it may have staged must be kept."""
        return self.intent is not None or now_us - self.changed_us < SILENT_US

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
                "stream": self.intent.stream,
                "tail": self.intent.tail,
                "staged_tail": self.intent.staged_tail,
                "timestamps_us": [self.intent.min_timestamp_us, self.intent.max_timestamp_us],
            }
            if self.intent.ticket is not None:
                fields["intent"]["ticket"] = self.intent.ticket
            if self.intent.epoch:
                fields["intent"]["epoch"] = self.intent.epoch
        return json.dumps(fields, separators=(",", ":")).encode()


def decode(value: bytes) -> WriterState:
    try:
        fields = json.loads(value)
        version = fields["version"]
        if version == VERSION:
            return _decode(fields)
    except (ValueError, KeyError, TypeError) as problem:
        raise Corrupt(f"the register holds no state of a writer: {problem!r}") from None
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
        stream=fields["stream"],
        tail=fields["tail"],
        staged_tail=fields["staged_tail"],
        min_timestamp_us=earliest,
        max_timestamp_us=latest,
        ticket=Ticket(*fields["ticket"]) if "ticket" in fields else None,
        epoch=fields.get("epoch", 0),
    )

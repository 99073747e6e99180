"""The registers of writers and pipelines in a backup, which must match the entries of their logs.

A register of a writer or pipeline is restored only if it did not change while the tails of the logs
were determined, and if no publication was in progress. Rows that were staged and not published are
not in a backup.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from loomlog.client.publish import writer_state
from loomlog.errors import Corrupt, VersionMismatch

WRITERS: Final = "writer/"
PIPELINES: Final = "pipeline/"
PREFIXES: Final = (WRITERS, PIPELINES)


def is_at_work(name: str, value: bytes) -> bool:
    """Return whether there is a publication that was decided and may not have happened yet."""
    try:
        if name.startswith(WRITERS):
            return writer_state.decode(value).intent is not None
        unit = json.loads(value)["unit"]
        return unit is not None and unit["state"] == "committing"
    except (Corrupt, VersionMismatch, ValueError, KeyError, TypeError):
        return False  # `restored` reports it


def restored(name: str, value: bytes, logs: Collection[str]) -> bytes | str:
    """Return the value to restore in a cluster with these logs, or the reason why there is none."""
    try:
        if name.startswith(WRITERS):
            return _writer(name.split("/")[1], value, logs)
        return _pipeline(json.loads(value), logs)
    except (Corrupt, VersionMismatch, ValueError, KeyError, TypeError, AttributeError):
        return "it is not what this version of loomlog writes"


def _writer(log: str, value: bytes, logs: Collection[str]) -> bytes | str:
    if log not in logs:
        return "its log was not restored"
    state = writer_state.decode(value)
    if state.intent is not None:
        return "it was publishing"
    return replace(state.expired(), stream=0).encode()  # nothing is staged for it any more


def _pipeline(progress: dict[str, Any], logs: Collection[str]) -> bytes | str:
    definition: Mapping[str, Any] = progress["definition"]
    if definition["stateful"]:
        return "its state is in a checkpoint, which is not in a backup"
    if not definition["output"].startswith("log "):
        return f"its output, {definition['output']}, is not in a backup"
    if missing := set(definition["sources"].values()) - set(logs):
        return f"log {min(missing)} was not restored"
    unit = progress["unit"]
    if unit is not None:
        unit |= {"state": "created", "staged": None}
    # Leases start over in the other cluster, and with them the epochs of runners.
    return json.dumps(progress | {"epoch": 0}, separators=(",", ":")).encode()

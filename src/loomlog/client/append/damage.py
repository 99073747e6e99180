"""Batches that were damaged on the way to a server."""

from __future__ import annotations

from loomlog import batch
from loomlog.errors import Corrupt, LoomError, Unavailable
from loomlog.types import Buffer


def retryable_if_sound(error: LoomError, sent: Buffer) -> LoomError:
    """Return the error of an append. If a server reports a sound batch as corrupt, it was damaged
    on the way and not appended, so the error is made retryable."""
    if not isinstance(error, Corrupt):
        return error
    try:
        batch.check(sent)
    except LoomError:
        return error
    return Unavailable(f"a batch was damaged on its way: {error}")

"""The client's delays between retries."""

from __future__ import annotations

from typing import Final

from loomlog.core.backoff import Backoff

# first_s is about a round trip with a sync; a stream that runs again is noticed within max_s.
BACKOFF: Final = Backoff(first_s=0.01, max_s=0.5)

"""Count the source files that one append crosses, from the call to the acknowledgement.

    python tests/bench/files_crossed.py [--list]

A cluster of three nodes runs in this process, and every function that is called during an append is
noted, in all threads, except what timers start: on a busy machine some fire during every append. A
file counts if nine of ten appends call it. Files of other protocols do not (nodes report for all of
them at once), nor does types.py, which has no logic.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import loomlog
from loomlog.testing import LocalCluster

SOURCE = f"{Path(loomlog.__file__).parent}/"
PROTOCOLS = ("ordered", "chained", "copyset")
APPENDS = 20
SHARE = 0.9  # of the appends
PACKAGES = {"copyset": ("copyset", "logsdb")}
RUN = asyncio.Handle._run.__code__


class Calls:
    """The files of the package whose functions are called while it is on."""

    def __init__(self) -> None:
        self.files: set[str] | None = None
        self._of = threading.local()  # by_timer: whether a timer started what this thread does

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        if self.files is None or event != "call":
            return
        path = frame.f_code.co_filename
        if frame.f_code is RUN:
            self._of.by_timer = isinstance(frame.f_locals["self"], asyncio.TimerHandle)
        elif path.startswith(SOURCE) and not getattr(self._of, "by_timer", False):
            self.files.add(path.removeprefix(SOURCE))


async def crossed(protocol: str, calls: Calls) -> list[str]:
    async with LocalCluster(nodes=3) as cluster:
        log = await cluster.create_log("events", replicas=3, protocol=protocol)
        for _ in range(APPENDS):
            await log.append(b"first")
        counts: Counter[str] = Counter()
        for number in range(APPENDS):
            calls.files = set()
            await log.append(b"%d" % number)
            counts.update(calls.files)
            calls.files = None
    return sorted(path for path, count in counts.items() if count >= APPENDS * SHARE)


def belongs(path: str, protocol: str) -> bool:
    others = [p for other in PROTOCOLS if other != protocol for p in PACKAGES.get(other, (other,))]
    return path != "types.py" and not set(Path(path).parts).intersection(others)


def main() -> None:
    calls = Calls()
    threading.setprofile(calls.note)
    sys.setprofile(calls.note)
    for protocol in PROTOCOLS:
        files = [path for path in asyncio.run(crossed(protocol, calls)) if belongs(path, protocol)]
        print(f"{protocol}: {len(files)} files")
        if "--list" in sys.argv[1:]:
            print(*(f"  {path}" for path in files), sep="\n")


if __name__ == "__main__":
    main()

"""Writers whose process ends in the middle of a publication."""

from __future__ import annotations

from typing import Any

from loomlog.client.loglets.contract import Loglet
from loomlog.client.loglets.registry import Loglets
from loomlog.client.publish.writer import Writer


class Crash(Exception):  # noqa: N818 - no error, an end
    """The process ends here."""


class Dying:
    """The register and the loglets of a writer, which end with the process before or after the
    given step."""

    def __init__(self, writer: Writer, step: int, *, after: bool) -> None:
        self._register, self._loglets = writer._register, writer._loglets
        self._left, self._after = step, after
        self.get = writer._register.get
        dying: Any = self
        writer._register = writer._loglets = dying

    def of(self, protocol: str) -> Any:
        return _DyingLoglet(self, self._loglets.of(protocol))

    async def swap(self, *given: Any) -> Any:
        return await self.step(lambda: self._register.swap(*given))

    async def step(self, work: Any) -> Any:
        self._left -= 1
        if not self._left and not self._after:
            raise Crash
        done = await work()
        if not self._left:
            raise Crash
        return done


class _DyingLoglet:
    def __init__(self, dying: Dying, loglet: Loglet) -> None:
        self._dying = dying
        self._loglet = loglet

    def __getattr__(self, name: str) -> Any:
        """Return what ends nothing."""
        return getattr(self._loglet, name)

    async def append_fixed(self, *given: Any) -> Any:
        return await self._dying.step(lambda: self._loglet.append_fixed(*given))


def own_loglet(writer: Writer, protocol: str) -> Any:
    """Give the writer a loglet that no other writer of its client shares, to be changed."""
    writer._loglets = Loglets(writer._log.cached, writer._loglets._client)
    return writer._loglets.of(protocol)

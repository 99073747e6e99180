"""Writers whose process ends in the middle of a publication."""

from __future__ import annotations

from typing import Any

from loomlog.client.publishing import Writer


class Crash(Exception):  # noqa: N818 - no error, an end
    """The process ends here."""


class Dying:
    """The register of a writer, and its way to append ("pinned", "in_epochs"), that end with the
    process, before or after the given step."""

    def __init__(self, writer: Writer, way: str, step: int, *, after: bool) -> None:
        self._register, self._appends = writer._register, getattr(writer._ways, way)
        self._left, self._after = step, after
        self.get = writer._register.get
        dying: Any = self
        writer._register = dying
        writer._ways = writer._ways._replace(**{way: dying})

    def __getattr__(self, name: str) -> Any:
        """What ends nothing."""
        return getattr(self._appends, name)

    async def swap(self, *given: Any) -> Any:
        return await self._step(lambda: self._register.swap(*given))

    async def append(self, *given: Any) -> Any:
        return await self._step(lambda: self._appends.append(*given))

    async def _step(self, work: Any) -> Any:
        self._left -= 1
        if not self._left and not self._after:
            raise Crash
        done = await work()
        if not self._left:
            raise Crash
        return done

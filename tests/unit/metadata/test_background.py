"""Work beside requests ends with the server, also if it never began."""

from __future__ import annotations

from loomlog.metadata.background import Background


async def test_work_that_is_stopped_before_it_began_leaves_nothing_behind() -> None:
    background = Background()
    began = []

    async def work() -> None:
        began.append(True)

    background.spawn(work(), "work")
    await background.stop()
    background.spawn(work(), "more work")
    assert began == []

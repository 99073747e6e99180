"""A replicated key-value store: every copy applies the same changes in the same order.

A read asks for the end of the log first, and waits until the copy is there: it sees everything that
was acknowledged before. `set_if` is atomic although nobody holds a lock: whether it changes
something is decided by its place in the log, and every copy decides the same.

Start a cluster with `loom up`, then run this file, several times. LOOM_CLUSTER says where it is.
"""

import asyncio
import json
import os
from typing import Any

import loomlog


class Store:
    """A copy of the store in this process. Any number of them may run, anywhere."""

    def __init__(self, log: loomlog.Log) -> None:
        self._log = log
        self._values: dict[str, str] = {}
        self._changed: set[int] = set()  # positions of `set_if` that changed something
        self._position = 0
        self._advanced = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Store":
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()

    async def get(self, key: str) -> str | None:
        await self._reach(await self._log.tail())
        return self._values.get(key)

    async def set(self, key: str, value: str) -> None:
        await self._append({"key": key, "value": value})

    async def set_if(self, key: str, expected: str | None, value: str) -> bool:
        """Set a value if the present one is as expected; return whether it was."""
        position = await self._append({"key": key, "value": value, "expected": expected})
        await self._reach(position)
        return position in self._changed

    async def _append(self, change: dict[str, Any]) -> int:
        return (await self._log.append(json.dumps(change).encode())).position

    async def _follow(self) -> None:
        async for entry in self._log.subscribe(start="earliest"):
            change = json.loads(entry.value)
            key = change["key"]
            if "expected" not in change or change["expected"] == self._values.get(key):
                self._values[key] = change["value"]
                self._changed.add(entry.position)
            async with self._advanced:
                self._position = entry.position
                self._advanced.notify_all()

    async def _reach(self, position: int) -> None:
        async with self._advanced:
            await self._advanced.wait_for(lambda: self._position >= position)


async def main() -> None:
    address = os.environ.get("LOOM_CLUSTER", "127.0.0.1:7400")
    async with await loomlog.connect(address) as cluster:
        log = await cluster.create_log("settings", exist_ok=True)
        async with Store(log) as one, Store(log) as other:
            await one.set("colour", "green")
            assert await other.get("colour") == "green", "what was set is seen at once, everywhere"

            outcomes = await asyncio.gather(
                one.set_if("colour", "green", "blue"), other.set_if("colour", "green", "red")
            )
            assert sorted(outcomes) == [False, True], "one of them was first"
            assert await one.get("colour") == await other.get("colour")
            print(f"colour is {await one.get('colour')} in both copies")


if __name__ == "__main__":
    asyncio.run(main())

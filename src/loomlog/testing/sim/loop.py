"""An asyncio event loop in virtual time: one per life of a simulated process.

Code that runs here is ordinary asyncio code. Callbacks are FIFO within a loop; each turn of a
loop comes a small random time after it was asked for, so that processes interleave differently
for every seed. `kill()` ends the process between two callbacks: pending ones never run.

Invariants: no callback runs after `kill()`; while one runs, this loop is asyncio's running
loop; an unhandled exception fails the simulation.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import traceback
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context
from heapq import heapify, heappop, heappush
from inspect import CORO_CREATED
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from loomlog.testing.sim.world import World

if TYPE_CHECKING:
    from loomlog.testing.sim.net import Network, SimServer

AnyProtocol = TypeVar("AnyProtocol", bound=asyncio.BaseProtocol)

TURN_DELAY_S = 20e-6  # the longest delay of a turn, usually ...
LONG_TURN_DELAY_S = 1e-3  # ... and one in a hundred up to this: another process had the core
CLOCK_RESOLUTION_S = 1e-9  # a timer this close is due; keeps rounding from looping
CANCELLED_TIMERS_MIN = 256  # below this, cancelled timers are not worth sweeping
CLOSE_ATTEMPTS_MAX = 100  # a coroutine may wait again in each of its `finally` blocks


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one life of the process on `host`."""

    def __init__(self, world: World, network: Network, host: str, clock_offset_s: float) -> None:
        self.world = world
        self.host = host
        self._host_bytes = host.encode()
        self.killed = False
        self.clock_offset_s = clock_offset_s
        self.wall_error_s: float | None = None  # of time.time(); None: it goes with this clock
        self._network = network
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_sequence = 0
        self._timers_swept = CANCELLED_TIMERS_MIN
        self._wake_at = float("inf")  # loop time of the earliest wake-up that is scheduled
        self._turn_scheduled = False
        self._paused_until = 0.0
        self._orphans: list[asyncio.Task[Any]] = []
        self._strike_in = 0  # turns until `_strike`; 0: never
        self._strike: Callable[[], None] | None = None

    # -- time

    def time(self) -> float:
        return self.world.now + self.clock_offset_s

    def jump_clock(self, seconds: float) -> None:
        """Set the process's clock forward or back, which affects timers as on a real machine."""
        self.clock_offset_s += seconds
        self._wake_at = float("inf")
        self._wake()

    def pause(self, seconds: float) -> None:
        """Suspend the process for a while."""
        self._paused_until = max(self._paused_until, self.world.now + seconds)

    def strike_after(self, turns: int, strike: Callable[[], None] | None) -> None:
        """Call `strike`, e.g. a kill, in place of a later turn; None: never. Counting turns hits
        busy moments more often than choosing a time at random."""
        self._strike_in, self._strike = (turns, strike) if strike else (0, None)

    # -- callbacks and timers

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.killed:
            self._ready.append(handle)
            if not self._turn_scheduled:
                self._schedule_turn()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.killed:
            self._timer_sequence += 1
            heappush(self._timers, (when, self._timer_sequence, timer))
            if len(self._timers) > self._timers_swept:
                self._sweep_timers()
            self._arm()
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # cancelled timers are swept together

    def _sweep_timers(self) -> None:
        self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
        heapify(self._timers)
        self._timers_swept = max(CANCELLED_TIMERS_MIN, 2 * len(self._timers))

    def _arm(self) -> None:
        if self._timers and self._timers[0][0] < self._wake_at:
            self._wake_at = self._timers[0][0]
            self.world.at(self._wake_at - self.clock_offset_s, self._wake)

    def _wake(self) -> None:
        if self.killed:
            return
        due = self.time() + CLOCK_RESOLUTION_S
        if self._wake_at <= due:
            self._wake_at = float("inf")
        while self._timers and self._timers[0][0] <= due:
            timer = heappop(self._timers)[2]
            if not timer.cancelled():
                self._ready.append(timer)
        if self._ready and not self._turn_scheduled:
            self._schedule_turn()
        self._arm()

    def _schedule_turn(self) -> None:
        self._turn_scheduled = True
        chance = self.world.random.random()
        delay = (
            chance * TURN_DELAY_S if chance < 0.99 else (chance - 0.99) * 100 * LONG_TURN_DELAY_S
        )
        self.world.at(max(self.world.now + delay, self._paused_until), self._turn)

    def _turn(self) -> None:
        """Run the callbacks that are ready now; those they schedule wait for the next turn."""
        self._turn_scheduled = False
        if self.killed:
            return
        if self._paused_until > self.world.now:
            self._schedule_turn()
            return
        if self._strike_in:
            self._strike_in -= 1
            if not self._strike_in and self._strike is not None:
                self._strike()
                return
        ready = self._ready
        count = len(ready)
        self.world.stamp(self._host_bytes, count)
        self.world.steps += count
        # As `running()` does, written out: this is the hottest place of a simulation. Nothing
        # outside a turn begins an asynchronous generator, so the hook may stay.
        _set_running_loop(self)
        sys.set_asyncgen_hooks(finalizer=self._close_generator)
        try:
            for _ in range(count):
                if not ready:  # killed by its own callback
                    break
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            _set_running_loop(None)
        if ready and not self._turn_scheduled:
            self._schedule_turn()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be asyncio's running loop, as a real loop is while it runs callbacks."""
        outer = _get_running_loop()
        hooks = sys.get_asyncgen_hooks()
        _set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._close_generator)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            _set_running_loop(outer)

    def _close_generator(self, generator: AsyncGenerator[Any, None]) -> None:
        if not self.killed:
            self.call_soon(self._start_closing, generator)

    def _start_closing(self, generator: AsyncGenerator[Any, None]) -> None:
        self.create_task(generator.aclose())

    # -- futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[Any]:
        if self.killed:
            coro.close()
        return asyncio.Task(coro, loop=self, name=name, context=context, **options)

    def get_task_factory(self) -> None:
        return None

    # -- errors

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.killed:
            return
        cause = context.get("exception")
        story = "".join(traceback.format_exception(cause)) if cause is not None else ""
        self.world.fail(self.host, f"{context.get('message')}\n{story}".rstrip(), cause)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    # -- the end

    def kill(self) -> None:
        """Drop everything pending, permanently. Tasks are kept until `bury()`: a
        coroutine that is merely forgotten would run its `finally` blocks when it is collected."""
        if self.killed:
            return
        self._orphans = list(asyncio.all_tasks(self))
        self.killed = True
        self._ready.clear()
        self._timers.clear()

    def bury(self) -> None:
        """Dispose of the tasks a dead process left. Their `finally` blocks run now, and can do
        nothing: this loop schedules nothing any more, its disk and connections are gone."""
        with self.running():
            while self._orphans:
                _close(self._orphans.pop().get_coro())

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks of the process, for display, in no particular order."""
        return self._orphans if self.killed else list(asyncio.all_tasks(self))

    def is_running(self) -> bool:
        return not self.killed

    def is_closed(self) -> bool:
        return False

    def close(self) -> None:
        self.kill()

    async def shutdown_asyncgens(self) -> None:
        pass

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        pass

    def run_forever(self) -> NoReturn:
        raise RuntimeError("the simulation runs this loop: call Simulation.run()")

    def run_until_complete(self, future: object) -> NoReturn:
        raise RuntimeError("the simulation runs this loop: call Simulation.run()")

    def run_in_executor(self, executor: object, func: object, *args: object) -> NoReturn:
        raise RuntimeError("no threads in a simulation: use a storage.files.Worker")

    # -- network

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], AnyProtocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, AnyProtocol]:
        _refuse_tls(options)
        return await self._network.connect(self, protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int = 0,
        **options: Any,
    ) -> SimServer:
        _refuse_tls(options)
        return self._network.listen(self, protocol_factory, host, port)


def _refuse_tls(options: dict[str, Any]) -> None:
    if options.get("ssl") or options.get("sock"):
        raise NotImplementedError("the simulated network has neither TLS nor real sockets")


def _close(coroutine: Any) -> None:
    """Close a coroutine and those passed to it, which stay unawaited if it never began."""
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == CORO_CREATED:
        for argument in inspect.getcoroutinelocals(coroutine).values():
            if inspect.iscoroutine(argument):
                _close(argument)
    for _ in range(CLOSE_ATTEMPTS_MAX):
        try:
            coroutine.close()
        except BaseException:  # noqa: S112 - of a dead process
            continue
        return

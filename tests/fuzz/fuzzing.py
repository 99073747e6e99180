"""Runs a target on many inputs, and reports what breaks its promises.

A target decodes bytes. Whatever they are, it returns or raises a LoomError, quickly and with little
memory; and it never returns something else than what was written. Inputs are mutated from examples;
half of them are sealed, that is, get right checksums again, or nothing behind those were reached.
There is no tracing, which would cost more than the targets: an input that ends in a new way
(another line that raises) joins the examples, so later ones begin from there.
"""

from __future__ import annotations

import hashlib
import logging
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

from mutation import Mutator

from loomlog.errors import LoomError

CORPUS: Final = Path(__file__).parent / "corpus"
EXAMPLES_MAX: Final = 300
INPUT_BYTES_MAX: Final = 1 << 20
HANG_S: Final = 10.0
MEMORY_BYTES: Final = 2 << 30  # beyond what the process has when the run begins
_PER_ALARM: Final = 64  # inputs; an alarm for each would cost as much as some targets
_SEALED: Final = 0.5
_FRESH: Final = 0.3  # begin with a sound example, whose content is known


class WrongRecordError(AssertionError):
    """Something was read that nobody wrote."""


class Hang(BaseException):
    """An input took too long."""


def _unsealed(data: bytes) -> bytes:
    return data


@dataclass(frozen=True)
class Target:
    """A decoder, with sound examples of its input."""

    name: str
    examples: tuple[bytes, ...]
    read: Callable[[bytes], Any]  # of any bytes; raises LoomError if they are nonsense
    seal: Callable[[bytes], bytes] = _unsealed  # gives bytes right checksums
    # Of an example and a damaged copy: raises WrongRecordError if that reads as something else.
    compare: Callable[[bytes, bytes], Any] | None = None


@dataclass
class Finding:
    """An input on which a target broke a promise."""

    target: str
    data: bytes
    error: BaseException

    def __str__(self) -> str:
        return f"{self.target}: {type(self.error).__name__}: {self.error}"[:300]

    def save(self, folder: Path = CORPUS) -> Path:
        folder.mkdir(exist_ok=True)
        file = folder / f"{self.target}-{hashlib.sha256(self.data).hexdigest()[:12]}"
        file.write_bytes(self.data)
        return file


@dataclass
class Outcome:
    """The result of a run."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    ways: Counter[object] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.inputs / self.seconds if self.seconds else 0.0


def corpus_of(target: str, folder: Path = CORPUS) -> list[bytes]:
    """Return the inputs that once were findings, or worth keeping."""
    return [file.read_bytes() for file in sorted(folder.glob(f"{target}-*"))]


def run(
    target: Target, seed: int, *, seconds: float = 1e9, inputs: int = 1 << 62, findings_max: int = 5
) -> Outcome:
    """Feed mutated inputs until the time or their number is over, or enough was found."""
    outcome, random = Outcome(target.name), Random(f"{target.name} {seed}")
    mutator = Mutator(random)
    pool = [*target.examples, *corpus_of(target.name)]
    begun = time.perf_counter()
    with _bounds():
        while outcome.inputs < inputs and len(outcome.findings) < findings_max:
            signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
            for _ in range(min(_PER_ALARM, inputs - outcome.inputs)):
                _one(target, mutator, pool, outcome)
            if time.perf_counter() - begun > seconds:
                break
    outcome.seconds = time.perf_counter() - begun
    return outcome


def _one(target: Target, mutator: Mutator, pool: list[bytes], outcome: Outcome) -> None:
    random = mutator.random
    outcome.inputs += 1
    if target.compare is not None and random.random() < _FRESH:
        example = random.choice(target.examples)
        data = mutator.mutate(example, target.examples)[:INPUT_BYTES_MAX]
        _try(target, data, lambda: target.compare(example, data), pool, outcome)  # type: ignore[misc]
        return
    data = mutator.mutate(random.choice(pool), pool)[:INPUT_BYTES_MAX]
    if random.random() < _SEALED:
        data = target.seal(data)
    _try(target, data, lambda: target.read(data), pool, outcome)


def _try(
    target: Target, data: bytes, call: Callable[[], Any], pool: list[bytes], outcome: Outcome
) -> None:
    try:
        call()
        way: object = "read"
    except LoomError as error:
        way = _line(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        way = (type(error), _line(error))
        if way not in outcome.ways:
            outcome.findings.append(Finding(target.name, data, error))
        if isinstance(error, Hang):
            signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
    if way not in outcome.ways and len(pool) < EXAMPLES_MAX:
        pool.append(data)
    outcome.ways[way] += 1


def _line(error: BaseException) -> tuple[str, int]:
    """Return where an error was raised."""
    trace = error.__traceback__
    where = ("", 0)
    while trace is not None:
        where = (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return where


@contextmanager
def _bounds() -> Iterator[None]:
    """Turn hangs and large allocations into errors."""

    def hang(*_: object) -> None:
        raise Hang(f"an input took more than {HANG_S:g} s of the CPU")

    log = logging.getLogger("loomlog")
    level = log.level
    log.setLevel(logging.CRITICAL)  # damage is logged, here by the million
    before = signal.signal(signal.SIGVTALRM, hang)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, limits[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        log.setLevel(level)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def replay(targets: Iterable[Target]) -> list[Finding]:
    """Run the corpus; return what still breaks."""
    found: list[Finding] = []
    for target in targets:
        for data in corpus_of(target.name):
            outcome = Outcome(target.name)
            _try(target, data, lambda: target.read(data), [], outcome)  # noqa: B023
            found += outcome.findings
    return found


def with_crc(data: bytes, at: int, crc: int) -> bytes:
    """Put a checksum in its place, if there is room."""
    return data[:at] + crc.to_bytes(4, "little") + data[at + 4 :] if len(data) >= at + 4 else data


def same(read: Callable[[bytes], Any]) -> Callable[[bytes, bytes], None]:
    """Return the comparison of a format in which checksums cover everything: a damaged copy is an
    error, or reads as the original."""
    read_once = cache(read)

    def compare(example: bytes, data: bytes) -> None:
        found = read(data)
        if found != read_once(example):
            raise WrongRecordError(f"read {str(found)[:200]}")

    return compare

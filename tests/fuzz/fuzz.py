"""Fuzz all decoders, live servers or a live console: `make fuzz MINUTES=60`,
`make fuzz ARGS=--live`, `make fuzz ARGS=--console`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from fuzz_targets import all_targets
from fuzzing import CORPUS, Outcome, run
from live_console import fuzz_own_console
from live_servers import LiveOutcome, fuzz_servers

TURN_S = 10.0  # for each target, one after the other: a run may be ended at any time

REQUESTS = 500  # to a console, before the next seed


def main() -> int:
    arguments = _arguments()
    end = time.monotonic() + arguments.minutes * 60
    if arguments.live:
        seconds, secure = arguments.minutes * 60, arguments.secure
        fuzzing = fuzz_servers(arguments.seed, seconds=seconds, secure=secure)
        return _say_live(asyncio.run(fuzzing))
    if arguments.console:
        return _fuzz_console(arguments.seed, end)
    targets = [each for each in all_targets() if each.name in (arguments.target or each.name)]
    totals: dict[str, Outcome] = {}
    seed, share_s = arguments.seed, min(TURN_S, arguments.minutes * 60 / max(len(targets), 1))
    while True:
        for target in targets:
            _add(totals, run(target, seed, seconds=share_s), arguments.keep)
            if time.monotonic() >= end and len(totals) == len(targets):
                return _say(totals)
        seed += 1
        _say(totals)


def _add(totals: dict[str, Outcome], outcome: Outcome, keep: bool) -> None:
    total = totals.setdefault(outcome.target, Outcome(outcome.target))
    total.inputs += outcome.inputs
    total.seconds += outcome.seconds
    for finding in outcome.findings:
        where = finding.save() if keep else "--keep saves it"
        print(f"FOUND {finding} ({where})", flush=True)
        total.findings.append(finding)
    total.ways += outcome.ways


def _say(totals: dict[str, Outcome]) -> int:
    print(f"{'target':12} {'inputs':>12} {'per second':>11} {'ways':>5} {'found':>5}")
    for outcome in totals.values():
        ways, found = len(outcome.ways), len(outcome.findings)
        line = (
            f"{outcome.target:12} {outcome.inputs:>12,} {outcome.rate:>11,.0f} {ways:>5} {found:>5}"
        )
        print(line)
    inputs = sum(each.inputs for each in totals.values())
    findings = sum(len(each.findings) for each in totals.values())
    print(f"{inputs:,} inputs, {findings} findings", flush=True)
    return 1 if findings else 0


def _say_live(outcome: LiveOutcome) -> int:
    for problem in outcome.problems:
        print(f"FOUND {problem}")
    print(f"{outcome.frames:,} frames on {outcome.connections:,} connections: ", end="")
    print(f"{len(outcome.problems)} findings")
    return 1 if outcome.problems else 0


def _fuzz_console(seed: int, end: float) -> int:
    requests = 0
    wrong: list[str] = []
    while not requests or time.monotonic() < end:
        outcome = asyncio.run(fuzz_own_console(seed, REQUESTS))
        for problem in outcome.wrong:
            print(f"FOUND with seed {seed}: {problem}", flush=True)
        requests, wrong, seed = requests + outcome.requests, wrong + outcome.wrong, seed + 1
    print(f"{requests:,} requests: {len(wrong)} findings")
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--target", action="append", help="only this one; repeatable")
    parser.add_argument("--live", action="store_true", help="frames to a cluster of servers")
    parser.add_argument("--console", action="store_true", help="requests to the HTTP API")
    parser.add_argument("--secure", action="store_true", help="with --live: over TLS")
    parser.add_argument("--keep", action="store_true", help=f"save findings in {CORPUS.name}/")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

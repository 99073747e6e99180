"""Checks of a whole cluster from one machine, as shown by `loom doctor`.

Servers are contacted at the addresses that they advertise, which reveals wrong addresses, closed
ports, and servers of other clusters. Pure functions evaluate their responses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from loomlog import limits
from loomlog.errors import LoomError
from loomlog.net.credentials import EXPIRY_NOTICE_S, Credentials, expiry
from loomlog.net.endpoints import connect
from loomlog.wire import loomlog_pb2 as pb
from loomlog.wire.codec import Codec
from loomlog.wire.info import ClusterStatus
from loomlog.wire.link import OnlyAnswers
from loomlog.wire.server_check import open_files_max, software_version

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"

SLOW_SYNC_S: Final = 0.05  # every append waits for at least one disk sync
SLOW_STORE_S: Final = 0.5  # every command of an operator reads metadata
FEW_FILES: Final = 4096  # a node opens several files per stream, and connections
CLOCK_S: Final = 5.0  # acceptable difference between the clocks of this machine and a server
LOW_SPACE: Final = 0.1  # of a volume


class Answer(NamedTuple):
    """The response of a server, and a lower bound on how far its clock differs from ours."""

    check: pb.ServerCheck
    ahead_s: float  # negative if its clock is behind


Checked: TypeAlias = Answer | str  # a response, or the reason why there is none


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    result: str  # ok, warning or problem
    check: str  # what was checked
    subject: str
    text: str
    help: str = ""  # what to do


async def ask(
    addresses: Sequence[str], *, tls: str | None = None, token: str = ""
) -> dict[str, Checked]:
    """Ask the servers at these addresses to check themselves, and return their responses by
    address. `tls` and `token` are those of `connect`."""
    answers = await asyncio.gather(*(_ask(address, tls, token) for address in addresses))
    return dict(zip(addresses, answers, strict=True))


async def _ask(address: str, tls: str | None, token: str) -> Checked:
    try:
        async with asyncio.timeout(limits.REQUEST_TIMEOUT_S):
            codec = Codec("client", token=token, credentials=Credentials.chosen(tls))
            connection = await connect(address, codec, OnlyAnswers())
            try:
                asked_s = time.time()
                frame, _ = await connection.request(pb.Frame(check_server=pb.CheckServer()))
                return answered(frame.server_check, asked_s, time.time())
            finally:
                connection.close()
    except TimeoutError:
        return f"it did not answer within {limits.REQUEST_TIMEOUT_S:g} s"
    except (LoomError, OSError) as error:
        return str(error)


def answered(check: pb.ServerCheck, asked_s: float, answered_s: float) -> Answer:
    """Return the response of a server. It read its clock at an unknown time between these two: a
    slow disk or store may have delayed it before or after that."""
    clock_s = check.clock_us / 1e6
    return Answer(check, clock_s - min(max(clock_s, asked_s), answered_s))


def addresses_of(status: ClusterStatus) -> dict[str, str]:
    """Return the names of all servers by the addresses that they advertise."""
    members = {m.address: f"metadata repository {m.id}" for m in status.members}
    return members | {node.address: f"node {node.id}" for node in status.nodes}


def diagnose(status: ClusterStatus, servers: Mapping[str, Checked]) -> list[Finding]:
    """Return the findings of all checks, in a fixed order."""
    names = addresses_of(status)
    answers = {names[a]: answer for a, answer in servers.items() if isinstance(answer, Answer)}
    checks = {name: answer.check for name, answer in answers.items()}
    return [
        *_reachable(status, names, servers),
        *_versions(checks),
        *_clocks(answers),
        *_open_files(checks),
        *_certificates(checks),
        *_disks(checks),
        *_stores(checks),
        *_consistency(status),
        *_conditions(status),
    ]


def _reachable(
    status: ClusterStatus, names: Mapping[str, str], servers: Mapping[str, Checked]
) -> Iterator[Finding]:
    for address, answer in servers.items():
        name, where = names[address], f"at {address}"
        if isinstance(answer, str):
            helps = "start it, or open its port; is --advertise an address that clients can use?"
            yield Finding(PROBLEM, "address", name, f"cannot be reached {where}: {answer}", helps)
            continue
        checked = answer.check
        if checked.cluster_id != status.cluster_id:
            text = f"{where} is a server of cluster {checked.cluster_id!r}"
            yield Finding(PROBLEM, "address", name, text, "correct its --advertise")
        elif checked.storage_node_id and name != f"node {checked.storage_node_id}":
            text = f"{where} is node {checked.storage_node_id}"
            yield Finding(PROBLEM, "address", name, text, "correct its --advertise")
        else:
            yield Finding(OK, "address", name, f"is reached {where}")


def _versions(checks: Mapping[str, pb.ServerCheck]) -> Iterator[Finding]:
    own = software_version()
    others = {name: c.software for name, c in checks.items() if c.software != own}
    for name, software in others.items():
        helps = "install the same version everywhere"
        yield Finding(WARNING, "version", name, f"runs {software}, this client {own}", helps)
    if not others:
        yield Finding(OK, "version", "all servers", f"run {own}, as this client")


def _clocks(answers: Mapping[str, Answer]) -> Iterator[Finding]:
    wrong = {name: a.ahead_s for name, a in answers.items() if abs(a.ahead_s) > CLOCK_S}
    for name, ahead_s in wrong.items():
        words = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine"
        yield Finding(WARNING, "clock", name, f"its clock is {words}", "check NTP on both")
    if not wrong:
        yield Finding(OK, "clock", "all servers", f"agree with this machine within {CLOCK_S:g} s")


def _open_files(checks: Mapping[str, pb.ServerCheck]) -> Iterator[Finding]:
    servers = {name: c.open_files_max for name, c in checks.items()}
    allowed = {**servers, "this machine": open_files_max()}
    few = {name: number for name, number in allowed.items() if 0 < number < FEW_FILES}
    for name, number in few.items():
        helps = f"raise its limit (`ulimit -n`) to {FEW_FILES:,} or more"
        yield Finding(WARNING, "open files", name, f"may open {number:,} files", helps)
    if not few:
        yield Finding(OK, "open files", "all servers", f"may open {FEW_FILES:,} files or more")


def _certificates(checks: Mapping[str, pb.ServerCheck]) -> Iterator[Finding]:
    ends = {name: c.certificate_ends_s for name, c in checks.items() if c.certificate_ends_s}
    if ends and (own := Credentials.chosen()) is not None and own.own is not None:
        ends["this client"] = own.ends_s
    soon = {name: text for name, end in ends.items() if (text := expiry(end, time.time()))}
    for name, text in soon.items():
        result = PROBLEM if ends[name] < time.time() else WARNING
        helps = "`loom certs list` shows which, `loom certs renew` renews; no restart is needed"
        yield Finding(result, "certificate", name, f"its certificate {text}", helps)
    if ends and not soon:
        days = EXPIRY_NOTICE_S // 86_400
        yield Finding(OK, "certificate", "all servers", f"are valid for {days} days or more")


def _disks(checks: Mapping[str, pb.ServerCheck]) -> Iterator[Finding]:
    for name, checked in checks.items():
        for volume in checked.volumes:
            yield _disk(f"{name}, {volume.path}", volume)


def _disk(subject: str, volume: pb.VolumeCheck) -> Finding:
    if volume.error:
        text = f"cannot be written: {volume.error}"
        return Finding(PROBLEM, "disk", subject, text, "see docs/operations.md, Failing disks")
    part = volume.free_bytes / volume.total_bytes if volume.total_bytes else 0.0
    words = f"a sync takes {1000 * volume.sync_s:.1f} ms, {part:.0%} of it is free"
    if part < LOW_SPACE:
        return Finding(WARNING, "disk", subject, words, "free space, or add a volume")
    if volume.sync_s > SLOW_SYNC_S:
        helps = "appends wait for syncs: use a faster disk, or find out what else keeps it busy"
        return Finding(WARNING, "disk", subject, words, helps)
    return Finding(OK, "disk", subject, words)


def _stores(checks: Mapping[str, pb.ServerCheck]) -> Iterator[Finding]:
    for name, checked in checks.items():
        words = f"reads from {checked.store} in {1000 * checked.store_read_s:.1f} ms"
        if checked.store_error:
            text = f"cannot read its metadata from {checked.store}: {checked.store_error}"
            yield Finding(PROBLEM, "metadata store", name, text, f"look at {checked.store}")
        elif checked.store and checked.store_read_s > SLOW_STORE_S:
            helps = f"find out what slows {checked.store} down"
            yield Finding(WARNING, "metadata store", name, words, helps)
        elif checked.store:
            yield Finding(OK, "metadata store", name, words)


def _consistency(status: ClusterStatus) -> Iterator[Finding]:
    """Check that the records of logs, streams and nodes are consistent."""
    known, wrong = {node.id for node in status.nodes}, []
    for log in status.logs:
        segments = {segment.id for segment in log.segments}
        if not segments:
            wrong.append(f"log {log.name} has no segment")
        without = segments.difference(stream.segment for stream in log.streams)
        wrong += [f"segment {segment} of log {log.name} has no stream" for segment in without]
        for stream in log.streams:
            what = f"stream {stream.id} of log {log.name}"
            if not stream.replicas:
                wrong.append(f"{what} has no replica")
            nodes = {replica.node for replica in stream.replicas}.difference(known)
            wrong += [f"{what} names node {node}, which does not exist" for node in nodes]
    helps = "see docs/operations.md, Moving and rescuing metadata"
    yield from (Finding(PROBLEM, "metadata", "records", text, helps) for text in wrong)
    if not wrong:
        text = f"agree; logs: {len(status.logs):,}, nodes: {len(known):,}"
        yield Finding(OK, "metadata", "records", text)


def _conditions(status: ClusterStatus) -> Iterator[Finding]:
    results = {"problem": PROBLEM, "work": OK}
    for each in status.conditions:
        parts = (
            f"log {each.log}" if each.log else "",
            f"stream {each.stream}" if each.stream else "",
            f"node {each.node}" if each.node else "",
        )
        subject = ", ".join(filter(None, parts)) or "metadata"
        result = results.get(each.severity, WARNING)
        yield Finding(result, each.kind, subject, each.text, each.help)
    if not status.conditions:
        yield Finding(OK, "conditions", "cluster", "every acknowledged entry has all its copies")

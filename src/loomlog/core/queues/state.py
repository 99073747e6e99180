"""The state of a work queue: what is done, and which member works on which job.

It is the value of one register, and every change is one compare-and-swap of the whole value, so a
job has at most one owner, whatever the clocks say. An entry up to `position` is either done or a
job: taken by a member, or free to be taken again. Attempts are counted when a job is taken, so that
a job that kills its members is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from loomlog.core.groups.state import fenced, slot_of
from loomlog.errors import Corrupt, VersionMismatch
from loomlog.types import Glsn, LogId

VERSION: Final = 1
FREE: Final = ""


class JobState(NamedTuple):
    """A job that is not done."""

    owner: str  # FREE: any member may take it
    attempts: int  # how often it was taken


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue at one version of its register."""

    log_id: LogId
    position: Glsn
    jobs: Mapping[Glsn, JobState] = field(default_factory=dict)
    members: Mapping[str, str] = field(default_factory=dict)  # id to the name for people

    def free(self) -> list[Glsn]:
        """Return the jobs that were taken before and may be taken again, oldest first."""
        return sorted(position for position, job in self.jobs.items() if job.owner == FREE)

    def owned_by(self, member: str) -> set[Glsn]:
        return {position for position, job in self.jobs.items() if job.owner == member}

    # ---- changes: each returns the next state

    def join(self, member: str, name: str) -> QueueState:
        """Add a member; the former holder of its lease is removed."""
        slot = slot_of(member)
        left = self.remove(former for former in self.members if slot_of(former) == slot)
        return replace(left, members={**left.members, member: name})

    def remove(self, members: Iterable[str]) -> QueueState:
        """Remove members that left or whose leases have expired, and free their jobs."""
        gone = set(members)
        kept = {member: name for member, name in self.members.items() if member not in gone}
        jobs = {
            p: job._replace(owner=FREE) if job.owner in gone else job
            for p, job in self.jobs.items()
        }
        return replace(self, members=kept, jobs=jobs)

    def take_new(self, member: str, positions: Iterable[Glsn], through: Glsn) -> QueueState:
        """Let a member take the entries after `position` up to `through`. `positions` are theirs;
        those that others have taken meanwhile are left out."""
        self._check(member)
        new = {p: JobState(member, 1) for p in positions if p > self.position}
        return replace(self, jobs={**self.jobs, **new}, position=max(self.position, through))

    def skip(self, through: Glsn) -> QueueState:
        """Skip entries up to `through` that are lost: there is nothing to take."""
        return replace(self, position=max(self.position, through))

    def take_again(self, member: str, position: Glsn) -> QueueState:
        """Let a member take a free job. Nothing changes if it is not free."""
        self._check(member)
        job = self.jobs.get(position)
        if job is None or job.owner != FREE:
            return self
        return replace(self, jobs={**self.jobs, position: JobState(member, job.attempts + 1)})

    def give_back(self, member: str, positions: Iterable[Glsn]) -> QueueState:
        """Free jobs of a member."""
        self._check(member)
        freed = {p: self.jobs[p]._replace(owner=FREE) for p in self.owned_by(member) & {*positions}}
        return replace(self, jobs={**self.jobs, **freed})

    def finish(self, member: str, positions: Iterable[Glsn]) -> QueueState:
        """Remove jobs that their owner has done. Jobs that the member has lost stay."""
        self._check(member)
        done = self.owned_by(member) & {*positions}
        return replace(self, jobs={p: job for p, job in self.jobs.items() if p not in done})

    def _check(self, member: str) -> None:
        if member not in self.members:
            raise fenced(member)

    # ---- as a value

    def encode(self) -> bytes:
        fields = {
            "version": VERSION,
            "log": self.log_id,
            "position": self.position,
            "members": dict(self.members),
            "jobs": [(position, *job) for position, job in self.jobs.items()],
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> QueueState:
        try:
            fields = json.loads(value)
            version = fields["version"]
            if version == VERSION:
                jobs = {int(p): JobState(str(owner), int(n)) for p, owner, n in fields["jobs"]}
                log, position = int(fields["log"]), int(fields["position"])
                return cls(log, position, jobs, dict(fields["members"]))
        except (ValueError, KeyError, TypeError):
            raise Corrupt(
                "the register does not hold a work queue: did another program write it?"
            ) from None
        raise VersionMismatch(
            f"the work queue is of version {version}, this program knows {VERSION}: update it"
        )

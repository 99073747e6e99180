"""A chained log without a clock, a disk or a network: nodes, clients, repositories, messages.

Each step does one thing that may happen next, by chance: a question or an answer arrives or is
lost, a disk does a job, a node loses power or its disk, a client or a repository dies, a link
breaks, a repository reconfigures. A question that was given up may still arrive, much later.

Judged while it runs (chained_judge.py):
- a position shows one block, forever; what was acknowledged is read by all who ask later;
- an append that begins later stands behind; what is said to be lost is never seen; nothing is
  doubled;
- the tail covers what was acknowledged, and never falls;
- what is missing after a chain lost all its disks is reported as lost, and nothing else is;
- an epoch has one projection, whoever and however many tried;
- what is acknowledged has as many copies as appends need.
"""

from __future__ import annotations

from functools import partial
from random import Random

from chained_calls import Call, Question
from chained_judge import ChainedJudge
from chained_parties import Client, Node, Party, Records, Repository
from violation import Violation

from loomlog.core.chained.chain import Block, Projection, Replica, first_projection
from loomlog.core.chained.loglet import ChainedRecord
from loomlog.core.chained.messages import (
    Answer,
    Create,
    Current,
    Found,
    InForce,
    NotWritten,
    Pull,
    Refused,
    Request,
    Seal,
    Steps,
    Swap,
    Swapped,
    Trimmed,
)
from loomlog.core.chained.newcomer import pull
from loomlog.core.chained.read import decide_at, find_end, find_tail
from loomlog.core.chained.reconfigure import (
    Goal,
)
from loomlog.core.chained.sequencer import Sequencer
from loomlog.core.chained.upkeep import Action, ChainsStanding, Join, NewEpoch, Wait, decide
from loomlog.core.requests import Lost, Service
from loomlog.types import Glsn, LogId, NodeId

STEPS = 800
CALM_STEPS = 20_000  # within which all must be well when the faults are over
CALLS_MAX = 8
LOG = 1
HARMS = (12, 5, 8, 2, 3, 3, 3, 8, 2)  # how often each is done; a seed has its own mixture


class ChainedWorld:
    """A chained log, its parties, and the messages between them."""

    uses = (40, 25, 20, 10, 2)  # how often clients append, follow, look, measure and trim
    replicas: tuple[int, ...] = (1, 2, 3, 3)  # of each chain; a seed chooses
    leasts: tuple[int, ...] = (1, 2, 2, 3)  # replicas that appends need
    steps = STEPS
    spares = 2  # nodes besides those that a chain needs

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self._harms = [weight * random.choice((0, 1, 1, 4)) for weight in HARMS]
        self.judge = ChainedJudge()
        self.replicas_wanted = random.choice(self.replicas)
        self.judge.least = min(self.replicas_wanted, random.choice(self.leasts))
        self.judge.copies = self._count_copies
        self._disks_lost: dict[NodeId, int] = {}  # the last moment
        self._loses_chains = random.random() < 0.3
        self.nodes = {n: Node(n) for n in range(1, self.replicas_wanted + self.spares + 1)}
        self.calls: list[Call] = []
        self.questions: list[Question] = []
        self.late: list[Question] = []  # given up by those who asked
        self.answers: list[tuple[Question, Answer]] = []
        self.blocked: set[tuple[str, NodeId]] = set()
        self.numbers = 0
        self.clients = [self._new_client() for _ in range(3)]
        self.records = self._create_log(random.choice((1, 2, 3)))
        self.repositories = [self._new_repository()]
        self.repositories[0].sequencers[self.projection.sequencer] = Sequencer(self.projection)
        self.reconfigurations = 0

    @property
    def projection(self) -> Projection:
        """The current projection."""
        return self.records.record.projection

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _new_client(self) -> Client:
        number = self._number()
        return Client(f"client-{number}", number, self.random, self.judge)

    def _new_repository(self) -> Repository:
        name = f"repository-{self._number()}"
        return Repository(name, self.random, self.judge, self.records)

    def _create_log(self, chains: int) -> Records:
        chosen = [
            self.random.sample(sorted(self.nodes), self.replicas_wanted) for _ in range(chains)
        ]
        number = self._number()
        projection = first_projection(
            LOG, chosen, birth=number, sequencer=number, least=self.judge.least
        )
        for replica in projection.replicas:
            for request in (Create(), Seal(1)):
                self.nodes[replica.node_id].ask(replica, request, lambda answer: None)
                self.nodes[replica.node_id].commits.work()
        return Records(ChainedRecord(LOG, LOG, 1, projection, made=True))

    # ---- the run

    def run(self) -> None:
        for _ in range(self.steps):
            self._step(faults=True)
        if self.random.random() < 0.3:
            repository = self.repositories[-1]
            self._call(repository, repository.reconfigure(Goal(close=True)))
        self._calm_down()
        for _ in range(CALM_STEPS):
            if self._is_well():
                break
            self._step(faults=False)
        else:
            raise Violation(f"not well although there are no faults: {self.projection}")
        self._look_at_the_end()

    def _step(self, *, faults: bool) -> None:
        chance = self.random.random()
        if chance < 0.80:
            self._deliver(faults=faults)
        elif chance < 0.92:
            self._use(faults=faults)
        elif faults and self.random.random() < 0.6:
            self._do_harm()
        else:
            self._mend()

    # ---- messages

    def _deliver(self, *, faults: bool) -> None:
        busy = [worker for node in self.nodes.values() if node.up for worker in node.busy]
        kinds = [kind for kind in (busy, self.questions, self.answers, self.late) if kind]
        if not kinds:
            return
        kind = self.random.choice(kinds)
        index = self.random.randrange(len(kind))
        if kind is busy:
            busy[index].work()
        elif kind is self.answers:
            question, answer = self.answers.pop(index)
            question.answer(Lost() if faults and self.random.random() < 0.05 else answer)
        else:
            self._arrive(kind.pop(index), kind is self.late, faults)  # type: ignore[arg-type]

    def _arrive(self, question: Question, late: bool, faults: bool) -> None:
        if not late and (self._is_cut_off(question) or (faults and self.random.random() < 0.05)):
            self.answers.append((question, Lost()))
            if self.random.random() < 0.7:
                self.late.append(question)
            return
        target, request = question.ask
        if not isinstance(target, Replica):
            party = question.call.party
            assert isinstance(party, Party)
            self._answer(question, self._serve(target, request, party))
            return
        node = self.nodes[target.node_id]
        if not node.up:
            self._answer(question, Lost())
        elif isinstance(request, Pull):
            self._pull(node, target, request, question)
        else:
            node.ask(target, request, partial(self._answer, question))

    def _pull(self, node: Node, replica: Replica, request: Pull, question: Question) -> None:
        """Let the node ask another one; the reason may be gone when the answer arrives."""
        done = partial(self._answer, question)
        node.unanswered.append(done)

        def steps() -> Steps[None]:
            answer = yield from pull(replica, request)
            if done in node.unanswered:
                node.unanswered.remove(done)
                done(answer)

        self._call(node, steps())

    def _answer(self, question: Question, answer: Answer) -> None:
        self.answers.append((question, answer))

    def _is_cut_off(self, question: Question) -> bool:
        target = question.ask.target
        name = question.call.party.name
        return isinstance(target, Replica) and (name, target.node_id) in self.blocked

    def _serve(self, service: Service, request: Request, party: Party) -> Answer:
        match request:
            case Current():
                return InForce(self.projection)
            case Swap(new, unheard):
                before = self.records.record
                # Newcomers of a leader that was replaced were given up: the MetaStore fences it.
                if not {*before.projection.replicas, *before.joining}.issuperset(new.replicas):
                    return Lost()
                self.records.record = before.swap(new, unheard)
                if self.records.record == before:
                    return InForce(self.projection)
                self.reconfigurations += 1
                self._swapped(before, new)
                self.judge.in_force_now(new)
                self._check_replicas()
                return Swapped()
        known = party.projection or self.projection
        for repository in self.repositories:
            if (sequencer := repository.sequencers.get(known.sequencer)) is not None:
                return sequencer.answer(request)
        return Refused("the sequencer is gone")

    def _swapped(self, before: ChainedRecord, new: Projection) -> None:
        """Called when a projection comes into force."""

    # ---- what parties do

    def _use(self, *, faults: bool) -> None:
        if not faults or len(self.calls) >= CALLS_MAX:
            return
        client = self.random.choice(self.clients)
        operation = self.random.choices(
            (client.append, client.follow, client.look, client.measure, client.trim),
            self.uses,
        )[0]
        self._call(client, operation())

    def _call(self, party: Party | Node, steps: Steps[None]) -> None:
        call = Call(self, party, steps)
        self.calls.append(call)
        call.begin()

    def _reconfigure(self) -> None:
        repository = self.random.choice(self.repositories)
        chains = self.projection.chains
        index = self.random.randrange(len(chains))
        used = {r.node_id for r in (*chains[index], *self.records.record.joining)}
        spare = sorted(set(self.nodes) - used)
        if spare and self.random.random() < 0.5:
            self._call(repository, repository.join(index, self.random.choice(spare)))
            return
        goal = Goal()
        if self.random.random() < 0.2:
            replica = self.random.choice(chains[index])
            if self.projection.epoch % 2:  # the node leaves, or only this replica of it
                goal = Goal(leaving=frozenset([replica.node_id]))
            else:
                goal = Goal(moved=frozenset([replica]))
        self._call(repository, repository.reconfigure(goal))

    # ---- harm

    def _do_harm(self) -> None:
        random = self.random
        up = [node for node in self.nodes.values() if node.up]
        down = [node for node in self.nodes.values() if not node.up]
        match random.choices(range(len(HARMS) + 1), [*self._harms, 1])[0]:
            case 0:
                self._reconfigure()
            case 1 if up:
                self._crash(random.choice(up))
            case 2 if down:
                self._restart(random.choice(down))
            case 3 if up:
                self._lose_disk(random.choice(up))
            case 4:
                self._replace_client()
            case 5:
                self._end_calls(random.choice(self.repositories))
            case 6:
                self._replace_repository()
            case 7:
                parties: list[Party] = [*random.choice((self.clients, self.repositories))]
                node_id = random.choice(list(self.nodes))
                self.blocked.update((party.name, node_id) for party in parties)
            case 8:
                self.blocked.clear()

    def _crash(self, node: Node) -> None:
        self._end_calls(node)
        for unanswered in node.crash(self.random):
            unanswered(Lost())

    def _restart(self, node: Node) -> None:
        node.restart()

    def _lose_disk(self, node: Node) -> None:
        """Lose a disk. Unless this world loses chains, every chain must keep a replica, whatever
        reconfigurations are in progress."""
        if any(isinstance(call.party, Repository) for call in self.calls):
            return
        if any(isinstance(q.ask.request, Swap) for q in [*self.questions, *self.late]):
            return
        for chain in self.projection.chains:
            is_last = not any(self._is_sound(r) for r in chain if r.node_id != node.node_id)
            if is_last and not self._loses_chains:
                return
        self._crash(node)
        node.lose_disk()
        self._disks_lost[node.node_id] = self.judge.now()

    def _is_sound(self, replica: Replica) -> bool:
        return replica in self.nodes[replica.node_id].table.replicas()

    def _end_calls(self, party: Party | Node) -> None:
        """End the operations of a party that dies; what it sent may still arrive."""
        self.calls = [call for call in self.calls if call.party is not party]

    def _replace_client(self) -> None:
        index = self.random.randrange(len(self.clients))
        self._end_calls(self.clients[index])
        self.clients[index] = self._new_client()

    def _replace_repository(self) -> None:
        """Let a new repository lead; the old one is gone, or does not know."""
        if len(self.repositories) > 1 or self.random.random() < 0.5:
            self._end_calls(self.repositories.pop(0))
        self.repositories.append(self._new_repository())

    # ---- peace

    def _calm_down(self) -> None:
        self.blocked.clear()
        for node in self.nodes.values():
            if not node.up:
                self._restart(node)

    def _mend(self) -> None:
        """Do what the upkeep of the newest repository wants, one thing at a time."""
        if any(isinstance(call.party, Repository) for call in self.calls):
            return
        repository = self.repositories[-1]
        record = self.records.record
        self.records.record = record.give_up(*record.joining)  # nothing fills them any more
        match self._wanted():
            case NewEpoch() as wanted:
                self._call(repository, repository.begin_epoch(wanted))
            case Join(chain, node):
                self._call(repository, repository.join(chain, node))

    def _wanted(self) -> Action:
        return decide(self._standing(), self)

    def _standing(self) -> ChainsStanding:
        record = self.records.record
        needs_epoch = "not all is of the epoch" if self._must_reconfigure() else ""
        lost = {r for r in record.replicas if self.reachable(r.node_id) and not self._is_sound(r)}
        unfit = lost.intersection(record.projection.replicas)
        return ChainsStanding(
            record, self.replicas_wanted, needs_epoch, frozenset(unfit), frozenset(lost)
        )

    # ---- the nodes, as the upkeep sees them

    def reachable(self, node: NodeId) -> bool:
        return self.nodes[node].up and (self.repositories[-1].name, node) not in self.blocked

    def silent(self, loglet: LogId, node: NodeId) -> bool:
        return not self.reachable(node)

    def life(self, node: NodeId) -> int:
        return 0  # these disks forget nothing

    def replaced(self, node: NodeId) -> bool:
        return True

    def leaving(self, node: NodeId) -> bool:
        return False

    def spare(
        self, record: ChainedRecord, chain: int, preferred: NodeId | None = None
    ) -> NodeId | None:
        used = {replica.node_id for replica in record.projection.chains[chain]}
        spare = [node for node in self.nodes if node not in used and self.reachable(node)]
        return self.random.choice(spare) if spare else None

    def fresh(self, record: ChainedRecord) -> NodeId | None:
        there = [node for node in self.nodes if self.reachable(node)]
        return self.random.choice(there) if there else None

    def _must_reconfigure(self) -> bool:
        projection = self.projection
        sequencers = [r for r in self.repositories if projection.sequencer in r.sequencers]
        if not (sequencers or projection.closed):
            return True
        standings = [
            self.nodes[replica.node_id].table.look(replica).standing
            for replica in projection.replicas
        ]
        return any(s is None or s.epoch != projection.epoch for s in standings)

    def _is_well(self) -> bool:
        return (
            not (self.calls or self.questions or self.late or self.answers)
            and self._wanted() == Wait()
        )

    # ---- copies

    def _count_copies(self, block: Block, since: int) -> int:
        """Return how many disks have a block. One that was lost since a moment may have had it."""
        chain = block.first % len(self.projection.chains)
        return sum(
            self._disks_lost.get(node.node_id, -1) >= since
            or any(
                replica.chain == chain and node.table.look(replica).find(block.last) == block.extent
                for replica in node.table.replicas()
            )
            for node in self.nodes.values()
        )

    # ---- the end

    def _check_replicas(self) -> None:
        """Check that acknowledged blocks are on every current replica that did not lose its
        disk."""
        for block in self.judge.acknowledged.values():
            for replica in self.projection.chain_of(block.first):
                stored = self.nodes[replica.node_id].table.look(replica)
                is_gone = block.last <= self.judge.trimmed or self.judge.is_lost(block)
                if stored.standing is None or is_gone:
                    continue
                if stored.find(block.last) != block.extent:
                    raise Violation(f"{block} was acknowledged, and is not on {replica}")

    def _look_at_the_end(self) -> None:
        self._check_replicas()
        blocks: list[Block] = []
        client = self._new_client()
        self._call(client, self._read_all(client, blocks))
        for _ in range(CALM_STEPS):
            if not self.calls:
                break
            self._deliver(faults=False)
        self.judge.whole(blocks)
        self._compare_replicas(blocks[0].end if blocks else self.projection.first)

    def _read_all(self, client: Client, blocks: list[Block]) -> Steps[None]:
        projection = yield from client.refresh()
        assert projection is not None
        end = yield from find_end(projection)
        if not isinstance(end, int):
            raise Violation(f"the end of the log is not found: {end}")
        self.judge.end_found(end, self.judge.acknowledged_end)
        tail = yield from find_tail(projection)
        if not isinstance(tail, int):
            raise Violation(f"the tail of the log is not found: {tail}")
        self.judge.tail_found(tail, self.judge.tail_floor())
        position = projection.first
        while position < end:
            outcome = yield from decide_at(projection, position)
            match outcome:
                case Found(block):
                    blocks.append(block)
                    position = block.end
                case Trimmed(trimmed):
                    self.judge.was_trimmed(trimmed)
                    position = trimmed + 1
                case NotWritten():
                    raise Violation(f"{position} is below the end {end} and cannot be filled")
                case _:
                    raise Violation(f"{position} cannot be read: {outcome}")

    def _compare_replicas(self, start: Glsn) -> None:
        """Check that the replicas of a chain are equal, except for what only some have trimmed."""
        for chain in self.projection.chains:
            contents = []
            for replica in chain:
                stored = self.nodes[replica.node_id].table.look(replica)
                extents = stored.scan(max(start, self.judge.trimmed + 1), 1 << 30)
                contents.append([stored.load(extent) for extent in extents])
            if any(content != contents[0] for content in contents):
                raise Violation(f"replicas differ: {contents}")
